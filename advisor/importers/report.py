"""The answer on a file of another tool in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ..render.lint import render_diff, render_findings
from ..search.candidate import LIKELY, Candidate, chance
from ..text.labels import checkpointing_title, cluster_title, method_title, plan_title
from ..text.lines import blank, capitalised, commands, ended, printable, sentence
from ..text.units import gib, rate, rough_rate, times
from .answer import ImportAnswer
from .figures import ImportFigures

_MOST_KEYS = 12
"""Keys of a kind that are listed; JSON has all."""


def render_import(answer: ImportAnswer, console: Console) -> None:
    """The file, the needs of its run, a better plan, errors, and the changes to the file."""
    run, name = answer.run, printable(str(answer.source.path))
    title = f"a script that trains with {run.tool}" if answer.source.line is not None else answer.form.title
    sentence(console, Text(f"{name} is {title}.", style="bold"))
    if answer.source.started_by is not None:
        sentence(console, f"{printable(str(answer.source.started_by.path))} starts it.")
    if answer.figures is not None:
        _figures(answer.figures, console, leaves_batch=run.leaves_batch_to_script)
    for remark in answer.remarks:
        sentence(console, capitalised(ended(printable(remark))))
    if not run.obstacle:
        _listed("Options that the prediction does not use", run.uncounted, console)
    if answer.form.name != "accelerate":  # its unknown keys are faults
        _listed(f"Unknown to {run.tool}", run.unknown, console)
    _wrong(answer, console)
    _changes(answer, console)


def _listed(title: str, keys: Sequence[str], console: Console) -> None:
    if keys:
        more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
        sentence(console, f"{title}: {', '.join(printable(key)[:60] for key in keys[:_MOST_KEYS])}{more}.")


def _figures(figures: ImportFigures, console: Console, *, leaves_batch: bool) -> None:
    workload = figures.workload
    sentence(
        console,
        f"{figures.model.name} · {method_title(workload)} · {workload.precision} · {workload.optimizer} · sequence "
        f"{workload.seq_len} · {cluster_title(figures.cluster)}",
    )
    blank(console)
    if figures.as_is is None:
        sentence(console, Text(f"As it is, it cannot run: {figures.refusal}.", style="bold red"))
    else:
        _plan("As it is", figures.as_is, figures, console)
    better = figures.recommended
    if better is None:
        if figures.command:
            batch = workload.global_batch_size
            sentence(console, f"No plan fits with its global batch of {batch} samples. {figures.lacking}".rstrip())
            sentence(console, "Which changes help, this command shows:")
            commands(console, [figures.command])
    elif figures.is_better:
        _plan("Better", better, figures, console)
        by_script = ("micro_batch_size", "gradient_checkpointing")
        if leaves_batch and any(getattr(better.plan, name) != getattr(figures.plan, name) for name in by_script):
            sentence(console, "The script must set the micro batch and the checkpointing: they are not in this file.")
        _gain(figures, better, console)
    else:
        sentence(console, "No plan with the same training and global batch is known to be faster.")


def _gain(figures: ImportFigures, better: Candidate, console: Console) -> None:
    """What is better about it."""
    if figures.as_is is None:
        sentence(console, "It is better because it can run.")
        return
    ratio = f"{times(better.tokens_per_s / figures.as_is.tokens_per_s)} as fast"
    fits = figures.as_is.fit.fits
    sentence(
        console, f"It is {ratio}." if fits else f"It is better because it fits; it is {ratio} as the run would be."
    )


def _plan(title: str, candidate: Candidate, figures: ImportFigures, console: Console) -> None:
    plan, fit, time = candidate.plan, candidate.fit, candidate.time
    fits = fit.fits
    unsure = "likely fits" if fit.probability >= LIKELY else "unlikely to fit"
    verdict = fit.verdict if fits or fit.verdict == "does not fit" else f"{unsure} ({chance(fit.probability)})"
    steps = plan.gradient_accumulation_steps
    batch = f"micro batch {plan.micro_batch_size}" + (f" x {steps} accumulation steps" if steps > 1 else "")
    words = f"{plan_title(plan)}, {batch}, {checkpointing_title(plan)}"
    style = "bold green" if fits else "bold red" if fit.verdict == "does not fit" else "bold yellow"
    sentence(console, Text(f"{title}: {words}: {verdict}.", style=style))
    speed = f"{rate(candidate.tokens_per_s)} tokens/s"
    if (interval := time.tokens_per_s_range) is not None:
        speed += f" ({rough_rate(interval[0])} to {rough_rate(interval[1])})"
    host, offer = candidate.memory.host_bytes_per_node, figures.cluster.gpu.memory_bytes
    gives_back = ", some of which PyTorch's cache gives back," if fits and candidate.device_bytes > offer else ""
    sentence(
        console,
        f"  It needs {gib(candidate.device_bytes)} of {gib(offer)} GiB per GPU{gives_back} and "
        f"{gib(host)} GiB of host RAM per node; about {speed}.",
        hang=4,
    )


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
        what = ended(printable(answer.unwritable.what))
        sentence(console, f"The change cannot be written into {printable(str(answer.source.path))}: {what}")
        sentence(console, capitalised(ended(printable(answer.unwritable.fix))))
    if not answer.files:
        return
    blank(console)
    sentence(console, Text("Written." if answer.written else "What would change:", style="bold"))
    for file in answer.files:
        old, new = printable(file.old_name or "a new file"), printable(str(file.new_path))
        render_diff(old, new, file.old_text, file.new_text, console)
    if not answer.written:
        sentence(console, f"Write it with -o FILE; {printable(str(answer.source.path))} itself only with --force.")
