"""The cause of a failure as a document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...estimators.json_form import from_attributes
from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.finding import Wait
from ...probes.failures.messages import messages
from ...probes.failures.scan import MOST_EARLIER
from ...validate.lint.linted_config import ADVISE
from ..answer.memory_change import MARGIN, MemoryForecast
from ..command.advice import CommandAdvice
from ..command.failed_training import missing, model_words, next_words
from ..document import blocks as doc
from ..text.labels import phase_title
from ..text.units import capitalised, counted_noun, ended, gib, numbered, printable, rate
from .command_advice import advice_verdict, changes_to_make, failed_proofs, gain, today_and_advised
from .error_place import LONGEST, error_place, verb
from .explanation import assumed_line
from .failed_memory import WITHOUT_SAMPLES, memory_at_failure
from .known_cause import cause_and_fix, course_of_loss
from .named_fix import upgrade
from .runs import next_command
from .why_report import KnownMessage, PhaseOfFailure, WhyReport, outcome, why_report

_MOST_LISTED = 4
"""Errors that are listed beside the cause."""

_OTHER_GPU = 0.06
"""Least difference of two sizes of a GPU that are not the same one's: a driver keeps a part of it."""


def why_document(
    name: str,
    found: Diagnosis,
    forecast: MemoryForecast | None,
    advice: CommandAdvice | None = None,
    *,
    logs: Sequence[str] = (),
    config: str = "",
    given: Mapping[str, Any] = MappingProxyType({}),
    note: str = "",
    reader: str = "",
    has_command: bool = False,
) -> doc.Document:
    """Return the cause, the fix, and the evidence of a log; with a configuration, the changes that fit; with a command,
    its dry runs as it is and as advised; without both the command that finds what fits.

    logs, config: the paths as they were typed, for that command. has_command: whether the command of the training was
        typed, so that none is asked for.
    given: the user's options. note: what is missing for a prediction. reader: the command that reads the file, which is
    no log; "" for a log.
    """
    report = why_report(name, found, forecast, advice)
    first, message, phase = found.first, report.message, report.phase
    blocks: list[doc.Block]
    tone: doc.Tone = "bad"
    if first is None or message is None:
        is_good = first is None and found.ended and found.course is None
        verdict, tone = _no_cause(found), "good" if is_good else "unsure"
        blocks = [*_unknown(report, found, reader), *_note(note)]
    else:
        where = f", {phase.title}" if phase else ""
        verdict = capitalised(f"{_odd_rank(found) or first.headline}{where}")
        is_named = {"model", "gpus"} <= given.keys()
        advise = model_words(found, given) if forecast is None or is_named else forecast.advise
        contradiction = "" if forecast is None else _contradiction(found, forecast)
        predicted = "" if forecast is None or contradiction else _predicted_fix(found, forecast)
        blocks = [
            *cause_and_fix(found, advise, config, predicted),
            doc.Gap(),
            *error_place(found, report.log),
            *memory_at_failure(found),
            *([] if _absent(found) else _collective(report)),
            *_effects(report),
            *_other_gpu(found, forecast, advice),
            *([] if forecast is None else _forecast(forecast, advise, phase=phase, contradiction=contradiction)),
            *([] if advice is None else _training(advice, report)),
            *_note(note),
            *([] if advice is not None or has_command else _next(found, logs or [name], config, given)),
        ]
    return doc.Document(
        subject=name, verdict=ended(verdict), tone=tone, blocks=[*blocks, *_earlier(found)], data=report
    )


def _predicted_fix(found: Diagnosis, forecast: MemoryForecast) -> str:
    """Return the fix by the prediction, so that it names no change that this calls too little; "" if the prediction is
    not about what ran out."""
    if found.message is None or not found.message.is_lack:
        return ""
    if forecast.changes:
        return f"{capitalised(forecast.changes[0].what)}, which is predicted to fit (below)"
    return "" if forecast.fits else f"No single change is predicted to fit; `{ADVISE}` looks for other plans"


def _earlier(found: Diagnosis) -> Iterator[doc.Block]:
    """Yield what came of the earlier trainings of the log."""
    if not found.earlier:
        return
    yield doc.Gap()
    others = "at least " * (len(found.earlier) == MOST_EARLIER) + counted_noun(len(found.earlier), "earlier run")
    yield doc.Sentence(f"This is the last run of the file, from line {found.begin}. It has {others}:")
    for run in found.earlier[-_MOST_LISTED:]:
        yield doc.Sentence(f"  from line {run.begin}: {ended(outcome(run))}")


def _note(note: str) -> Iterator[doc.Block]:
    if note:
        yield doc.Gap()
        yield doc.Sentence(note, "yellow")


_ONLY_EFFECTS = "The cause is not known: the log shows its effects"


def _no_cause(found: Diagnosis) -> str:
    if found.first is not None:
        if found.first.role != "effect":
            return found.first.headline
        failed = found.first.failed_rank
        return f"{capitalised(failed)}: its error is not in the log" if failed else _ONLY_EFFECTS
    if found.ended:
        return "The training ended" if found.course else "The training ended normally"
    if found.place is not None:
        # The bar of the Trainer, whose end is known, tells the number of steps.
        is_whole = not 0 < found.place.step < found.place.of
        ended_so = ", or ended: its own loop prints no end that is known here" if is_whole else ""
        others = "still running, hung, killed" if is_whole else "still running, hung, or killed"
        return f"The log stops at {found.place} without an error: {others}{ended_so}"
    lines = found.lines - found.begin + 1
    return f"No error was found in {counted_noun(lines, 'line')}" if found.last_line.strip() else "The log is empty"


def _unknown(report: WhyReport, found: Diagnosis, reader: str) -> Iterator[doc.Block]:
    if reader:
        yield from next_command("It is not a log, and is read by:", reader)
        return
    if found.first is None:
        if found.course is not None:
            yield from course_of_loss(found.course)
            yield doc.Gap()
        if report.last_line.strip():
            if not found.ended:
                yield doc.Sentence("The log may be of another process, or cut off: the output of every rank is needed.")
            if report.survived:
                places = [
                    f"{each.text} ({each.log and f'{each.log}, '}line {each.line})"
                    for each in report.survived[:_MOST_LISTED]
                ]
                yield doc.Sentence(ended(f"Survived: {'; '.join(places)}"))
            yield doc.Sentence("Its last line:")
            yield doc.Sentence(f"  {printable(report.last_line)[:LONGEST]}")
        return
    if found.first.role != "effect":
        yield doc.Sentence("This exception is none of the known messages: its cause and its fix are not known.")
        if report.other_release is not None:
            yield doc.Sentence(f" {upgrade(report.other_release)}", mark="Try:", mark_style="bold")
    elif found.first.message is not None:
        fix = found.first.message.filled(found.first.named).fix
        yield doc.Sentence(f" {ended(fix)}", mark="Next:", mark_style="bold")
    yield doc.Gap()
    yield from error_place(found, report.log)
    yield from _effects(report)


def _compared(waits: Sequence[Wait]) -> str:
    """Return where ranks wait that wait in different operations; "" if all wait in the same one."""
    if len(waits) < 2:
        return ""
    most, *others = waits
    listed = ", ".join(f"{numbered('rank', each.ranks)} in {each}" for each in others).replace(
        " in ", f" {verb(others[0])} in ", 1
    )
    rest = "the others" if len(most.ranks) > 1 else numbered("rank", most.ranks)
    odd = others[0]
    where = f"{listed}, {rest} in {most}"
    if len(others) > 1 or odd.group != most.group:
        return where
    is_tie, is_same = len(odd.ranks) == len(most.ranks), odd.operation == most.operation
    if is_same and (is_tie or (odd.sequence or 0) < (most.sequence or 0)):
        behind = min(odd, most, key=lambda each: each.sequence or 0).ranks
        return f"{where}: {numbered('rank', behind)} {'is' if len(behind) == 1 else 'are'} behind"
    if is_tie:
        return f"{where}: they took different paths, and the log does not tell which one is wrong"
    return f"{where}: {numbered('rank', odd.ranks)} took another path"


def _odd_rank(found: Diagnosis) -> str:
    """Return which ranks waited elsewhere or not at all, if the cause is the timeout of a collective operation; "" if
    it is another one, or all waited in the same operation."""
    return (_compared(found.waits) or _absent(found)) if found.timed_out else ""


def _absent(found: Diagnosis) -> str:
    """Return which ranks waited, and which of the log reported no timeout; "" if all did."""
    if not found.timed_out or len(found.waits) != 1 or not found.silent:
        return ""
    wait = found.waits[0]
    waiting, silent = numbered("rank", wait.ranks), numbered("rank", found.silent)
    return f"{waiting} waited {wait.minutes:g} minutes in {wait}; {silent} reported no timeout"


def _collective(report: WhyReport) -> Iterator[doc.Block]:
    if report.collective is not None:
        yield doc.Sentence(f"The timeout is {report.collective.minutes:g} minutes.")


def _effects(report: WhyReport) -> Iterator[doc.Block]:
    if report.effects:
        yield doc.Sentence(ended(f"Also in the log: {'; '.join(report.effects[:_MOST_LISTED])}"), "dim")


def _contradiction(found: Diagnosis, forecast: MemoryForecast) -> str:
    """Return why the prediction is not of the training of the log, and what to correct; "" if it may be."""
    if forecast.is_below_log:
        needed = None if found.memory is None else found.memory.needed_bytes
        shown = "ran out of memory" if needed is None else f"needed at least {gib(needed)} GiB"
        has_samples = found.phase is None or found.phase.name not in WITHOUT_SAMPLES
        options = f"{'--seq-len, --micro-batch, ' if has_samples else ''}--model, --gpus or {forecast.file}"
        return f"That is probably not the training of the log, which {shown}. Correct {options}."
    steps = 0 if found.first is None else found.first.error.step or found.first.error.steps
    logged = found.memory.total_bytes if found.memory is not None else None
    size, need = logged or forecast.gpu_memory_bytes, forecast.step_bytes_per_gpu
    if not steps or MARGIN * need <= size:
        return ""
    return (
        f"That is not the training of the log: it did {counted_noun(steps, 'step')} on a GPU of {gib(size)} GiB, and "
        f"the optimizer's step alone is predicted to need {gib(need)} GiB. Model, configuration, precision or number "
        "of GPUs differ."
    )


def _forecast(
    forecast: MemoryForecast, advise: str, *, phase: PhaseOfFailure | None, contradiction: str
) -> Iterator[doc.Block]:
    yield doc.Heading("The configuration", "forecast", printed=False)
    need, have = gib(forecast.device_bytes_per_gpu), gib(forecast.gpu_memory_bytes)
    there = "" if forecast.ram_bytes_per_node is None else f"of {gib(forecast.ram_bytes_per_node)} "
    yield doc.Sentence(
        f"{forecast.file} is predicted to need {need} of {have} GiB per GPU (peak: {phase_title(forecast.peak)}) and "
        f"{gib(forecast.host_bytes_per_node)} {there}GiB of RAM per node.",
        "bold",
    )
    if forecast.assumed:
        yield doc.Sentence(assumed_line(forecast.assumed))
    failed, most = forecast.phase_allocated_bytes_per_gpu, forecast.peak_allocated_bytes_per_gpu
    if phase is not None and failed is not None and failed != most:
        yield doc.Sentence(f"Predicted for tensors {phase.title}: {gib(failed)} GiB; at the peak: {gib(most)} GiB.")
    if contradiction:
        yield doc.Sentence(contradiction, "yellow")
        return
    yield doc.Sentence(_what_fits(forecast))
    loads = phase is not None and phase.name == "load"
    if forecast.lacks == "host" and loads and (whole := forecast.whole_load_bytes_per_node):
        yield doc.Sentence(f"If every rank loads the whole model, it needs {gib(whole)} GiB of RAM per node.", "yellow")
    if not forecast.changes:
        lacking = "GPU memory" if forecast.lacks == "gpu" else "RAM"
        yield doc.Sentence(
            f"No single change of the configuration both fits and needs clearly less {lacking}; `{advise}` looks for "
            "other plans."
        )
        return
    rows = [
        doc.Row(
            [
                change.what,
                doc.make_figure(change.device_bytes_per_gpu, gib),
                doc.make_figure(change.host_bytes_per_node, gib),
                doc.Figure(f"{rate(change.tokens_per_second)} ({change.speed:.2f} x)", change.tokens_per_second),
            ]
        )
        for change in forecast.changes
    ]
    unless = "" if forecast.fits_ram is not None else " if the node has the RAM (--ram)"
    yield doc.Sentence(f"Changes that fit{unless}, by the memory that they save for the speed that they cost:")
    yield doc.Table(["change", "GPU GiB", "RAM GiB", "tokens/s"], rows)
    if forecast.insufficient:
        where = "GPU" if forecast.lacks == "gpu" else "node"
        needs = (f"{what} ({gib(need)} GiB per {where})" for what, need in forecast.insufficient.items())
        yield doc.Sentence(f"Too little alone: {'; '.join(needs)}.")
    first = forecast.changes[0]
    lines = [f"{name}={value}" for name, value in first.arguments.items()]
    where = f" (in place of the same keys of {forecast.file})" if first.file else ""
    yield doc.Sentence(f"To paste, for {first.what}{where}:")
    yield doc.Code([*lines, *(line[1:] for line in json.dumps(first.file, indent=1).splitlines()[1:-1])])
    if first.removed:
        yield doc.Sentence(f"Remove {', '.join(first.removed)} from {forecast.file}.")


def _what_fits(forecast: MemoryForecast) -> str:
    """Return which of the two memories suffices, and what follows for the one that ran out."""
    gpu, ram = forecast.fits_gpu, forecast.fits_ram
    sentences = ["It fits the GPU." if gpu else "It does not fit the GPU."]
    if ram is not None:
        both = "It fits both." if gpu else "It fits neither."
        sentences = [
            both if gpu == ram else f"It fits the {'GPU' if gpu else 'RAM'}, but not the {'RAM' if gpu else 'GPU'}."
        ]
    if forecast.lacks == "host" and not ram:
        sentences.append(f"With the error of the prediction, {gib(forecast.ram_to_fit_bytes)} GiB of RAM are enough.")
    if forecast.lacks == "host" and ram:
        sentences.append("Something else took the RAM: another process, a container's limit, the script's data.")
    if forecast.lacks == "host" and not gpu:
        sentences.append("More RAM alone does not help: the GPU's memory would run out next.")
    if forecast.lacks == "gpu" and ram is False:
        sentences.append("More GPU memory alone does not help: the RAM would run out.")
    return " ".join(sentences)


def _next(found: Diagnosis, logs: Sequence[str], config: str, given: Mapping[str, Any]) -> Iterator[doc.Block]:
    """Yield the command that finds what fits; nothing if no other plan would help."""
    if found.message is None or not found.message.is_lack:
        return
    line = next_words(found, logs, config, given)
    unknown = missing(line)
    title = "Find what fits, by a run of the command on a simulated GPU"
    yield from next_command(f"{title} ({unknown}):" if unknown else f"{title}:", line)


def _training(advice: CommandAdvice, report: WhyReport) -> Iterator[doc.Block]:
    today, peak = advice.today, advice.today.result.peak.phase
    need, have = gib(today.required_device_bytes_per_gpu), gib(today.run.cluster.gpu.memory_bytes)
    yield doc.Heading("The command", "command", printed=False)
    other = (
        "" if report.phase is None or report.phase.name == peak else f"; the log shows the failure {report.phase.title}"
    )
    yield doc.Sentence(
        f"The dry run of the command needs {need} of {have} GiB, with its peak in {peak.replace('_', ' ')}{other}."
    )
    if today.fit.fits:
        yield doc.Sentence(
            "That fits, so the failed training differs from the command: longer samples, another machine, another "
            "process on the GPU."
        )
    yield from today_and_advised(advice)
    if advice.recommended is None and not advice.is_needless:
        verdict = advice_verdict(advice)
        yield doc.Sentence(verdict.headline, "bold")
        yield from verdict.sentences
        yield from failed_proofs(advice)
    yield from gain(advice)
    yield from changes_to_make(advice)


def _other_gpu(found: Diagnosis, forecast: MemoryForecast | None, advice: CommandAdvice | None) -> Iterator[doc.Block]:
    """Yield that the failed training ran on another GPU than the one of the prediction."""
    logged = None if found.memory is None else found.memory.total_bytes
    asked = forecast.gpu_memory_bytes if forecast is not None else advice and advice.today.run.cluster.gpu.memory_bytes
    if logged is not None and asked and abs(logged - asked) > _OTHER_GPU * logged:
        text = f"The GPU of the log has {gib(logged)} GiB, and the one that was asked about {gib(asked)} GiB."
        yield doc.Gap()
        yield doc.Sentence(text, "yellow")


def known_messages() -> list[KnownMessage]:
    """Return the table of messages, with what only a log fills left out of cause and fix."""
    return [from_attributes(KnownMessage, message.filled({})) for message in messages()]


def message_list() -> Iterator[doc.Block]:
    """Yield the table of messages by area."""
    area = ""
    for message in known_messages():
        if message.area != area:
            area = message.area
            yield doc.Heading(area, area)
        yield doc.Sentence(message.title, "bold")
        yield doc.Sentence(f"  {'Cause' if message.certain else 'Usual causes'}: {ended(message.cause)}")
        yield doc.Sentence(f"  Fix: {ended(message.fix)}")
