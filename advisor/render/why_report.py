"""The cause of a failure as data, as `ds-advise why LOG --json` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...estimators.json_form import SCHEMA_VERSION, from_attributes, to_json
from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.finding import Finding, Wait
from ...probes.failures.installed_code import OtherRelease
from ...probes.failures.messages import ErrorKind, Phase
from ...probes.failures.out_of_memory import MemoryFigures
from ..answer.memory_change import MemoryForecast
from ..command.advice import CommandAdvice
from .named_fix import named_fix


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """The error that counts."""

    log: str
    """The name of its log, if there are several; else ""."""
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
    trained: int
    """Number of the line before it in which the Trainer reports that all steps are done; 0 without one."""


@dataclass(frozen=True, kw_only=True)
class SurvivedError:
    """An error after which the training went on."""

    log: str
    """The name of its log, if there are several; else ""."""
    line: int
    """Number of the line in the log that says it."""
    text: str
    """What it says."""


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A training before the last one of a log to which several were appended."""

    begin: int
    """Number of its first line."""
    line: int | None
    """Number of the line that decides its cause; null without an error."""
    text: str
    """How it ended."""


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
    other_release: OtherRelease | None
    """Of an error that is not known, the package that raised it, if the installed release does not have that code."""
    phase: PhaseOfFailure | None
    memory: MemoryFigures | None
    collective: Wait | None
    """The collective operation in which the first rank waited until it timed out."""
    effects: tuple[str, ...]
    """The other errors of the log."""
    followers: tuple[int, ...]
    """The other ranks that report an error."""
    devices: tuple[int, ...]
    """The other GPUs whose allocators report the same, where lines do not name the rank."""
    silent: tuple[int, ...]
    """The ranks that reported no timeout, if a collective operation timed out."""
    waits: tuple[Wait, ...]
    """Where the ranks waited, if a collective operation timed out: the operation of most ranks first."""
    course: KnownMessage | None
    """What is wrong with the loss of a training without an error; null if nothing is."""
    ended: bool
    """Whether the Trainer or the launcher reported the end of the training."""
    survived: tuple[SurvivedError, ...]
    """The errors after which the training went on: the first one of each message."""
    begin: int
    """Number of the first line of the training: the last one of a log to which several were appended."""
    earlier: tuple[EarlierRun, ...]
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
    first, message, phase = found.first, found.message, found.phase
    return WhyReport(
        schema_version=SCHEMA_VERSION,
        log=name,
        found=message is not None,
        lines=found.lines,
        steps=found.steps,
        last_line=found.last_line,
        error=None if first is None else _first_error(first),
        message=None if message is None else from_attributes(KnownMessage, message, fix=_fix(found)),
        other_release=found.other_release,
        phase=None if phase is None else from_attributes(PhaseOfFailure, phase),
        memory=found.memory,
        collective=found.collective,
        effects=found.effects,
        followers=found.followers,
        devices=found.devices,
        silent=found.silent,
        waits=found.waits,
        course=None if found.course is None else from_attributes(KnownMessage, found.course),
        ended=found.ended,
        survived=tuple(
            SurvivedError(log=each.error.log, line=each.deciding, text=each.headline) for each in found.survived
        ),
        begin=found.begin,
        earlier=tuple(
            EarlierRun(begin=run.begin, line=run.first.deciding if run.first else None, text=outcome(run))
            for run in found.earlier
        ),
        command=found.command,
        forecast=forecast,
        training=None if advice is None else to_json(advice.to_json()),
    )


def outcome(found: Diagnosis) -> str:
    """Return how a training ended, in words: `failed at line 10: CUDA out of memory`."""
    if found.first is not None:
        return f"failed at line {found.first.deciding}: {found.first.headline}"
    if found.ended:
        return "ended normally"
    return f"no error, and no end{f' after {found.place}' if found.place else ''}"


def _fix(found: Diagnosis) -> str:
    """Return the fix of the message, not of the phase, which the report has apart."""
    message = found.message
    assert message is not None, "the caller checks it"
    return named_fix(found) if found.explanation == message else message.fix


def _first_error(first: Finding) -> FirstError:
    own = first.own_frame
    return from_attributes(
        FirstError,
        first,
        first.error,
        frames=tuple(map(str, first.error.frames)),
        own_frame="" if own is None else f"{own.file}:{own.place}",
    )
