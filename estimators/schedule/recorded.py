"""The recording of one optimizer step by a dry run: every operation, its stream, and the dependencies.

The engine's own calls order the work as on a GPU: a host thread issues operations to streams one after the other, each
stream runs its operations in that order, events make one stream wait for another, and a synchronisation makes the host
wait. Everything else (buckets, prefetches, overlap) follows from these; this module does not depend on the ZeRO stage.

As with NCCL, a collective runs on a stream of its process group, which first waits for the issuing stream. Reads and
writes of NVMe run on the stream of their queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal

LARGEST_KEPT_BYTES = 32 * 2**20
"""Largest block that glibc caches when it is freed (malloc.c, DEFAULT_MMAP_THRESHOLD_MAX). A larger one is mapped anew
for every tensor, and each of its pages costs a page fault. The allocators of GPUs cache all blocks."""

Kind = Literal["product", "attention", "memory", "host", "to device", "to host", "collective", "read", "write"]
"""Kind of an operation. "memory": any GPU operation except products and attention; "host": runs on the CPU; "read" and
"write": transfers from and to NVMe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """One operation, which the schedule may issue several times with the same sizes."""

    kind: Kind
    name: str
    precision: str = ""
    """torch's name of the result's data type ("bfloat16")."""
    size_bytes: int = 0
    """Bytes that the operation reads and writes, or that the copy, transfer or collective moves."""
    unmapped_bytes: int = 0
    """Bytes of new tensors above `LARGEST_KEPT_BYTES`, which the CPU allocator requests from the kernel every time."""
    product: tuple[int, ...] = ()
    """(copies, rows, inner, columns) of a matrix product."""
    flops: int = 0
    """FLOPs of attention, without masked pairs."""
    keys: int = 0
    """The sequence length of attention."""
    masked: bool = False
    """Whether it is torch's memory-efficient attention with a mask, which computes all pairs."""
    pinned: bool = False
    """Whether the host memory of a copy is page-locked."""
    serialized: bool = False
    """Whether ranks make the copy one after the other, while all others wait (`add_serialized_copies`)."""
    ranks: int = 1
    """Number of members of a collective's process group."""
    nodes: int = 1
    """Number of nodes of those members."""


class Code(IntEnum):
    """Meaning of an entry's first number, and (in parentheses) of the other two."""

    PHASE = 0
    """(phase, 0): a phase begins; an index into `Schedule.phases`."""
    RUN = 1
    """(operation, stream): the host issues an operation."""
    RECORD = 2
    """(event, stream): the event occurs once the stream has completed everything issued to it so far."""
    WAIT = 3
    """(stream, event): the stream waits for the event."""
    SYNCHRONIZE = 4
    """(event, 0): the host waits for the event, or with ALL_STREAMS for everything issued so far."""
    CALL = 5
    """(call, count): the host executes a call `count` times; call: an index into `Schedule.calls`."""


ALL_STREAMS = -1

Entry = tuple[int, int, int]
"""(code, first, second)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One optimizer step of one rank, all micro batches, in the order in which the host issues it."""

    operations: tuple[RecordedOperation, ...]
    """Distinct operations."""
    phases: tuple[str, ...]
    """Names of the phases that entries refer to."""
    calls: tuple[str, ...]
    """Kinds of host work: the fields of `HostCosts` without the `_s`."""
    entries: tuple[Entry, ...]


LARGEST_COPY_RATIO = 2
"""Largest ratio of the bytes of a copied tensor to those of its reduction: fp32 to 16 bits."""


@dataclass(slots=True)
class _Pass:
    """The all-reduces of a phase, and the rank's copies of their results, as indices of entries."""

    reductions: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    followed: set[int] = field(default_factory=set)
    """All-reduces whose result the rank copies."""

    @property
    def is_serialized(self) -> bool:
        return bool(self.copies) and len(self.followed) < len(self.reductions)


def add_serialized_copies(schedule: Schedule) -> Schedule:
    """Return the schedule with the copies of other ranks, for which the recorded rank waits."""
    passes = [(begins, ends, _pass(schedule, begins, ends)) for begins, ends in _phases(schedule.entries)]
    if not any(found.is_serialized for _, _, found in passes):
        return schedule
    operations, entries = list(schedule.operations), list[Entry]()
    for begins, ends, found in passes:
        if found.is_serialized:
            entries += _distribute_copies(operations, schedule.entries, begins, ends, found)
        else:
            entries += schedule.entries[begins:ends]
    return replace(schedule, operations=tuple(operations), entries=tuple(entries))


def _phases(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Yield the index at which each phase begins, and that at which it ends."""
    begins = 0
    for number, (code, _, _) in enumerate(entries):
        if code == Code.PHASE:
            yield begins, number
            begins = number
    yield begins, len(entries)


def _pass(schedule: Schedule, begins: int, ends: int) -> _Pass:
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
            # A larger copy is not of this bucket: a layer's weights, or activations that checkpointing offloads.
            if operation.size_bytes > LARGEST_COPY_RATIO * reduced.size_bytes:
                continue
            found.copies.append(number)
            found.followed.add(found.reductions[-1])
    return found


def _distribute_copies(
    operations: list[RecordedOperation], entries: Sequence[Entry], begins: int, ends: int, found: _Pass
) -> Iterator[Entry]:
    """Yield the entries of a pass with all ranks' copies distributed over its all-reduces. Each share is inserted where
    the copying stream has waited for the all-reduce."""
    ranks = max(operations[entries[number][1]].ranks for number in found.reductions)
    # The recorded rank owns part of a few buckets only; the other ranks copy theirs while it waits.
    turns, stream = min(ranks, len(found.reductions)), entries[found.copies[0]][2]
    copied, shares = [operations[entries[number][1]] for number in found.copies], list[Entry]()
    for kind in ("to device", "to host"):  # the previous sum comes from the host, and the new one goes back
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
