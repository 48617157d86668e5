"""The training steps that a log shows, and their figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from statistics import median
from typing import Literal, NamedTuple

_QUOTED = (b"'loss'", b'"loss"', b"lm loss", b"elapsed time per iteration")
"""Parts of the line of a step: the Trainer's and Megatron's."""
_WRITTEN = re.compile(rb"[Ss]teps?\W{0,3}\d[^\n]{0,60}?\b[Ll]oss\W{1,3}[\dni]")
"""The line of a step of a script of one's own: `step 20 loss 2.31`."""

_LONGEST = 4_000
"""Bytes of a step's line that are kept."""

_NUMBER = re.compile(
    r"\b[Ss]teps?\W{0,3}(\d+)(?=[^\n]{0,60}?\b[Ll]oss\b)|\bstep=(\d+), skipped=|\bglobal_step=(\d+), Running|"
    r"\biteration\s+(\d+)/"
)
"""The number of a step: of a script of one's own, of DeepSpeed (0.19.8 runtime/engine.py, utils/timer.py) and of
Megatron."""

_BAR = re.compile(r"^\s*\d+%\|[^|]*\| (\d+)/(\d+) \[")
"""The Trainer's bar: its place, and the number of steps."""

_FIGURE = re.compile(
    r"(?i:\b(loss|grad[_ ]norm)['\"]?\W{0,2}[\s:=]['\"]?(-?(?:\d[\d.]*(?:e[+-]?\d+)?|nan|inf(?:inity)?)))\b"
)
"""A figure, bare or in quotes: transformers 5 prints the figures of a step as text (trainer_callback.py)."""

_FEW = 3
"""Last steps by which the course of a loss is judged."""

_LEAST_RISEN = 1.0
"""Least loss that has risen: small ones vary by more than their size."""

_JUMP = 2.0
"""Least ratio of a step's figure to the median of those before it that is called a spike, and of the last steps' loss
to the first one's that is called a rise."""


class Place(NamedTuple):
    """A step of a training."""

    step: int
    of: int = 0
    """The number of steps; 0 if it is not known."""

    def __str__(self) -> str:
        return f"step {self.step}{f' of {self.of}' if self.of else ''}"


class Course(NamedTuple):
    """How the loss of a training went."""

    name: Literal["zero", "rising"]
    first: float
    """The loss of the first logged step."""
    last: float
    """The median of the last ones."""


Step = dict[str, float]
"""`loss` and `grad_norm` of a step, as far as its line has them."""


def count_steps(text: bytes) -> int:
    """The number of steps in lines of a log."""
    written = len(_WRITTEN.findall(text)) if b"tep" in text and b"oss" in text else 0  # far faster than the pattern
    return max(written, *(text.count(word) for word in _QUOTED))


def first_step(text: bytes) -> str:
    """The first line of a step in lines of a log; "" if none is there."""
    found = next((line for line in text.split(b"\n") if count_steps(line)), b"")
    return found[-_LONGEST:].decode("utf-8", "replace")


def read_step(line: str) -> Step:
    """The figures of a step; empty for a line that is of none."""
    if not count_steps(line.encode()):
        return {}
    return {found[1].lower().replace(" ", "_"): float(found[2]) for found in _FIGURE.finditer(line)}


def step_number(lines: Iterable[str]) -> int | None:
    """The number of the last step that lines name; None if they name none. Of the Trainer's bars the longest is that of
    the training: an evaluation has one, too."""
    named, bars = list[int](), list[tuple[int, int]]()
    for line in lines:
        named += [int(number) for found in _NUMBER.finditer(line) for number in found.groups() if number]
        bars += [(int(found[2]), int(found[1])) for found in [_BAR.match(line)] if found]
    if named:
        return named[-1]
    return max(bars)[1] if bars else None


def last_place(lines: Iterable[str]) -> Place | None:
    """Where lines end: at the last place of the training's bar, else at the last step that they name."""
    lines = [*lines]
    bars = [Place(int(found[1]), int(found[2])) for line in lines for found in [_BAR.match(line)] if found]
    if bars:
        longest = max(bar.of for bar in bars)
        return [bar for bar in bars if bar.of == longest][-1]
    number = step_number(lines)
    return None if number is None else Place(number)


def is_not_finite(line: str) -> bool:
    """Whether a line is of a step whose loss or gradient is not a finite number."""
    return not all(map(math.isfinite, read_step(line).values()))


def course_of(first: str, lines: Iterable[str]) -> Course | None:
    """What the first step's line and the last lines of a training say of its loss, if neither is as usual. The loss of
    a reinforcement learning, which logs rewards, starts near 0 and has no meaning by itself: it may rise."""
    lines = [line for line in lines if "loss" in read_step(line)][-_FEW:]
    last = [read_step(line) for line in lines]
    if len(last) < _FEW:
        return None
    begin, end = read_step(first).get("loss", 0.0), median(step["loss"] for step in last)
    if all(step["loss"] == 0 == step.get("grad_norm") for step in last):
        return Course("zero", begin, end)
    rises = end >= max(_JUMP * begin, _LEAST_RISEN) and begin > 0 and "reward" not in lines[-1]
    return Course("rising", begin, end) if rises else None


def spike(lines: Iterable[str]) -> tuple[Step, Step] | None:
    """The last finite step of some lines and the medians of those before it, if its loss or the norm of its gradient is
    a multiple of them."""
    steps = [step for line in lines if (step := read_step(line)) and all(map(math.isfinite, step.values()))]
    if len(steps) < 2:
        return None
    last = steps[-1]
    usual = {name: median(each[name] for each in steps[:-1] if name in each) for name in last if name in steps[-2]}
    jumped = any(usual[name] > 0 and last[name] >= _JUMP * usual[name] for name in usual)
    return (last, usual) if jumped else None
