"""Which error of a log counts: the first one of the rank that failed first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from .finding import Finding

_NEAR = 100
"""Lines between a message and the same one with its traceback."""

_KERNEL = re.compile(r"\.cuh?:\d+: .*Assertion `.*` failed")
"""The line of an assertion in a kernel, which names neither the rank nor the user's code."""

_RAISED_BY_KERNEL = "device-assert"
"""The message that torch raises for it."""

_IN_A_COLLECTIVE = re.compile(r"(?:^|/)torch/distributed/")
"""A file of a frame in which a rank waits for the others."""

_CLOCK = re.compile(r"\[E(\d{3,4}) (\d\d:\d\d:\d\d[.\d]*)")
"""Day and time in front of a message of torch's C++ code."""


def choose(findings: Sequence[Finding]) -> Finding | None:
    """The error that counts: the first cause, with its traceback; a lost process only if no exception came before it; a
    timeout only if no other rank raised an exception; an effect only if there is nothing else."""
    first = {
        role: next((each for each in findings if each.role == role), None)
        for role in ("cause", "unknown", "late", "effect")
    }
    cause, unknown, late = _earliest(first["cause"], findings), first["unknown"], _earliest(first["late"], findings)
    if cause is not None:
        # An unknown exception of another process that came first is the cause, and this one its effect.
        is_later = (
            unknown is not None and unknown.error.log == cause.error.log and unknown.error.order < cause.error.order
        )
        is_elsewhere = is_later and unknown is not None and unknown.error.process != cause.error.process
        return unknown if is_elsewhere else _with_frames(cause, findings)
    if late is not None and is_timeout(late) and (raised := _raised_elsewhere(findings)) is not None:
        return raised
    if unknown is not None and late is not None and unknown.error.log == late.error.log:
        return min(unknown, late, key=attrgetter("error.order"))
    return unknown or late or first["effect"]


def _raised_elsewhere(findings: Sequence[Finding]) -> Finding | None:
    """The exception of a rank that did not time out, which the others waited for, wherever its lines stand. Where the
    lines do not name the rank, it is one of a file of the user's that no collective operation raised: the watchdog ends
    its own process without a traceback."""
    waiting = {each.rank for each in findings if is_timeout(each)}
    exceptions = [
        each
        for each in findings
        if each.error.is_exception and each.role in ("unknown", "late") and not is_timeout(each)
    ]
    named = (each for each in exceptions if each.rank not in {*waiting, None})
    unnamed = (
        each
        for each in exceptions
        if each.rank is None
        and each.own_frame is not None
        and not any(_IN_A_COLLECTIVE.search(frame.file) for frame in each.error.frames)
    )
    return next(iter((*named, *unnamed)), None)


def _with_frames(cause: Finding, findings: Sequence[Finding]) -> Finding:
    """The cause with its traceback, in front of which a logger may have printed the message alone. An assertion of a
    kernel is raised as an error of its own, in the process that started the kernel."""
    error = cause.error
    if not error.frames and _KERNEL.search(error.text):
        raised = (each.error for each in findings if each.message is not None and each.message.id == _RAISED_BY_KERNEL)
        if (own := next((each for each in raised if each.log == error.log and each.frames), None)) is not None:
            rank = own.rank if error.rank is None else error.rank
            return replace(cause, error=replace(error, frames=own.frames, rank=rank))
    near = (each for each in findings if 0 <= each.error.order - error.order < _NEAR)
    same = (each for each in near if each.message == cause.message and each.error.process == error.process)
    return next((each for each in same if each.error.has_place), cause)


def of_root(chosen: Finding, root: int, findings: Sequence[Finding], times: Mapping[int, str]) -> Finding:
    """The error of the rank that torchrun saw fail first, if it is of the kind of the chosen one, whose time the log
    does not show; also an exception that is not known, if `times` has an earlier time for it: of equal ones torchrun
    names any rank."""
    if chosen.rank is None or chosen.rank == root or _clock(chosen):
        return chosen
    is_earlier = root in times and times[root] < times.get(chosen.rank, "")
    roles = {chosen.role, "unknown"} if is_earlier else {chosen.role}
    return next((each for each in findings if each.rank == root and each.role in roles), chosen)


def _earliest(first: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Of the ranks that report the same, the one whose clock shows the earliest time; the first line without clocks."""
    same = [each for each in findings if first is not None and each.message == first.message]
    times = [*filter(None, map(_clock, same))]
    return first if not same or len(times) < len(same) else same[times.index(min(times))]


def has_first_clock(chosen: Finding, findings: Sequence[Finding]) -> bool:
    """Whether the first error of every other rank shows its time, and none is earlier than that of the chosen one."""
    others = {each.rank: each for each in reversed(findings) if each.role != "effect" and each.rank != chosen.rank}
    own, times = _clock(chosen), map(_clock, others.values())
    return own is not None and all(time is not None and own <= time for time in times)


def _clock(finding: Finding) -> tuple[str, ...] | None:
    """Day and time of an error; None for one without."""
    found = _CLOCK.search(finding.error.head)
    return found and found.groups()


def is_timeout(finding: Finding) -> bool:
    return finding.message is not None and finding.message.kind == "communication_timeout"
