"""The doctor's findings as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from ...validate.doctor import STATUSES, Checkup, DoctorFinding, FindingStatus
from ...validate.doctor.software import NO_NVIDIA_GPU
from ..document import blocks as doc
from ..document.blocks import Tone
from ..text.units import capitalised, counted_noun, printable

_STYLES: Mapping[FindingStatus, doc.Style] = {
    "problem": "bad",
    "warning": "unsure",
    "note": "advice",
    "unknown": "unknown",
    "ok": "good",
}
_STATUS_WIDTH = 10


def doctor_document(checkup: Checkup) -> doc.Document:
    """Return the verdict, then the findings by area, the most serious first."""
    tone: Tone = "bad" if checkup.counts["problem"] else "unsure" if checkup.counts["warning"] else "good"
    blocks = list[doc.Block]()
    width = 2 + max((len(finding.check) for finding in checkup.findings), default=0)
    for area, findings in groupby(checkup.findings, key=lambda finding: finding.area):
        blocks.append(doc.Heading("GPUs" if area == "gpus" else capitalised(area), area))
        for finding in sorted(findings, key=lambda finding: STATUSES.index(finding.status)):
            blocks += _finding(finding, width)
    if tone != "good":
        blocks.append(doc.Sentence("The cause of a training that failed: ds-advise why LOG", "dim"))
    return doc.Document(subject="This machine", verdict=_verdict(checkup), tone=tone, blocks=blocks, data=checkup)


def _verdict(checkup: Checkup) -> str:
    problems, warnings = checkup.counts["problem"], checkup.counts["warning"]
    found = counted_noun(warnings, "warning")
    if problems:
        bad = counted_noun(problems, "problem") + f" and {found}" * bool(warnings)
        of_problem = [each for each in checkup.findings if each.status == "problem"]
        failing = list(dict.fromkeys(each.check for each in of_problem if not each.effect))
        effects = [each.effect for each in of_problem if each.effect]
        if failing:
            effects.insert(0, f"DeepSpeed will fail here ({', '.join(failing)})")
        return f"{bad}: {'; '.join(effects)}."
    if warnings:
        return f"No problem, {found}: DeepSpeed works, but slower or less reliably."
    if any(finding.what == NO_NVIDIA_GPU for finding in checkup.findings):
        return "No problem found: DeepSpeed works here on the CPU (there is no NVIDIA GPU)."
    return "No problem found: DeepSpeed works here."


def _finding(finding: DoctorFinding, width: int) -> Iterator[doc.Block]:
    column = _STATUS_WIDTH + width
    yield doc.Sentence(
        f"{finding.check:<{width}}{printable(finding.what)}",
        "dim" if finding.status == "ok" else "",
        hang=column,
        mark=f" {finding.status}".ljust(_STATUS_WIDTH),
        mark_style=_STYLES[finding.status],
        in_column=True,
    )
    if finding.why:
        yield doc.Sentence(printable(finding.why), hang=column, mark=" " * column)
    if finding.fix:
        mark, (fix, *commands) = f"{' ' * column}fix: ", finding.fix.splitlines()
        yield doc.Sentence(printable(fix), hang=len(mark), mark=mark, mark_style="bold")
        if commands:
            yield doc.Commands([*map(printable, commands)])
