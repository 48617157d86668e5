"""Terminal report on a file of another tool."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ...estimators.phrase import Phrase, phrase
from ..answer.verdict import batch_sentence, need_sentence, speed_sentence, subject_of, tone_of
from ..render.answer import TONES
from ..render.lint import render_diff, render_findings
from ..search.candidate import Candidate, fits_sentence
from ..text.labels import plan_title
from ..text.language import translate
from ..text.lines import blank, capitalised, commands, ended, sentence
from ..text.units import printable, times
from .answer import ImportAnswer
from .figures import ImportFigures

_MOST_KEYS = 12
"""Maximum number of keys listed per kind. The JSON has all."""


def render_import(answer: ImportAnswer, console: Console) -> None:
    """Print the file, the figures of its run, a better plan, errors, and the changes to the file."""
    run, name = answer.run, printable(str(answer.source.path))
    title: str = phrase("{file} is {kind}.", file=name, kind=answer.form.title)
    if answer.source.line is not None:
        title = phrase("{file} is a script that trains with {tool}.", file=name, tool=run.tool)
    sentence(console, title, style="bold")
    if answer.source.started_by is not None:
        sentence(console, phrase("{script} starts it.", script=printable(str(answer.source.started_by.path))))
    if answer.figures is not None:
        for line in subject_of(answer.figures.question, answer.form.tool or "TRL"):
            sentence(console, line)
        _figures(answer.figures, console, leaves_batch=run.leaves_batch_to_script)
    for remark in answer.remarks:
        sentence(console, capitalised(ended(printable(translate(remark)))))
    if run.uncounted and not run.obstacle:
        sentence(console, phrase("Options that the prediction does not use: {names}.", names=_listed(run.uncounted)))
    if run.unknown and answer.form.name != "accelerate":  # its unknown keys are faults
        sentence(console, phrase("Unknown to {tool}: {names}.", tool=run.tool, names=_listed(run.unknown)))
    _wrong(answer, console)
    _changes(answer, console)


def _listed(keys: Sequence[str]) -> str:
    names, more = ", ".join(printable(key)[:90] for key in keys[:_MOST_KEYS]), len(keys) - _MOST_KEYS
    return phrase("{names} and {count} more", names=names, count=more) if more > 0 else names


def _figures(figures: ImportFigures, console: Console, *, leaves_batch: bool) -> None:
    blank(console)
    better = figures.recommended
    if figures.as_is is None:
        sentence(console, phrase("As it is, it cannot run: {reason}.", reason=figures.refusal), style="bold red")
    else:
        _plan(phrase("As it is"), figures.as_is, figures, console)
    if better is not None and figures.is_better:
        _plan(phrase("Better"), better, figures, console)
        by_script = ("micro_batch_size", "gradient_checkpointing")
        if leaves_batch and any(getattr(better.plan, name) != getattr(figures.plan, name) for name in by_script):
            sentence(console, phrase("The script must set micro batch and checkpointing: they are not in this file."))
        _gain(figures, better, console)
    elif better is not None:
        sentence(console, phrase("No plan with the same training and global batch is known to be faster."))
    elif figures.command:
        batch = figures.question.workload.global_batch_size
        sentence(console, phrase("No plan fits with its global batch of {count} samples.", count=batch))
        if figures.lacking is not None:
            sentence(console, figures.lacking)
        sentence(console, phrase("This command shows which changes help:"))
        commands(console, [figures.command])


def _gain(figures: ImportFigures, better: Candidate, console: Console) -> None:
    """The advantage of the better plan."""
    if figures.as_is is None:
        sentence(console, phrase("It is better because it can run."))
        return
    ratio = times(better.tokens_per_s / figures.as_is.tokens_per_s)
    if figures.as_is.fit.fits:
        sentence(console, phrase("It is {ratio} as fast.", ratio=ratio))
    else:
        text = phrase("It is better because it fits; it is {ratio} as fast as the run would be.", ratio=ratio)
        sentence(console, text)


def _plan(title: Phrase, candidate: Candidate, figures: ImportFigures, console: Console) -> None:
    verdict = fits_sentence(plan_title(candidate.plan), candidate.fit)
    text = phrase("{title}: {verdict}", title=title, verdict=verdict)
    sentence(console, text, style=TONES[tone_of(candidate.fit)])
    for figure in (batch_sentence, need_sentence, speed_sentence):
        sentence(console, f"  {translate(figure(figures.question, candidate))}", hang=4)


def _wrong(answer: ImportAnswer, console: Console) -> None:
    blank(console)
    for fault in answer.run.faults:
        sentence(console, Text(capitalised(ended(printable(fault))), style="bold red"))
    if answer.report is not None and answer.run.deepspeed is not None:
        part = answer.run.deepspeed
        render_findings(printable(str(part.path or part.name)), answer.report, console)


def _changes(answer: ImportAnswer, console: Console) -> None:
    if answer.unwritable is not None:
        blank(console)
        name, reason = printable(str(answer.source.path)), ended(printable(answer.unwritable.what))
        sentence(console, phrase("The change cannot be written into {file}: {reason}", file=name, reason=reason))
        sentence(console, capitalised(ended(printable(answer.unwritable.fix))))
    if not answer.files:
        return
    blank(console)
    sentence(console, phrase("Written.") if answer.written else phrase("What would change:"), style="bold")
    for file in answer.files:
        old, new = printable(file.old_name) or translate(phrase("a new file")), printable(str(file.new_path))
        render_diff(old, new, file.old_text, file.new_text, console)
    if not answer.written:
        name = printable(str(answer.source.path))
        sentence(console, phrase("Write it with -o FILE; {file} itself only with --force.", file=name))
