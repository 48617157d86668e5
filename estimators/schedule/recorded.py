"""What a dry run records of one optimizer step: every operation, where it runs, and what waits for what.

The engine's own calls order the work as they do on a GPU: a host thread issues operations to streams one after the
other, each stream runs its own in that order, events make one stream wait for another, and a synchronisation makes the
host wait. Everything else (buckets, prefetches, overlap) follows from these; nothing here knows a ZeRO stage.

A collective runs on a stream of its process group that first waits for the stream it was issued from, as NCCL's does.
Reads and writes of NVMe run on a stream of their queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

LARGEST_KEPT_BYTES = 32 * 2**20
"""The largest block that glibc keeps when it is freed (malloc.c, DEFAULT_MMAP_THRESHOLD_MAX); a larger one is mapped
anew for every tensor, and each of its pages costs a page fault. GPUs' allocators keep theirs."""

Kind = Literal["product", "attention", "memory", "host", "to device", "to host", "collective", "read", "write"]
"""Anything on the GPU that is no product or attention is "memory"; the CPU computes "host"; "read" and "write" are
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
    in_turn: bool = False
    """Copies that ranks make one after the other, while all others wait (`turns.in_turn`)."""
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
    """(call, count): the host is busy with something so many times; an index into `Schedule.calls`."""


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
