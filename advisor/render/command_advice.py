"""The advice for a script: what it trains today, the best plan, and exactly what to change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from ...ds_configs.files import check_write, write_text
from ...ds_configs.launch_commands import shell_line
from ...ds_configs.read import offload_device_in
from ...ds_configs.training_script import python_source
from ...estimators.errors import DsAdviseError
from ..answer.command_answer import CommandAnswer
from ..answer.facts import answer_subject
from ..answer.start import start_settings
from ..answer.verdict import answer_verdict, fit_tone
from ..command.advice import CommandAdvice, Proof
from ..document import blocks as doc
from ..question.cluster import gpus_argument
from ..text.labels import checkpointing_title, plan_title
from ..text.output import Output
from ..text.units import gib, rate, seconds, times
from .answer import MOST_LINES
from .ladder import ladder_notes, ladder_table
from .runs import START, next_command

if TYPE_CHECKING:
    from rich.console import Console


def command_advice_document(answer: CommandAdvice, *, details: bool = False) -> doc.Document:
    """Return the advice, with at most `MOST_LINES` lines unless `details`: the plans that do not fit are left out
    first, then the last command if it repeats that of the changes, then the table of plans."""
    from ..document.terminal import line_count  # imported here: the page has no terminal library

    verdict = answer_verdict(answer.kept if answer.is_needless else answer)
    shown = [fact for fact in verdict.facts if not answer.is_needless or fact.title != "note"]
    for left_out in accumulate(((), ("not fitting",), ("next",), ("plans",), ("facts",))):
        facts = [] if "facts" in left_out else [doc.Facts(shown)]
        document = doc.Document(
            subject=" · ".join(answer_subject(answer.question)),
            verdict=_kept(answer) if answer.is_needless else verdict.headline,
            tone=fit_tone(answer.today.fit) if answer.is_needless else verdict.tone,
            blocks=[
                *verdict.sentences,
                *gain(answer),
                *today_and_advised(answer),
                *facts,
                *changes_to_make(answer),
                *_plans(answer, left_out, details=details),
                *_evidence(answer),
                *(_next(answer) if "next" not in left_out or not any(changes_to_make(answer)) else ()),
            ],
            data=answer.to_json,
        )
        if details or line_count(document) <= MOST_LINES:
            break
    return document


def today_and_advised(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield today's training beside the advised one, both by their dry runs."""
    sides = {"today": _facts(answer.today)}
    if answer.proof is not None and answer.proof.answer is not None and not answer.is_needless:
        sides["advised"] = _facts(answer.proof.answer)
    yield doc.Heading("Today and advised", "today", printed=False)
    rows = [doc.Row([name, *(side[name] for side in sides.values())]) for name in sides["today"]]
    yield doc.Table(["", *sides], rows)
    for remark in answer.remarks:
        yield doc.Sentence(remark, "yellow")


def gain(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield how much faster the advised plan is, if today's fits."""
    if not answer.is_needless and answer.speedup is not None and answer.today.fit.fits:
        yield doc.Sentence(f"The advised plan is {times(answer.speedup)} as fast as today's.", "good")


def _kept(answer: CommandAdvice) -> str:
    today, facts = answer.today, _facts(answer.today)
    need, have = gib(today.required_device_bytes_per_gpu), gib(today.run.cluster.gpu.memory_bytes)
    assert today.step is not None
    speed = f"{rate(today.step.time.tokens_per_s)} {today.unit}/s"
    return f"Keep today's plan, {facts['strategy']}: {speed}, {need} of {have} GiB per GPU."


def _facts(answer: CommandAnswer) -> dict[str, str]:
    engine, observed, step = answer.engine, answer.observed, answer.step
    stage = f"ZeRO-{engine.zero_stage}" if engine.zero_stage else "no ZeRO"
    devices = [f"{name} on {device}" for name in ("optimizer", "param") if (device := _offload(answer, name)) != "none"]
    total = engine.micro_batch_size * engine.gradient_accumulation_steps * engine.data_parallel_size
    have = gib(answer.run.cluster.gpu.memory_bytes)
    return {
        "strategy": ", ".join([stage, *devices]),
        "batch": f"{engine.micro_batch_size} x {engine.gradient_accumulation_steps}, {total} a step",
        "checkpointing": "on" if observed.recomputes else "off",
        "GPU": f"{gib(answer.required_device_bytes_per_gpu)} of {have} GiB, {answer.fit.reason}",
        "host RAM": f"{gib(answer.required_host_bytes_per_node)} GiB per node",
        "step": "unknown"
        if step is None
        else f"{seconds(step.time.step_s)}, {rate(step.time.tokens_per_s)} {answer.unit}/s",
    }


def _offload(answer: CommandAnswer, name: str) -> str:
    return str(offload_device_in(answer.engine.config, f"offload_{name}"))


def changes_to_make(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield what to change: files, lines, and the command."""
    changed, chosen = answer.changed, answer.recommended
    if changed is None or chosen is None or answer.is_needless:
        return
    yield doc.Heading("What to change", "changes", printed=False)
    names = ", ".join(answer.files) if answer.files else ", ".join(changed.files)
    if changed.files:
        yield doc.Sentence(f"Wrote {names}." if answer.files else f"Write {names} (--json has the text).")
    for line in changed.lines:
        place = _place(line.place)
        yield doc.Sentence(f"In {place}: {line.text}" if place else f"In the script: {line.text}")
    words = answer.start
    if changed.gives_config:
        words = ["ds-advise", "launch", next(iter(changed.files)), "--", *changed.words]
    stays = tuple(words) == answer.words
    yield doc.Sentence("The command stays as it is:" if stays else "Then the command is:")
    yield doc.Commands([*(f"export {setting}" for setting, _ in start_settings(answer, chosen)), shell_line(words)])


def _place(place: str) -> str:
    """FILE:LINE with the file's path from the working folder if it is below."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place


def _plans(answer: CommandAdvice, left_out: tuple[str, ...], *, details: bool) -> Iterator[doc.Block]:
    if "plans" in left_out:
        return
    yield doc.Heading("Every strategy", "ladder", printed=False)
    yield ladder_table(
        answer, only_fitting="not fitting" in left_out, today=answer.today_row, keeps_today=answer.is_needless
    )
    if answer.today_row is not None and (differences := answer.today_differences):
        listed = ", ".join(
            f"{name} {_value(today)} (there {_value(row)})" for name, (today, row) in differences.items()
        )
        yield doc.Sentence(f" Today differs from the row {answer.today_row.strategy}: {listed}.", "dim")
    for note in ladder_notes(answer, all_candidates=False, details=details):
        yield doc.Sentence(f" {note}", "dim")


def _value(value: object) -> str:
    return f"{value:,}" if type(value) is int else python_source(value)


def _evidence(answer: CommandAdvice) -> Iterator[doc.Block]:
    yield doc.Heading("Evidence", "evidence", printed=False)
    for proof in answer.proofs:
        if proof.problem:
            yield doc.Sentence(f"{_title(proof)} was tried: {proof.problem}.", "yellow")
    if answer.proof is not None and answer.proof.answer is not None:
        text = "Evidence: dry runs of the command as it is and as advised; the other plans are predicted."
    else:
        text = "Evidence: a dry run of the command as it is; the plans are predicted."
    yield doc.Sentence(text, "dim")


def _next(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield the next command: the one that starts the training, or if nothing fits, shows its memory."""
    changed, words = answer.changed, answer.words
    given = [] if answer.given_config is None else [str(answer.given_config)]
    if changed is None and not answer.is_needless:
        gpus = ["--gpus", gpus_argument(answer.question.cluster)]
        line = shell_line(["ds-advise", "dry-run", *given, *gpus, "--", *words])
        yield from next_command("See what takes the memory:", line)
    elif changed is None or answer.is_needless:
        yield from next_command(START, shell_line(["ds-advise", "launch", *given, "--", *words]))
    elif not changed.gives_config:  # else it is the command of the changes
        yield from next_command(START, shell_line(["ds-advise", "launch", "--", *changed.words]))


def _title(proof: Proof) -> str:
    plan = proof.candidate.plan
    return f"{plan_title(plan)} with micro batch {plan.micro_batch_size} and {checkpointing_title(plan)}"


def deliver_command_advice(
    answer: CommandAdvice, folder: Path, output: Output, *, writes: bool, force: bool, details: bool = False
) -> int:
    """Write the new files, show the advice, and return the exit code. A file with other content is refused before
    anything is written or shown. If writing fails, the advice is shown before the error is raised."""
    from dataclasses import replace

    failure: DsAdviseError | None = None
    if writes and answer.changed is not None and not answer.is_needless:
        for path, text in answer.changed.files.items():
            check_write(text, folder / path, force=force)
        try:
            for path, text in answer.changed.files.items():
                write_text(text, folder / path, force=force)
                answer = replace(answer, files=(*answer.files, path))
        except DsAdviseError as error:
            failure = error

    def render(console: Console) -> None:
        from ..document.terminal import print_document  # imported here: JSON needs no terminal library

        print_document(command_advice_document(answer, details=details), console)

    output.show(answer.to_json, render)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None else 1
