"""What a dry run records of one optimizer step: every operation, where it runs, and what waits for what.

The engine's own calls order the work as they do on a GPU: a host thread issues operations to streams one after the
other, each stream runs its own in that order, events make one stream wait for another, and a synchronisation makes the
host wait. Everything else (buckets, prefetches, overlap) follows from these; nothing here knows a ZeRO stage.

A collective runs on a stream of its process group that first waits for the stream it was issued from, as NCCL's does.
Reads and writes of NVMe run on a stream of their queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal

LARGEST_KEPT_BYTES = 32 * 2**20
"""The largest block that glibc keeps when it is freed (malloc.c, DEFAULT_MMAP_THRESHOLD_MAX); a larger one is mapped
anew for every tensor, and each of its pages costs a page fault. GPUs' allocators keep theirs."""

Kind = Literal["product", "attention", "memory", "host", "to device", "to host", "collective", "read", "write"]
"""Anything on the GPU that is not a product or attention is "memory"; the CPU computes "host"; "read" and "write" are
transfers from and to NVMe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """One operation, equal in size wherever the schedule names it."""

    kind: Kind
    name: str
    precision: str = ""
    """The data type of the result, as torch names it ("bfloat16")."""
    size_bytes: int = 0
    """What the operation reads and writes, or what the copy, transfer or collective moves."""
    unmapped_bytes: int = 0
    """Those of new tensors beyond `LARGEST_KEPT_BYTES`, which a CPU's allocator asks the kernel for every time."""
    product: tuple[int, ...] = ()
    """(copies, rows, inner, columns) of a product."""
    flops: int = 0
    """FLOPs of attention, after the mask."""
    keys: int = 0
    """The sequence length of attention."""
    pinned: bool = False
    """The host's side of a copy is page-locked."""
    serialized: bool = False
    """Copies that ranks make one after the other, while all others wait (`add_serialized_copies`)."""
    ranks: int = 1
    """Members of a collective's process group."""
    nodes: int = 1
    """Nodes that those members are on."""


class Code(IntEnum):
    """The meaning of an entry's first number, and of the two that follow it."""

    PHASE = 0
    """(phase, 0): a phase begins; an index into `Schedule.phases`."""
    RUN = 1
    """(operation, stream): the host issues an operation."""
    RECORD = 2
    """(event, stream): the event happens once the stream has done all that was issued to it."""
    WAIT = 3
    """(stream, event): the stream goes on after the event."""
    SYNCHRONIZE = 4
    """(event, 0): the host goes on after the event; ALL_STREAMS: after everything issued so far."""
    CALL = 5
    """(call, count): the host executes a call `count` times; call: an index into `Schedule.calls`."""


ALL_STREAMS = -1

Entry = tuple[int, int, int]
"""(code, first, second)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One optimizer step of one rank, all micro batches, in the order in which the host issued it."""

    operations: tuple[RecordedOperation, ...]
    """Each once."""
    phases: tuple[str, ...]
    """Names of the phases that entries refer to."""
    calls: tuple[str, ...]
    """What keeps the host busy: the fields of `HostCosts`, without the `_s`."""
    entries: tuple[Entry, ...]


WIDENED = 2
"""Largest ratio of the bytes of a copied tensor to those of its reduction: fp32 to 16 bits."""


@dataclass(slots=True)
class _Pass:
    """The all-reduces of a phase, and what its rank copies of their results; all by number of their entries."""

    reductions: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    followed: set[int] = field(default_factory=set)
    """All-reduces after which the rank copies."""

    @property
    def is_serialized(self) -> bool:
        return bool(self.copies) and len(self.followed) < len(self.reductions)


def add_serialized_copies(schedule: Schedule) -> Schedule:
    """The schedule with the copies that other ranks make while the recorded one waits."""
    passes = [(begins, ends, _pass(schedule, begins, ends)) for begins, ends in _phases(schedule.entries)]
    if not any(found.is_serialized for _, _, found in passes):
        return schedule
    operations, entries = list(schedule.operations), list[Entry]()
    for begins, ends, found in passes:
        if found.is_serialized:
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
            operations.append(replace(own_way[0], size_bytes=size, serialized=True))
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
