"""The doctor's findings for people, and as a block for a bug report."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...estimators.phrase import Phrase, named, phrase
from ...validate.doctor import STATUSES, Checkup, DoctorFinding, FindingStatus, MachineFacts, Redactor, judge
from ...validate.doctor.software import NO_NVIDIA_GPU
from ..text.labels import versions_label
from ..text.language import translate
from ..text.lines import blank, capitalised, padded, sentence
from ..text.printable import printable
from ..text.units import gib

_STYLES: dict[FindingStatus, str] = {
    "problem": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "unknown": "bold magenta",
    "ok": "green",
}
_PUBLIC_VALUES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_IB_HCA",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST",
)
"""Variables that the report gives with their values; the value of others may name a host."""

_SWITCH = re.compile(r"[\d.,;+-]*|true|false|on|off|yes|no|warn|info|trace|version|detail|cpu|cuda", re.IGNORECASE)

_STATUS_WIDTH = 8
_CHECK_WIDTH = 19


def render_doctor(checkup: Checkup, console: Console) -> None:
    """Print the verdict, then the findings by area, the most serious first."""
    sentence(console, _verdict(checkup), style=_STYLES[checkup.worst])
    for area, findings in groupby(checkup.findings, key=lambda finding: finding.area):
        blank(console)
        sentence(console, named("GPUs" if area == "gpus" else capitalised(area)), style="bold")
        for finding in sorted(findings, key=lambda finding: STATUSES.index(finding.status)):
            _finding(finding, console)
    blank(console)
    note = phrase("ds-advise doctor --report prints a block for a bug report, without names and secrets.")
    sentence(console, note, style="dim")


def _verdict(checkup: Checkup) -> Phrase:
    problems = checkup.counts["problem"]
    warnings = checkup.counts["warning"]
    found = phrase("1 warning") if warnings == 1 else phrase("{count} warnings", count=warnings)
    if problems:
        bad = phrase("1 problem") if problems == 1 else phrase("{count} problems", count=problems)
        bad = phrase("{first} and {last}", first=bad, last=found) if warnings else bad
        return phrase("{problems}: DeepSpeed will fail here.", problems=bad)
    if warnings:
        return phrase("No problem, {warnings}: DeepSpeed works, but slower or less reliably.", warnings=found)
    if any(finding.what == NO_NVIDIA_GPU for finding in checkup.findings):
        return phrase("No problem found: DeepSpeed works here, on the CPU: there is no NVIDIA GPU.")
    return phrase("No problem found: DeepSpeed works here.")


def _finding(finding: DoctorFinding, console: Console) -> None:
    indent = " " * (_STATUS_WIDTH + 1)
    head = Text.assemble(
        (f" {padded(translate(named(finding.status)), -_STATUS_WIDTH)}", _STYLES[finding.status]),
        f"{finding.check:<{_CHECK_WIDTH}}",
        (printable(translate(named(finding.what))), "dim" if finding.status == "ok" else ""),
    )
    sentence(console, head, hang=len(indent) + _CHECK_WIDTH)
    if finding.why:
        sentence(console, Text(indent + printable(translate(named(finding.why)))), hang=len(indent))
    if finding.fix:
        word = translate(phrase("fix: "))
        fix = Text.assemble(indent, (word, "bold"), printable(translate(named(finding.fix))))
        sentence(console, fix, hang=len(indent) + cell_len(word))


def report_block(facts: MachineFacts) -> str:
    """The machine and every finding that is not "ok", in Markdown, without names, addresses and secrets."""
    redactor = Redactor.of_this_machine(nodes=tuple(node.name for node in facts.nodes))
    findings = judge(facts).findings
    lines = ["```text", "ds-advise doctor", *_machine(facts), ""]
    lines += [f"{one.status}: {one.area}: {one.check}: {one.what}" for one in findings if one.status != "ok"]
    passed = [finding.check for finding in findings if finding.status == "ok"]
    lines += [f"ok: {', '.join(dict.fromkeys(passed))}", ""]
    for name, value in facts.environment.items():
        public = name in _PUBLIC_VALUES or _SWITCH.fullmatch(value)
        lines.append(f"{name}={value}" if public else f"{name} is set")
    return "\n".join(printable(redactor.redact(line)) for line in [*lines, "```"])


def _machine(facts: MachineFacts) -> Iterator[str]:
    yield f"system: {platform.platform()}"
    if facts.software:
        versions = versions_label(facts.software.packages)
        yield f"python {facts.software.python}: {versions or 'none of the relevant packages'}"
        yield f"torch's CUDA: {facts.software.torch_cuda or 'none'}"
    if facts.toolchain:
        nvcc = f"nvcc {facts.toolchain.nvcc}" if facts.toolchain.nvcc else "no nvcc"
        yield f"compilers: {facts.toolchain.cxx or 'no C++'}, {nvcc}"
    if facts.graphics:
        yield f"driver: {facts.graphics.driver or 'none'} (CUDA {facts.graphics.driver_cuda or '-'})"
        for gpu in facts.graphics.gpus:
            memory = f"{gib(gpu.free_bytes)} of {gib(gpu.memory_bytes)} GiB free"
            yield f"GPU {gpu.index}: {gpu.name}, {memory}"
    if cpu := facts.processor:
        quota = f", quota {cpu.quota:g}" if cpu.quota is not None else ""
        yield f"CPU: {cpu.name}, {cpu.usable} of {cpu.online} cores{quota}"
    if facts.memory:
        limit = f", limit {gib(facts.memory.limit_bytes)}" if facts.memory.limit_bytes is not None else ""
        yield f"RAM: {gib(facts.memory.available_bytes)} of {gib(facts.memory.total_bytes)} GiB available{limit}"
    if facts.folder:
        yield f"swap folder: {facts.folder.filesystem}"
