"""A doctor's visit for people, and as a block to paste into a bug report."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ...validate.doctor import STATUSES, Checkup, DoctorFinding, FindingStatus, Hider
from ..text.lines import blank, printable, sentence
from ..text.units import gib

_STYLES: dict[FindingStatus, str] = {
    "problem": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "unknown": "bold magenta",
    "ok": "green",
}
_TOLD = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_IB_HCA",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST",
)
_SWITCH = re.compile(r"[\d.,;+-]*|true|false|on|off|yes|no|warn|info|trace|version|detail|cpu|cuda", re.IGNORECASE)

_MARK, _CHECK = 8, 19
"""Columns of the status and of the check's name."""


def render_doctor(checkup: Checkup, console: Console) -> None:
    """Print the verdict, then every area with its lines; the gravest of an area first."""
    sentence(console, Text(_verdict(checkup), style=_STYLES[checkup.worst]))
    for area, findings in checkup.areas.items():
        blank(console)
        sentence(console, Text(_title(area), style="bold"))
        for finding in sorted(findings, key=lambda finding: STATUSES.index(finding.status)):
            _finding(finding, console)
    blank(console)
    sentence(
        console, "ds-advise doctor --report prints a block for a bug report, without names and secrets.", style="dim"
    )


def _verdict(checkup: Checkup) -> str:
    problems, warnings = checkup.count("problem"), checkup.count("warning")
    if problems:
        more = f" and {_counted(warnings, 'warning')}" if warnings else ""
        return f"{_counted(problems, 'problem')}{more}: DeepSpeed will fail here."
    if warnings:
        return f"No problem, {_counted(warnings, 'warning')}: it works, but not as well as it could."
    return "Nothing stands in DeepSpeed's way here."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _title(area: str) -> str:
    return {"gpus": "GPUs"}.get(area, area.capitalize())


def _finding(finding: DoctorFinding, console: Console) -> None:
    indent = " " * (_MARK + 1)
    head = Text.assemble(
        (f" {finding.status:<{_MARK}}", _STYLES[finding.status]),
        f"{finding.check:<{_CHECK}}",
        (printable(finding.what), "dim" if finding.status == "ok" else ""),
    )
    sentence(console, head, hang=len(indent) + _CHECK)
    if finding.why:
        sentence(console, Text(indent + printable(finding.why)), hang=len(indent))
    if finding.fix:
        remedy = Text.assemble(indent, ("fix: ", "bold"), printable(finding.fix))
        sentence(console, remedy, hang=len(indent) + len("fix: "))


def report_block(checkup: Checkup) -> str:
    """The machine and every finding that is not "ok", in Markdown, with names, addresses and secrets taken out."""
    hider = Hider.of_this_machine(nodes=tuple(node.name for node in checkup.facts.nodes))
    lines = ["```text", "ds-advise doctor", *_machine(checkup), ""]
    for area, findings in checkup.areas.items():
        lines += [_line(area, finding) for finding in findings if finding.status != "ok"]
    fine = [finding.check for finding in checkup.findings if finding.status == "ok"]
    lines += [f"ok: {', '.join(dict.fromkeys(fine))}", "", *_environment(checkup), "```"]
    return "\n".join(printable(hider.hide(line)) for line in lines)


def _line(area: str, finding: DoctorFinding) -> str:
    return f"{finding.status}: {area}: {finding.check}: {finding.what}"


def _machine(checkup: Checkup) -> Iterator[str]:
    facts = checkup.facts
    if facts.host:
        inside = f", in a container ({facts.host.container})" if facts.host.container else ""
        yield f"system: {facts.host.system}, Linux {facts.host.kernel} {platform.machine()}{inside}"
    if facts.software:
        versions = ", ".join(f"{name} {version}" for name, version in facts.software.packages.items())
        yield f"python {facts.software.python}: {versions or 'nothing of what was looked for'}"
        yield f"torch's CUDA: {facts.software.torch_cuda or 'none'}"
    if facts.toolchain:
        nvcc = f"nvcc {facts.toolchain.nvcc}" if facts.toolchain.nvcc else "no nvcc"
        yield f"compilers: {facts.toolchain.cxx or 'no C++'}, {nvcc}"
    if facts.graphics:
        yield f"driver: {facts.graphics.driver or 'none'} (CUDA {facts.graphics.driver_cuda or '-'})"
        for gpu in facts.graphics.gpus:
            link = f", PCIe {gpu.pcie.generation} x{gpu.pcie.width}" if gpu.pcie else ""
            nvlink = f", {gpu.nvlinks[0]} NVLinks" if gpu.nvlinks[0] else ""
            memory = f"{gib(gpu.free_bytes)} of {gib(gpu.memory_bytes)} GiB free"
            yield f"GPU {gpu.index}: {gpu.name}, {memory}{link}{nvlink}"
    if facts.processor:
        shared = f", quota {facts.processor.quota:g}" if facts.processor.quota is not None else ""
        yield (
            f"CPU: {facts.processor.name}, {len(facts.processor.usable)} of {facts.processor.online} cores{shared}, "
            f"{len(facts.processor.nodes)} NUMA nodes"
        )
    if facts.memory:
        limit = f", limit {gib(facts.memory.limit_bytes)}" if facts.memory.limit_bytes is not None else ""
        yield f"RAM: {gib(facts.memory.available_bytes)} of {gib(facts.memory.total_bytes)} GiB available{limit}"
    if facts.folder:
        yield f"swap folder: {facts.folder.filesystem}, {facts.folder.device}, {gib(facts.folder.free_bytes)} GiB free"


def _environment(checkup: Checkup) -> Iterator[str]:
    """Variables by name, with the values that are switches, numbers or names that every machine has.

    Other values may name hosts."""
    for name, value in checkup.facts.environment.items():
        yield f"{name}={value}" if name in _TOLD or _SWITCH.fullmatch(value) else f"{name} is set"
