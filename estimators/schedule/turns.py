"""Copies between GPU and host that ranks make in turn.

After an all-reduce every rank has the whole result. Where each copies a part of it that it alone keeps, as ZeRO 1 and
2 do for an offloaded optimizer, that is one rank's turn, or that of few, and all others wait for it in the next
collective. The recorded rank sees no copies but its own, after some of the all-reduces of a pass; the others make as
many after the rest. So of the min(N, n) turns that N ranks take after n all-reduces each of these is followed by its
share. Where the rank copies after every one, all do so at once, as after a reduce-scatter, which gives each its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .recorded import Code, Entry, RecordedOperation, Schedule

WIDENED = 2
"""What is copied may have up to so many times the bytes that it was reduced in: fp32 of 16 bits."""


@dataclass(slots=True)
class _Pass:
    """The all-reduces of a phase, and what its rank copies of their results; all by number of their entries."""

    reductions: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    followed: set[int] = field(default_factory=set)
    """All-reduces after which the rank copies."""

    @property
    def is_in_turn(self) -> bool:
        return bool(self.copies) and len(self.followed) < len(self.reductions)


def in_turn(schedule: Schedule) -> Schedule:
    """The schedule with the copies that other ranks make while the recorded one waits."""
    passes = [(begins, ends, _pass(schedule, begins, ends)) for begins, ends in _phases(schedule.entries)]
    if not any(found.is_in_turn for _, _, found in passes):
        return schedule
    operations, entries = list(schedule.operations), list[Entry]()
    for begins, ends, found in passes:
        if found.is_in_turn:
            entries += _shared_out(operations, schedule.entries, begins, ends, found)
        else:
            entries += schedule.entries[begins:ends]
    return replace(schedule, operations=tuple(operations), entries=tuple(entries))


def _phases(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Where each phase begins and ends."""
    begins = 0
    for number, (code, _, _) in enumerate(entries):
        if code == Code.PHASE:
            yield begins, number
            begins = number
    yield begins, len(entries)


def _pass(schedule: Schedule, begins: int, ends: int) -> _Pass:
    """That of the entries from one to another."""
    found, reduced = _Pass(), None
    for number in range(begins, ends):
        code, first, _ = schedule.entries[number]
        if code != Code.RUN:
            continue
        operation = schedule.operations[first]
        if operation.kind == "collective":
            reduced = operation if "allreduce" in operation.name and operation.ranks > 1 else None
            if reduced is not None:
                found.reductions.append(number)
        elif operation.kind in ("to host", "to device") and reduced is not None:
            if operation.size_bytes > WIDENED * reduced.size_bytes:
                continue
            found.copies.append(number)
            found.followed.add(found.reductions[-1])
    return found


def _shared_out(
    operations: list[RecordedOperation], entries: Sequence[Entry], begins: int, ends: int, found: _Pass
) -> Iterator[Entry]:
    """The entries of a pass with the copies of all ranks' turns shared out among its all-reduces: each share where the
    stream that copies has waited for the all-reduce."""
    ranks = max(operations[entries[number][1]].ranks for number in found.reductions)
    turns, stream = min(ranks, len(found.reductions)), entries[found.copies[0]][2]
    copied, shares = [operations[entries[number][1]] for number in found.copies], list[Entry]()
    for kind in ("to device", "to host"):  # what was summed up before comes from the host, and the sum goes back
        own_way = [operation for operation in copied if operation.kind == kind]
        if own_way:
            size = turns * sum(operation.size_bytes for operation in own_way) // len(found.reductions)
            operations.append(replace(own_way[0], size_bytes=size, in_turn=True))
            shares.append((Code.RUN, len(operations) - 1, stream))
    own, reductions, due = set(found.copies), set(found.reductions), False
    for number in range(begins, ends):
        code, first, _ = entries[number]
        if number in reductions and due:
            yield from shares
        due = due or number in reductions
        if number not in own:
            yield entries[number]
        if due and code == Code.WAIT and first == stream:
            yield from shares
            due = False
    if due:
        yield from shares
