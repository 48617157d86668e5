"""What a log, or the logs of one training, show: the errors, and the facts besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from .log_command import Ranks
from .log_error import LogError
from .logged_steps import Course, Place
from .signs import Sign


@dataclass(slots=True, kw_only=True)
class Scan:
    """The errors of a log; of several trainings, one appended to the other, those of the last one."""

    begin: int
    """Number of its first line in the log."""
    log: str
    """Its name; "" for the only one."""
    errors: Sequence[LogError]
    """In the order of their lines."""
    last_lines: dict[str, tuple[str, ...]]
    """The last lines of each process."""
    ranks: dict[str, int | None]
    lines: int
    steps: int
    """Training steps that the log shows."""
    course: Course | None
    """How the loss went, if it is not as usual."""
    place: Place | None
    """The step at which it ends; None if its last lines do not show it."""
    last_line: str
    """That is not empty."""
    ended: int
    """Number of the last line that reports the end of the training; 0 without one."""
    command: tuple[str, ...]
    """Words of the first command of the log that started a training; none if it shows none."""
    started: Ranks
    """The ranks that launchers and libraries report."""
    signs: frozenset[Sign]
    """What its lines show of the training."""
    roots: frozenset[int] = frozenset()
    """The ranks whose failure torchrun observed first, one for each of its agents."""
    failure_times: Mapping[int, str] = field(default_factory=dict)
    """The time of each rank's failure in torchrun's tables, as text that has the order of time."""
    earlier: Sequence[Scan] = ()
    """The trainings before it in the log."""


def joined(scans: Sequence[Scan]) -> Scan:
    """What the logs of one training show together, besides their errors."""
    if len(scans) == 1:
        return scans[0]
    return Scan(
        errors=(),
        begin=1,
        log="",
        last_lines={},
        ranks={name: rank for each in scans for name, rank in each.ranks.items()},
        lines=sum(each.lines for each in scans),
        steps=max(each.steps for each in scans),  # every rank may log the same ones
        course=next(filter(None, (each.course for each in scans)), None),
        place=max(filter(None, (each.place for each in scans)), default=None),
        last_line=next((each.last_line for each in reversed(scans) if each.last_line), ""),
        ended=max(each.ended for each in scans),
        command=next((each.command for each in scans if each.command), ()),
        started=reduce(Ranks.joined, (each.started for each in scans)),
        signs=frozenset[Sign]().union(*(each.signs for each in scans)),
        roots=frozenset().union(*(each.roots for each in scans)),
        failure_times={rank: time for each in scans for rank, time in each.failure_times.items()},
    )
