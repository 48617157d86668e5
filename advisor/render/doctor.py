"""The doctor's findings on a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...validate.doctor import STATUSES, Checkup, DoctorFinding, FindingStatus
from ...validate.doctor.software import NO_NVIDIA_GPU
from ..text.lines import blank, capitalised, padded, sentence
from ..text.units import printable

_STYLES: dict[FindingStatus, str] = {
    "problem": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "unknown": "bold magenta",
    "ok": "green",
}
_STATUS_WIDTH = 8
_CHECK_WIDTH = 19


def render_doctor(checkup: Checkup, console: Console) -> None:
    """Print the verdict, then the findings by area, the most serious first."""
    sentence(console, _verdict(checkup), style=_STYLES[checkup.worst])
    for area, findings in groupby(checkup.findings, key=lambda finding: finding.area):
        blank(console)
        sentence(console, ("GPUs" if area == "gpus" else capitalised(area)), style="bold")
        for finding in sorted(findings, key=lambda finding: STATUSES.index(finding.status)):
            _finding(finding, console)


def _verdict(checkup: Checkup) -> str:
    problems = checkup.counts["problem"]
    warnings = checkup.counts["warning"]
    found = "1 warning" if warnings == 1 else f"{warnings} warnings"
    if problems:
        bad = "1 problem" if problems == 1 else f"{problems} problems"
        bad = f"{bad} and {found}" if warnings else bad
        return f"{bad}: DeepSpeed will fail here."
    if warnings:
        return f"No problem, {found}: DeepSpeed works, but slower or less reliably."
    if any(finding.what == NO_NVIDIA_GPU for finding in checkup.findings):
        return "No problem found: DeepSpeed works here, on the CPU: there is no NVIDIA GPU."
    return "No problem found: DeepSpeed works here."


def _finding(finding: DoctorFinding, console: Console) -> None:
    indent = " " * (_STATUS_WIDTH + 1)
    head = Text.assemble(
        (f" {padded(finding.status, -_STATUS_WIDTH)}", _STYLES[finding.status]),
        f"{finding.check:<{_CHECK_WIDTH}}",
        (printable(finding.what), "dim" if finding.status == "ok" else ""),
    )
    sentence(console, head, hang=len(indent) + _CHECK_WIDTH)
    if finding.why:
        sentence(console, Text(indent + printable(finding.why)), hang=len(indent))
    if finding.fix:
        word = "fix: "
        fix = Text.assemble(indent, (word, "bold"), printable(finding.fix))
        sentence(console, fix, hang=len(indent) + cell_len(word))
