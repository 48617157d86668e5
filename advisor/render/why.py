"""The cause of a failure, as a document and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...estimators.json_form import SCHEMA_VERSION, from_attributes, to_json
from ...probes.failures.diagnosis import Diagnosis, Finding
from ...probes.failures.messages import ErrorKind, Phase, messages
from ...probes.failures.out_of_memory import MemoryFigures
from ...probes.failures.scan import Frame
from ..answer.failed_training import missing, model_words, next_words
from ..answer.memory_change import MemoryForecast
from ..command.advice import CommandAdvice
from ..document import blocks as doc
from ..document.charts import Bar, Limit, Part, StackedBars
from ..text.labels import phase_title
from ..text.units import capitalised, counted_noun, ended, gib, printable, rate
from .command_advice import changes_to_make, gain, today_and_advised
from .known_cause import cause_and_fix
from .runs import next_command

_LONGEST = 400
"""Characters of a log's last line, and of a line beside the deciding one, that are printed."""

_LIBRARY_FRAMES = 2
"""Last frames of a traceback that are printed, besides the user's own."""

_NEXT_LINES = 2
"""Lines of a message before and after the deciding one that are printed."""

_RANKS = 8
"""Ranks that are listed."""


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """The error that counts."""

    line: int
    """Number of its line in the log."""
    rank: int | None
    process: str
    """What the launcher wrote in front of it; "" if nothing."""
    text: str
    frames: tuple[str, ...]
    """Of its traceback, `file:function code`, the outermost first."""
    own_frame: str
    """The last frame in a file of the user's, `file:line`; "" without one."""
    deciding: int
    """Number of the line that decides the cause."""


@dataclass(frozen=True, kw_only=True)
class KnownMessage:
    """A message of the table."""

    id: str
    area: str
    title: str
    kind: ErrorKind
    certain: bool
    """Whether the message has one cause. If not, `cause` lists the usual ones."""
    cause: str
    fix: str
    source: str


@dataclass(frozen=True, kw_only=True)
class PhaseOfFailure:
    """What the rank was doing when memory ran out."""

    name: Phase
    title: str
    cause: str
    fix: str
    source: str


@dataclass(frozen=True, kw_only=True)
class CollectiveFigures:
    """The collective operation that timed out."""

    sequence: int | None
    """Its number since the start of the group."""
    operation: str
    minutes: float


@dataclass(frozen=True, kw_only=True)
class WhyReport:
    """The cause of a failure."""

    schema_version: int
    log: str
    found: bool
    """Whether the cause is known."""
    lines: int
    steps: int
    """Training steps that the log shows."""
    last_line: str
    """What the log ends with, where a training that hangs waits."""
    error: FirstError | None
    """The first error; null if the log has none."""
    message: KnownMessage | None
    """Null if the error is not known."""
    phase: PhaseOfFailure | None
    memory: MemoryFigures | None
    collective: CollectiveFigures | None
    effects: tuple[str, ...]
    """Known messages that are not the cause."""
    followers: tuple[int, ...]
    """The other ranks that report an error."""
    command: tuple[str, ...]
    """The command that started the training, by the log; empty if it does not show it."""
    forecast: MemoryForecast | None
    """Null without a configuration, and if memory did not run out."""
    training: dict[str, Any] | None
    """The advice for the command, as `ds-advise --gpus SPEC -- COMMAND --json` prints it; null without a command, and
    if memory did not run out."""


def why_report(
    name: str, found: Diagnosis, forecast: MemoryForecast | None, advice: CommandAdvice | None = None
) -> WhyReport:
    """Return the diagnosis of a log as data."""
    first, message, phase, collective = found.first, found.message, found.phase, found.collective
    return WhyReport(
        schema_version=SCHEMA_VERSION,
        log=name,
        found=message is not None,
        lines=found.lines,
        steps=found.steps,
        last_line=found.last_line,
        error=None if first is None else _first_error(first),
        message=None if message is None else from_attributes(KnownMessage, message),
        phase=None if phase is None else from_attributes(PhaseOfFailure, phase),
        memory=found.memory,
        collective=None
        if collective is None
        else CollectiveFigures(sequence=collective[0], operation=collective[1], minutes=collective[2]),
        effects=found.effects,
        followers=found.followers,
        command=found.command,
        forecast=forecast,
        training=None if advice is None else to_json(advice.to_json()),
    )


def _first_error(first: Finding) -> FirstError:
    own = _own_frame(first)
    return from_attributes(
        FirstError,
        first,
        first.error,
        frames=tuple(map(str, first.error.frames)),
        own_frame="" if own is None else f"{own.file}:{own.place}",
    )


def _own_frame(first: Finding) -> Frame | None:
    return next((frame for frame in reversed(first.error.frames) if frame.is_own), None)


def why_document(
    name: str,
    found: Diagnosis,
    forecast: MemoryForecast | None,
    advice: CommandAdvice | None = None,
    *,
    log: str = "",
    config: str = "",
) -> doc.Document:
    """Return the cause, the fix, and the evidence of a log; with a configuration, the changes that fit; with a command,
    its dry runs as it is and as advised; without both the command that finds what fits.

    log, config: the paths as they were typed, for that command.
    """
    report = why_report(name, found, forecast, advice)
    message, phase = report.message, report.phase
    if message is None or found.first is None:
        return doc.Document(
            subject=name, verdict=_no_cause(report), tone="unsure", blocks=[*_unknown(report, found)], data=report
        )
    where = f", {phase.title}" if phase else ""
    blocks: list[doc.Block] = [
        *cause_and_fix(found, model_words(found) if forecast is None else forecast.advise),
        doc.Gap(),
        *_place(report, found.first),
        *_figures(report),
        *_collective(report),
        *_effects(report),
        *([] if forecast is None else _forecast(forecast)),
        *([] if advice is None else _training(advice)),
        *([] if advice is not None else _next(found, log or name, config)),
    ]
    verdict = ended(capitalised(f"{found.first.headline}{where}"))
    return doc.Document(subject=name, verdict=verdict, tone="bad", blocks=blocks, data=report)


def _no_cause(report: WhyReport) -> str:
    if report.error is None:
        return f"No error was found in {counted_noun(report.lines, 'line')}." if report.lines else "The log is empty."
    return "The cause is not known." if not report.effects else "The cause is not known: the log shows its effects."


def _unknown(report: WhyReport, found: Diagnosis) -> Iterator[doc.Block]:
    if found.first is None:
        if report.lines:
            yield doc.Sentence("The log may be of another process, or cut off: the output of every rank is needed.")
            yield doc.Sentence("Its last line:")
            yield doc.Sentence(f"  {printable(report.last_line)[:_LONGEST]}")
        return
    yield doc.Sentence("The first error:")
    yield from _place(report, found.first)
    yield from _effects(report)


def _place(report: WhyReport, first: Finding) -> Iterator[doc.Block]:
    """Yield the place of the error, and there the user's own frame, the last frames, and the lines of the message."""
    rank = "" if first.rank is None else f", rank {first.rank}"
    after = f", after {counted_noun(report.steps, 'logged step')}" if report.steps else ""
    yield doc.Sentence(f"--> {printable(report.log)}:{first.deciding}{rank}{after}", "bold")
    if report.followers:
        listed = ", ".join(map(str, report.followers[:_RANKS]))
        more = f" and {len(report.followers) - _RANKS} more" if len(report.followers) > _RANKS else ""
        one = len(report.followers) == 1
        yield doc.Sentence(f"  It failed first; rank{'' if one else 's'} {listed}{more} followed.")
    yield doc.Excerpt([*_traceback(first), *_message(first)], level="bad")


def _traceback(first: Finding) -> Iterator[doc.ExcerptLine]:
    frames, own = first.error.frames, _own_frame(first)
    shown = sorted({*frames[-_LIBRARY_FRAMES:], *([] if own is None else [own])}, key=frames.index)
    for at, frame in enumerate(shown):
        if at and frames.index(frame) > frames.index(shown[at - 1]) + 1:
            yield doc.ExcerptLine(0, "...")
        place = f"{frame.short_file}:{frame.place}".rstrip(":")
        yield doc.ExcerptLine(frame.number, printable(", in ".join(filter(None, (place, frame.name)))))
        if frame.code:
            yield doc.ExcerptLine(0, f"    {printable(frame.code)}")


def _message(first: Finding) -> Iterator[doc.ExcerptLine]:
    lines = first.error.lines
    place = next(at for at, line in enumerate(lines) if line.number == first.deciding)
    begin = max(0, place - _NEXT_LINES)
    if begin:
        yield doc.ExcerptLine(lines[0].number, _shown(lines[0].text))
    if begin > 1:
        yield doc.ExcerptLine(0, "...")
    for line in lines[begin : place + _NEXT_LINES + 1]:
        if line.number == first.deciding:
            yield doc.ExcerptLine(line.number, printable(line.text).strip(), ">")
        elif line.text.strip():
            yield doc.ExcerptLine(line.number, _shown(line.text))


def _shown(text: str) -> str:
    return printable(text)[:_LONGEST].rstrip()


_HELD = {
    "activations": "tensors",
    "buffers": "allocator's free blocks",
    "runtime": "runtime",
    "optimizer": "other processes",
    "loss": "asked",
}
"""What held the GPU's memory, by the ink of its part; what was asked for is drawn last, and may pass the end."""

_DRAWN = 0.005
"""Least share of the GPU that is drawn: the message rounds its figures, and a bar has fewer than 100 columns."""


def _figures(report: WhyReport) -> Iterator[doc.Block]:
    memory = report.memory
    if memory is None:
        return
    asked, held, reserved, total = memory.asked_bytes, memory.allocated_bytes, memory.reserved_bytes, memory.total_bytes
    free = None if memory.free_bytes is None else f"{gib(memory.free_bytes)} GiB were free"
    sentence = "; ".join(filter(None, [None if asked is None else f"it asked for {gib(asked)} GiB", free]))
    yield doc.Gap()
    if sentence:
        yield doc.Sentence(ended(capitalised(sentence)))
    unused = None if reserved is None or held is None else max(0, reserved - held)
    if total is not None and held is not None:
        sizes = (held, unused, memory.runtime_bytes, memory.other_bytes, asked)
        shown = [(ink, size) for ink, size in zip(_HELD, sizes, strict=True) if size and size >= _DRAWN * total]
        bar = Bar(label="", parts=tuple(Part(name=_HELD[ink], value=size, ink=ink) for ink, size in shown), note="")
        limit = Limit(total, f"{gib(total)} GiB")
        drawing = StackedBars(title="Memory of the GPU, in GiB", bars=(bar,), limit=limit, families=_HELD)
        yield doc.Chart(drawing, printed=drawing)
    if report.message is not None and report.message.id == "gpu-memory" and reserved is not None:
        holds = asked is not None and unused is not None and unused >= asked
        why = "are a small part of the GPU" if holds else "together do not hold the request"
        yield doc.Sentence(f"It is not fragmentation: the allocator's free blocks {why}.")


def _collective(report: WhyReport) -> Iterator[doc.Block]:
    if report.collective is not None:
        number = "" if report.collective.sequence is None else f" number {report.collective.sequence}"
        waited = f"{report.collective.minutes:g}"
        yield doc.Sentence(f"{report.collective.operation}{number} had waited for {waited} minutes.")


def _effects(report: WhyReport) -> Iterator[doc.Block]:
    if report.effects:
        yield doc.Sentence(ended(f"Also in the log: {'; '.join(report.effects[:4])}"), "dim")


def _forecast(forecast: MemoryForecast) -> Iterator[doc.Block]:
    need, have = gib(forecast.device_bytes_per_gpu), gib(forecast.gpu_memory_bytes)
    yield doc.Heading("The configuration", "forecast", printed=False)
    peak = phase_title(forecast.peak)
    yield doc.Sentence(f"{forecast.file} is predicted to need {need} of {have} GiB (peak: {peak}).", "bold")
    if forecast.fits:
        yield doc.Sentence(
            "That fits, so the training differs from the question: a longer sample, no checkpointing, another model."
        )
    if not forecast.changes:
        yield doc.Sentence(f"No single change fits; {forecast.advise} shows what does.")
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
    yield doc.Sentence("One change that fits, the fastest first:")
    yield doc.Table(["change", "GPU GiB", "RAM GiB", "tokens/s"], rows)
    first = forecast.changes[0]
    yield doc.Sentence(f"To paste, for {first.what}:")
    lines = [f"{name}={value}" for name, value in first.arguments.items()]
    yield doc.Code([*lines, *(json.dumps(first.file, indent=1).splitlines() if first.file else ())])


def _next(found: Diagnosis, log: str, config: str) -> Iterator[doc.Block]:
    """Yield the command that finds what fits; nothing if no other plan would help."""
    if not found.ran_out_of_memory or found.message is None or found.message.figures:
        return
    line = next_words(found, log, config)
    unknown = missing(line)
    title = "Find what fits, by a run of the command on a simulated GPU"
    yield from next_command(f"{title} ({unknown}):" if unknown else f"{title}:", line)


def _training(advice: CommandAdvice) -> Iterator[doc.Block]:
    today = advice.today
    need, have = gib(today.required_device_bytes_per_gpu), gib(today.run.cluster.gpu.memory_bytes)
    yield doc.Heading("The command", "command", printed=False)
    yield doc.Sentence(
        f"The dry run of the command needs {need} of {have} GiB, most in {_words(today.result.peak.phase)}."
    )
    if today.fit.fits:
        yield doc.Sentence(
            "That fits, so the failed training differs from the command: longer samples, another machine, another "
            "process on the GPU."
        )
    yield from today_and_advised(advice)
    yield from gain(advice)
    yield from changes_to_make(advice)


def _words(name: str) -> str:
    return name.replace("_", " ")


def error_place(log: str, found: Diagnosis) -> Iterator[doc.Block]:
    """Yield the place of the first error in a log, and its lines; nothing without an error. log: "" for a text without
    a file."""
    if found.first is not None and log:
        yield from _place(why_report(log, found, None), found.first)
    elif found.first is not None:
        yield doc.Excerpt([*_traceback(found.first), *_message(found.first)], level="bad")


def message_list() -> Iterator[doc.Block]:
    """Yield the table of messages by area."""
    area = ""
    for message in messages():
        if message.area != area:
            area = message.area
            yield doc.Heading(area, area)
        yield doc.Sentence(message.title, "bold")
        yield doc.Sentence(f"  {'Cause' if message.certain else 'Usual causes'}: {ended(message.cause)}")
        yield doc.Sentence(f"  Fix: {ended(message.fix)}")
