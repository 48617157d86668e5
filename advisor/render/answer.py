"""The answer on a terminal: verdict, ladder, memory, reasons, and next commands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..answer.evidence import dry_run_sentence, probe_table
from ..answer.recommendation import Recommendation
from ..answer.view import AnswerView, LadderRow
from ..document.blocks import Sentence
from ..document.terminal import print_blocks
from ..text.language import translate
from ..text.lines import WIDTH, bar, blank, commands, padded, row, sentence

_WIDTHS = {
    "strategy": -19,
    "batch": 5,
    "checkpointing": 4,
    "gpu_gib": 7,
    "ram_gib": 7,
    "tokens_per_s": 8,
}
"""Widths of the ladder's columns; a negative width aligns to the left."""

_FEW_CHANGES = 4
"""Changes that are printed without `details`."""

_MOST_LINES = 45
"""Largest number of lines of an answer without `details`, on a terminal of 80 columns."""

_GIVE_WAY = ("time", "memory", "phases", "ladder")
"""Parts that are left out, in this order, if the script needs many lines; the ladder loses the plans that do not
fit."""


def print_answer(
    answer: Recommendation,
    console: Console,
    *,
    config_path: str = "ds_config.json",
    all_candidates: bool = False,
    details: bool = False,
) -> None:
    """Print the answer: the verdict and next steps, then the plans and the reasons.

    details: also print the reasons, DeepSpeed's own estimate, the assumptions, and all lines of the script.
    """
    view = AnswerView(answer, config_path, all_candidates=all_candidates, details=details)
    for count in range(len(_GIVE_WAY) + 1):
        with console.capture() as printed:
            _print_view(view, console, left_out=_GIVE_WAY[:count])
        if details or console.width < WIDTH or printed.get().count("\n") <= _MOST_LINES:
            break
    console.file.write(printed.get())


def _print_view(view: AnswerView, console: Console, *, left_out: Sequence[str]) -> None:
    verdict, answer, details = view.verdict, view.answer, view.details
    print_blocks([Sentence(verdict.headline, verdict.tone)], console)
    for line in verdict.sentences:
        sentence(console, line, style="bold yellow" if line == verdict.try_first else "")
    changes_first = not view.figures
    if changes_first:
        _print_changes(view, console)
    _print_steps(view, console)
    paragraph(console, *view.subject)
    _print_ladder(view, console, only_fitting="ladder" in left_out)
    if view.memory and "memory" not in left_out:
        paragraph(console, view.memory)
        bar(view.memory_parts, console)
    for line in view.phases if "phases" not in left_out else ():
        sentence(console, line)
    if view.time and "time" not in left_out:
        sentence(console, view.time)
    job = view.job if details else ()
    reasons = answer.reasons if details or not view.figures else ()
    utilization = view.utilization if details and not job else ""
    title = "The whole job" if job else ""
    paragraph(console, *job, utilization, *reasons, view.pytorch_baseline, title=title)
    for run in answer.verifications:
        paragraph(console, dry_run_sentence(run))
    _print_probes(answer, console)
    if details:
        paragraph(console, view.deepspeed_estimate)
    if not changes_first:
        _print_changes(view, console)
    assumed = ""
    if details and answer.assumptions:
        assumed = f"Assumed: {'; '.join(answer.assumptions)}."
    paragraph(console, *view.evidence, assumed, style="dim")


def _print_steps(view: AnswerView, console: Console) -> None:
    """Print the written files and the next steps."""
    if view.steps:
        blank(console)
    files = view.answer.files
    written = [f"Wrote {', '.join(files)}."] if files else []
    for block in view.steps:
        sentence(console, " ".join([*map(translate, written), translate(block.text)]))
        written.clear()
        commands(console, block.code)


def paragraph(console: Console, *lines: str, title: str = "", style: str = "") -> None:
    """Print sentences after an empty line; nothing if all are empty."""
    if any(lines):
        blank(console)
        for line, own in ((title, "bold"), *((line, style) for line in lines)):
            if line:
                sentence(console, line, style=own)


def _print_ladder(view: AnswerView, console: Console, *, only_fitting: bool) -> None:
    """Print a row for each strategy, or a sentence if the terminal is too narrow. Empty columns are left out."""
    ladder = [step for step in view.ladder if step.tokens_per_s or not only_fitting]
    titles = {name: translate(title) for name, title in view.columns.items()}
    widths = {name: width for name, width in _WIDTHS.items() if any(getattr(step, name) for step in ladder)}
    lines = ["" if step.candidate is None else _ladder_line(step, widths) for step in ladder]
    as_rows = max(map(cell_len, lines), default=0) <= console.width
    if as_rows:
        header = " ".join(padded(titles[name], width) for name, width in widths.items())
        row(console, f"  {header}", style="bold")
    previous = ""
    for step, line in zip(ladder, lines, strict=True):
        chosen = "bold green" if view.figures else "bold"
        style = chosen if step.is_chosen else "" if step.fits else "dim"
        if step.candidate is None:
            reason = "the same" if step.verdict == previous else step.verdict
            sentence(console, f" {step.strategy:<19} {translate(reason)}", style="dim", hang=21)
        elif as_rows:
            row(console, line, style=style)
        else:
            names = [name for name in widths if name != "strategy"] if step.tokens_per_s else ["gpu_gib"]
            parts = [f"{titles[name]} {translate(value)}" for name in names if (value := getattr(step, name))]
            mark = ">" if step.is_chosen else " "
            text = f"{mark} {', '.join([step.strategy, *parts])}: {translate(step.verdict)}"
            sentence(console, text, style=style, hang=4)
        previous = "" if step.candidate else step.verdict
    left_out = ["--details shows the plans that need more memory"] if only_fitting else []
    for note in (*view.ladder_notes, *left_out):
        sentence(console, f" {translate(note)}", style="dim")


def _ladder_line(step: LadderRow, widths: dict[str, int]) -> str:
    """Return a row with its verdict. For a plan that does not fit, the verdict starts in the last column, since it has
    no speed."""
    values = {name: translate(getattr(step, name)) for name in widths}
    if not values.get("tokens_per_s"):
        values.pop("tokens_per_s", None)
    mark = ">" if step.is_chosen else " "
    line = " ".join([mark, *(padded(value or "-", widths[name]) for name, value in values.items())])
    reason = translate(step.verdict).replace("likely fits", "likely")
    if step.fits and step.nvme_gib:
        reason += f", NVMe {step.nvme_gib} GiB"
    return f"{line}{'  ' if cell_len(line) + cell_len(reason) + 2 <= WIDTH else ' '}{reason}"


def _print_probes(answer: Recommendation, console: Console) -> None:
    title, rows, end = probe_table(answer)
    paragraph(console, title, style="bold")
    for strategy, batch, checkpointing, outcome in rows:
        line = f"  {strategy:<19} {batch:>5} {padded(translate(checkpointing), 4)}  {translate(outcome)}"
        sentence(console, line, hang=34)
    if end:
        sentence(console, end)


def _print_changes(view: AnswerView, console: Console) -> None:
    changes, title = view.answer.changes, view.changes
    shown = tuple(islice(changes, None if view.details else _FEW_CHANGES))
    if shown and not changes.are_all_tried:
        title = f"{title} (--details tries more)"
    paragraph(console, title)
    is_wide = console.width >= WIDTH
    width = max((len(change.flags) for change in shown), default=0) * is_wide
    for change in shown:
        flags = (f"{change.flags:<{width}}", "bold")
        outcome = f"  {translate(change.outcome)}"
        sentence(console, Text.assemble("  ", flags, outcome), hang=width + 4 if is_wide else 5)
