"""The doctor's findings on a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...estimators.phrase import Phrase, named, phrase
from ...validate.doctor import STATUSES, Checkup, DoctorFinding, FindingStatus
from ...validate.doctor.software import NO_NVIDIA_GPU
from ..text.language import translate
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
        sentence(console, named("GPUs" if area == "gpus" else capitalised(area)), style="bold")
        for finding in sorted(findings, key=lambda finding: STATUSES.index(finding.status)):
            _finding(finding, console)


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
