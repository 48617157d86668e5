"""The table of known failure messages (`messages.toml`), and the message that a piece of a log is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from .log_lines import TRIGGERS
from .logged_steps import Course
from .out_of_memory import memory_figures
from .signs import SIGNS, Sign

_GROUP = re.compile(r"\(\?P([<=])(\w+)")
"""The name of a group where it is declared and where it is used."""

_PLACE = re.compile(r"\{(\w+)\}")
"""A placeholder of a text: the name of a group of the pattern in braces."""

WARNED_AT = re.compile(r"^\S+\.py:\d+: (?=\w*Warning:)", re.MULTILINE)
"""The file and line that a warning of Python begins with, which are no frame of a traceback."""

_CLOSURE = re.compile(r":\w*closure\w*(?: |$)")

ErrorKind = Literal["gpu_out_of_memory", "host_out_of_memory", "communication_timeout", "disk_full", "crash"]

Role = Literal["cause", "late", "effect"]
"""What else of the log may be the cause of a message: cause: nothing that came later; late: any error that came before
it (a timeout, a lost process); effect: every other error, since the message only repeats that something failed."""

Phase = Literal[
    "data",
    "load",
    "zero_init",
    "forward",
    "loss",
    "backward",
    "reduction",
    "first_step",
    "optimizer_step",
    "evaluation",
    "evaluation_logits",
    "generation",
    "checkpoint",
    "saving",
]
"""What a rank was doing when memory ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One known message."""

    id: str
    area: str
    """The section of the manual that lists it."""
    title: str
    """The message as it is printed, shortened."""
    headline: str = ""
    """What the message says; "" if the title says it. Here, in `cause` and in `fix` the named groups of `pattern`
    stand in braces."""
    pattern: re.Pattern[str]
    """Found in the message. The lines of a message are joined by single spaces."""
    near: re.Pattern[str] | None = None
    """Found in the traceback or the lines around the message; None if the message alone decides."""
    not_near: re.Pattern[str] | None = None
    """Not found there."""
    figures: Literal["", "larger", "shared", "outside", "fragmented"] = ""
    """What the allocator's figures in the message show; "" if they do not matter."""
    by_others: bool = False
    """Whether other processes hold the memory."""
    replaced: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What took the place of each value of the group `argument`, as `replacement`; the message is none of other values.
    Empty if every value counts."""
    at_end: bool = False
    """Whether it counts only among the last lines of a process, which waits there."""
    course: Literal["", "zero", "rising"] = ""
    """What the steps of a training without an error show, for a message that is no line of its own: loss and gradient
    of the last ones are 0, or their loss is a multiple of the first one's."""
    role: Role = "cause"
    kind: ErrorKind = "crash"
    certain: bool = True
    """Whether the message has one cause. If not, `cause` lists the usual ones, the most frequent first."""
    cause: str
    fix: str
    source: str
    """What confirmed cause and fix: an issue, or a file of the engine."""
    example: str
    """Lines of a log with the message."""
    under: Mapping[Sign, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Cause and fix in place of those above, by what the log shows of the training."""

    @property
    def is_lack(self) -> bool:
        """Whether the process itself needs more memory than there is, so that another plan may fit."""
        return self.kind in ("gpu_out_of_memory", "host_out_of_memory") and not (self.by_others or self.figures)

    def names(self, text: str) -> dict[str, str]:
        """What a text that is this message names, by the pattern's groups; empty if it does not name all."""
        found = self.pattern.search(text)
        groups = found.groupdict() if found else {}
        if self.replaced and groups:
            groups["replacement"] = self.replaced.get(groups["argument"], "")
        return groups if all(groups.values()) else {}

    def computed_in(self, dtype: str) -> Message:
        """The message with cause and fix for a type such as `bfloat16`; "" for an unknown one."""
        return under(self, {"outside_fp16"} if dtype in ("bfloat16", "float32") else set())

    def about(self, text: str) -> Message:
        """The message with the names of a text in `cause` and `fix`."""
        return self.filled(self.names(text))

    def filled(self, named: Mapping[str, str]) -> Message:
        """The message with names in `cause` and `fix`."""
        return replace(self, cause=filled(self.cause, named), fix=filled(self.fix, named))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPhase:
    """One phase in which memory runs out."""

    name: Phase
    frames: re.Pattern[str]
    """Found in a frame of the traceback, written as `file:function code`."""
    title: str
    cause: str
    fix: str
    source: str
    innermost: re.Pattern[str] | None = None
    """Found in the innermost frame: what of an outer one does not tell what it calls."""
    under: Mapping[Sign, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Causes and fixes in place of those here, by what the log shows of the training. Those here hold without a sign of
    an engine: they name no option of one."""
    host_cause: str = ""
    host_fix: str = ""
    """Cause and fix if the host's memory ran out."""

    def is_of(self, frames: Sequence[str]) -> bool:
        """Whether it is the phase of a traceback, the outermost frame first."""
        inner = self.innermost is not None and self.innermost.search(frames[-1])
        return bool(inner) or any(map(self.frames.search, frames))


@cache
def messages() -> tuple[Message, ...]:
    """The table in its order; the first message that matches counts."""
    return tuple(
        Message(**_read(row, "pattern", "near", "not_near"), area=area["title"])
        for area in _document()["area"]
        for row in area["message"]
    )


@cache
def memory_phases() -> tuple[MemoryPhase, ...]:
    """The phases in the order in which they are tried: outer functions before those that they call."""
    return tuple(MemoryPhase(**_read(row, "frames", "innermost")) for row in _document()["phase"])


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))


def _read(row: dict[str, Any], *patterns: str) -> dict[str, Any]:
    read = {name: re.compile(row[name]) if name in patterns else row[name] for name in row if name not in SIGNS}
    return read | {"under": {sign: row[sign] for sign in SIGNS if sign in row}}


_Row = TypeVar("_Row", Message, MemoryPhase)


def under(row: _Row, signs: Set[Sign]) -> _Row:
    """A row with the cause and the fix for a training with signs."""
    own = (row.under[sign] for sign in row.under if sign in signs)
    texts: dict[str, Any] = {name: text for each in own for name, text in each.items()}
    return replace(row, **texts)


def filled(text: str, named: Mapping[str, str]) -> str:
    """A text with names in place of its placeholders; in capitals what is not named."""
    return _PLACE.sub(lambda place: named.get(place[1], place[1].upper()), text)


def find_message(text: str, around: Sequence[str] = ()) -> Message | None:
    """The message that a text is; None for an unknown one. around: its traceback and the lines before and after it."""
    nearby = "\n".join((WARNED_AT.sub("", "\n".join(around)), text))
    for message in messages():
        if message.at_end or message.course:
            continue
        if not message.pattern.search(text):
            continue
        if message.near is not None and not message.near.search(nearby):
            continue
        if message.not_near is not None and message.not_near.search(nearby):
            continue
        if message.replaced and not message.names(text):
            continue
        if message.figures and not _shows(text, message.figures):
            continue
        return message
    return None


def _shows(text: str, what: str) -> bool:
    """Whether the allocator's figures in a text show what `Message.figures` names."""
    found = memory_figures(text)
    if found is None:
        return False
    shown = {
        "larger": found.asks_more_than_gpu,
        "shared": found.is_shared and not found.is_assumed,
        "outside": found.is_shared and found.is_assumed,
        "fragmented": found.is_fragmented,
    }
    return shown[what]


@cache
def _any_pattern() -> re.Pattern[str]:
    searched = [message.pattern.pattern for message in messages() if not (message.at_end or message.course)]
    own = (_GROUP.sub(rf"(?P\1\2_{number}", pattern) for number, pattern in enumerate(searched))  # names of one pattern
    return re.compile("|".join(f"(?:{pattern})" for pattern in own))


@cache
def _waits() -> tuple[Message, ...]:
    return tuple(message for message in messages() if message.at_end)


_WORDS = tuple(word.decode() for word in TRIGGERS)

_NOISE = re.compile(r"\d{4,}|0x[0-9a-fA-F]+")


def may_be_known(line: str) -> bool:
    """Whether a line has the pattern of a message, regardless of what is around it."""
    return any(word in line for word in _WORDS) and _has_pattern(_NOISE.sub("9999", line))


@lru_cache(maxsize=8_192)
def _has_pattern(line: str) -> bool:
    """Lines that differ in long numbers only are searched once."""
    return _any_pattern().search(line) is not None


def waiting_message(line: str) -> Message | None:
    """The message of a process that waits for ever after its last line."""
    return next((message for message in _waits() if message.pattern.search(line)), None)


def course_message(course: Course) -> Message:
    """The message on the course of a loss."""
    found = next(message for message in messages() if message.course == course.name)
    figures = {"first": f"{course.first:g}", "last": f"{course.last:g}"}
    return replace(found, headline=filled(found.headline, figures))


_LOADING = re.compile(r"\bLoading (?:checkpoint shards|weights):\s+(\d+)%")
"""The progress bar of transformers while it loads a model."""


def loading_bar(before: Sequence[str]) -> str:
    """The progress bar of a model that was being loaded when the lines before an error ended; "" if none was."""
    bars = [found for line in before for found in _LOADING.finditer(line)]
    return bars[-1][0] if bars and int(bars[-1][1]) < 100 else ""


def loading_phase() -> MemoryPhase:
    """The phase in which a model is loaded."""
    return next(phase for phase in memory_phases() if phase.name == "load")


def memory_phase(frames: Sequence[str]) -> MemoryPhase | None:
    """The phase of a traceback; None if its frames do not show it. Lightning's optimizer runs the forward and backward
    pass in a closure: only what is inside it counts."""
    closures = [place for place, frame in enumerate(frames) if _CLOSURE.search(frame)]
    frames = frames[closures[-1] :] if closures else frames
    return next((phase for phase in memory_phases() if frames and phase.is_of(frames)), None)
