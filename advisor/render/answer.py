"""The answer on a terminal (verdict, ladder, memory, reasons, next commands), and the explanation of a plan."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...estimators.estimate import MemoryTerm
from ...estimators.phrase import listed, phrase
from ..answer.explanation import Explanation, Section, Term, head, in_words, number, with_numbers
from ..answer.recommendation import Recommendation
from ..answer.view import AnswerView, LadderRow, view_of
from ..search.candidate import chance
from ..text.labels import checkpointing_title, component_title, phase_title, plan_title
from ..text.language import translate
from ..text.lines import WIDTH, bar, blank, cells, commands, copyable, padded, row, sentence
from ..text.units import gib, seconds

_WIDTHS = {
    "rung": -19,
    "batch": 5,
    "checkpointing": 4,
    "gpu_gib": 7,
    "ram_gib": 7,
    "tokens_per_s": 8,
}
"""Of the ladder's columns; negative: aligned to the left."""

_FEW_CHANGES = 4
"""Changes that are printed without `details`."""

_TONES = {"good": "bold green", "unsure": "bold yellow", "bad": "bold red"}


def print_answer(
    answer: Recommendation,
    console: Console,
    *,
    config_path: str = "ds_config.json",
    all_candidates: bool = False,
    details: bool = False,
) -> None:
    """Print the answer: the verdict and what to do next, then the plans, and why.

    details: with the reasons, DeepSpeed's own estimate, what is assumed, and all lines of the script.
    """
    view = view_of(answer, config_path=config_path, all_candidates=all_candidates, details=details)
    verdict = view.verdict
    sentence(console, verdict.headline, style=_TONES[verdict.tone])
    for line in verdict.sentences:
        sentence(console, line, style="bold yellow" if line == verdict.try_first else "")
    changes_first = not view.figures
    if changes_first:
        _print_changes(view, console, details=details)
    _print_steps(view, console)
    _paragraph(console, *view.subject)
    _print_ladder(view, console)
    if view.memory:
        _paragraph(console, view.memory)
        bar(view.memory_parts, console)
    for line in view.phases:
        sentence(console, line)
    reasons = view.reasons if details or not view.figures else ()
    if view.time:
        sentence(console, view.time)
    job = view.job if details else ()
    utilization = view.utilization if details and not job else ""
    title = phrase("The whole job") if job else ""
    _paragraph(console, *job, utilization, *reasons, view.pytorch_baseline, title=title)
    for line in view.dry_runs:
        _paragraph(console, line)
    _print_probes(view, console)
    if details:
        _paragraph(console, view.deepspeed_estimate)
    if not changes_first:
        _print_changes(view, console, details=details)
    assumed = (
        [phrase("Assumed: {figures}.", figures=listed(view.assumptions, "; "))] if details and view.assumptions else []
    )
    _paragraph(console, *view.evidence, *assumed, style="dim")


def _print_steps(view: AnswerView, console: Console) -> None:
    """What was written, and what to do next."""
    if view.steps:
        blank(console)
    written = [phrase("Wrote {paths}.", paths=", ".join(view.files))] if view.files else []
    for block in view.steps:
        sentence(console, " ".join([*map(translate, written), translate(block.text)]))
        written.clear()
        (commands if block.is_shell else copyable)(console, block.code)


def _paragraph(console: Console, *lines: str, title: str = "", style: str = "") -> None:
    """Sentences after an empty line; nothing where all are empty."""
    if any(lines):
        blank(console)
        for line, own in ((title, "bold"), *((line, style) for line in lines)):
            if line:
                sentence(console, line, style=own)


def _print_ladder(view: AnswerView, console: Console) -> None:
    """A row for each strategy; where the terminal is too narrow, a sentence. Empty columns are left out."""
    titles = {name: translate(title) for name, title in view.columns.items()}
    widths = {name: width for name, width in _WIDTHS.items() if any(getattr(step, name) for step in view.ladder)}
    lines = ["" if step.candidate is None else _ladder_line(step, widths) for step in view.ladder]
    as_rows = max(map(cell_len, lines), default=0) <= console.width
    if as_rows:
        header = " ".join(padded(titles[name], width) for name, width in widths.items())
        row(console, f"  {header}", style="bold")
    previous = ""
    for step, line in zip(view.ladder, lines, strict=True):
        style = "bold green" if step.is_chosen else "" if step.fits else "dim"
        if step.candidate is None:
            reason = phrase("the same") if step.verdict == previous else step.verdict
            sentence(console, f" {step.rung:<19} {translate(reason)}", style="dim", hang=21)
        elif as_rows:
            row(console, line, style=style)
        else:
            names = [name for name in widths if name != "rung"] if step.tokens_per_s else ["gpu_gib"]
            parts = [f"{titles[name]} {translate(value)}" for name in names if (value := getattr(step, name))]
            text = f"{_mark(step)} {', '.join([step.rung, *parts])}: {translate(step.verdict)}"
            sentence(console, text, style=style, hang=4)
        previous = "" if step.candidate else step.verdict
    for note in view.ladder_notes:
        sentence(console, f" {translate(note)}", style="dim")


def _mark(step: LadderRow) -> str:
    return ">" if step.is_chosen else " "


def _ladder_line(step: LadderRow, widths: dict[str, int]) -> str:
    """A row with its verdict, which begins in the last column where a plan that does not fit has no speed."""
    values = {name: translate(getattr(step, name)) for name in widths}
    if not values.get("tokens_per_s"):
        values.pop("tokens_per_s", None)
    line = " ".join([_mark(step), *(padded(value or "-", widths[name]) for name, value in values.items())])
    reason = translate(step.verdict).replace("likely fits", "likely")
    if step.fits and step.nvme_gib:
        reason += f", NVMe {step.nvme_gib} GiB"
    return f"{line}{'  ' if cell_len(line) + cell_len(reason) + 2 <= WIDTH else ' '}{reason}"


def _print_probes(view: AnswerView, console: Console) -> None:
    _paragraph(console, view.probes, style="bold")
    for probe in view.probe_rows:
        checkpointing = padded(translate(probe.checkpointing), 4)
        line = f"  {probe.rung:<19} {probe.batch:>5} {checkpointing}  {translate(probe.outcome)}"
        sentence(console, line, hang=34)
    if view.probes_end:
        sentence(console, view.probes_end)


def _print_changes(view: AnswerView, console: Console, *, details: bool) -> None:
    shown = view.change_rows if details else view.change_rows[:_FEW_CHANGES]
    title = view.changes
    if len(shown) < len(view.change_rows):
        title = phrase("{title} ({count} more: --details)", title=title, count=len(view.change_rows) - len(shown))
    _paragraph(console, title)
    is_wide = console.width >= WIDTH
    width = max((len(change.flags) for change in shown), default=0) * is_wide
    for change in shown:
        flags = (f"{change.flags:<{width}}", "bold")
        outcome = f"  {translate(change.outcome)}"
        sentence(console, Text.assemble("  ", flags, outcome), hang=width + 4 if is_wide else 5)


_INDENT = 14
"""Columns before the name of a term in an explanation: its figure and the unit."""


def render_explanation(explanation: Explanation, console: Console) -> None:
    """Print every section of an explanation, the terms of each by falling size, and the moments of a step."""
    candidate = explanation.candidate
    plan, memory = candidate.plan, candidate.memory
    title = f"{plan_title(plan)}, micro batch {plan.micro_batch_size}, {checkpointing_title(plan)}"
    sentence(console, title, style="bold")
    probability = f"the probability that it fits is {chance(candidate.fit.probability)}"
    sentence(console, f"Evidence: {candidate.estimate.evidence}; {probability}.", style="dim")
    for section in explanation.sections:
        _paragraph(console, section_title(explanation, section), style="bold")
        for term in sorted(section.terms, key=_size, reverse=True):
            _print_term(term, console)
    if any(section.name == "gpu_memory" for section in explanation.sections):
        _paragraph(console, "Allocated at each moment of a step; the largest is the peak", style="bold")
        for phase in sorted(memory.phases, key=lambda phase: -phase.allocated_bytes):
            cells(console, f" {gib(phase.allocated_bytes) + ' GiB':>{_INDENT - 3}}  {phase_title(phase.name)}")


def section_title(explanation: Explanation, section: Section) -> str:
    """The total of a section and what it is."""
    memory = explanation.candidate.memory
    if section.name == "time":
        return f"{seconds(section.total)} for one optimizer step"
    what = {
        "gpu_memory": f"of each GPU's memory, at the peak ({phase_title(memory.peak.name)})",
        "gpu_cache": "that PyTorch also keeps cached until an allocation would fail; nvidia-smi shows it",
        "host_memory": "of host RAM per node while training "
        f"({gib(memory.host_loading_bytes_per_node)} GiB while the model loads)",
        "nvme": "of NVMe per node",
    }[section.name]
    return f"{gib(int(section.total))} GiB {what}"


def _size(term: Term) -> float:
    return term.size_bytes if isinstance(term, MemoryTerm) else term.seconds


def _print_term(term: Term, console: Console) -> None:
    figure = f"{gib(term.size_bytes)} GiB" if isinstance(term, MemoryTerm) else seconds(term.seconds)
    cells(console, f" {figure:>{_INDENT - 3}}  {component_title(term.name)}")
    details = [f"= {in_words(term)}"]
    if numbers := with_numbers(term):
        details.append(f"= {numbers}")
    elif term.inputs:
        known = [f"{head(term.symbols.get(symbol, symbol))} {number(value)}" for symbol, value in term.inputs]
        details.append(f"with {', '.join(known)}")
    if not isinstance(term, MemoryTerm):
        hidden = f", and {seconds(term.hidden_s)} hidden behind other work" if term.hidden_s else ""
        details.append(f"keeps busy: {term.resource}{hidden}")
    details += [f"source: {term.source}"] if term.source else []
    details += [f"not covered: {term.not_covered}"] if term.not_covered else []
    for detail in details:
        sentence(console, " " * (_INDENT - 1) + detail, style="dim", hang=_INDENT + 1)
