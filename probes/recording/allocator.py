"""PyTorch's CUDA caching allocator, replayed: what it would reserve for a recorded sequence of allocations and frees.

Rules (torch 2.13, c10/cuda/CUDACachingAllocator.cpp):
- A request is rounded up to 512 bytes. Up to 1 MiB it is small, and small and large requests never share a segment; nor
  do requests of two streams.
- The smallest free block that holds it is taken, at the lowest address among equals; a rest of at least 512 bytes
  (small) or more than 1 MiB (large) is split off.
- Without such a block a segment is asked from the driver: 2 MiB for a small request, 20 MiB for one below 10 MiB, else
  the request rounded up to 2 MiB.
- A freed block joins its free neighbours in the segment and stays reserved, until the cache is emptied or a request
  fails: then every wholly free segment goes back to the driver.
- With `expandable_segments:True` each stream has one segment for small and one for large requests, which grows at its
  end in steps of 2 and 20 MiB, a free end included; nothing is lost between segments. When a request fails, the pages
  of that size that no live block touches go back to the driver, wherever they are.

Not covered: private pools of CUDA graphs, the allocator's other options, and `record_stream`: a block that another
stream used is reusable only after that stream got there. How far streams are behind the host is a matter of speed;
allocated bytes go down at once, and before a request fails the allocator waits for them (`release_cached_blocks`), so
only what is reserved while there is room can be higher.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MIN_BLOCK = 512
SMALL_REQUEST = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE_SEGMENT_REQUEST = 10 << 20
LARGE_ROUNDING = 2 << 20


@dataclass(frozen=True, slots=True)
class Allocate:
    """A request of `size_bytes` on a stream; `key` names it for its `Free`."""

    key: int
    size_bytes: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    key: int


@dataclass(frozen=True, slots=True)
class EmptyCache:
    """torch.cuda.empty_cache()."""


Event = Allocate | Free | EmptyCache


class _Block:
    """A piece of a segment; neighbours are linked so that free ones can join."""

    __slots__ = ("address", "free", "next", "pool", "previous", "size")

    def __init__(self, pool: _Pool, address: int, size: int, previous: _Block | None, following: _Block | None) -> None:
        self.pool, self.address, self.size, self.free = pool, address, size, True
        self.previous, self.next = previous, following


class _Pool:
    """The free blocks of one stream and one size class, by (size, address)."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.by_size: list[tuple[int, int]] = []
        self.at: dict[int, _Block] = {}
        self.tail: _Block | None = None  # last block of the expandable segment

    def put(self, block: _Block) -> None:
        insort(self.by_size, (block.size, block.address))
        self.at[block.address] = block

    def drop(self, block: _Block) -> None:
        del self.by_size[bisect_left(self.by_size, (block.size, block.address))]
        del self.at[block.address]

    def best_fit(self, size: int) -> _Block | None:
        index = bisect_left(self.by_size, (size, 0))
        return self.at[self.by_size[index][1]] if index < len(self.by_size) else None


class CachingAllocator:
    """Replays events one by one; `reserved_bytes` and `allocated_bytes` follow, and of expandable segments
    `touched_bytes`: the pages that live blocks lie on, which are what remains when memory is short.

    capacity_bytes: what the driver can give; a request beyond it first empties the cache. None: no limit. A request
        that fails even then is granted all the same, since the question is how much would be needed.
    """

    def __init__(self, *, expandable_segments: bool = False, capacity_bytes: int | None = None) -> None:
        self.reserved_bytes = self.allocated_bytes = self.touched_bytes = 0
        self._pages: Counter[tuple[_Pool, int]] = Counter()
        self._expandable, self._capacity = expandable_segments, capacity_bytes
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._live: dict[int, _Block] = {}
        self._next_address = 0

    def apply(self, event: Event) -> None:
        if isinstance(event, Allocate):
            self.allocate(event.key, event.size_bytes, event.stream)
        elif isinstance(event, Free):
            self.free(event.key)
        else:
            self.empty_cache()

    def allocate(self, key: int, size_bytes: int, stream: int) -> None:
        if size_bytes == 0:
            return
        size = -(-size_bytes // MIN_BLOCK) * MIN_BLOCK
        small = size <= SMALL_REQUEST
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = _Pool(small)
        block = pool.best_fit(size)
        if block is None:
            block = self._grow(pool, size) if self._expandable else self._new_segment(pool, size)
        pool.drop(block)
        rest = block.size - size
        if rest >= MIN_BLOCK if small or self._expandable else rest > SMALL_REQUEST:
            split = _Block(pool, block.address + size, rest, block, block.next)
            if block.next is not None:
                block.next.previous = split
            block.next, block.size = split, size
            if pool.tail is block:
                pool.tail = split
            pool.put(split)
        block.free = False
        self._live[key] = block
        self.allocated_bytes += block.size
        if self._expandable:
            self._touch(block, 1)

    def free(self, key: int) -> None:
        block = self._live.pop(key, None)
        if block is None:
            return
        self.allocated_bytes -= block.size
        if self._expandable:
            self._touch(block, -1)
        block.free, pool = True, block.pool
        for neighbour in (block.previous, block.next):
            if neighbour is not None and neighbour.free:
                pool.drop(neighbour)
                first, second = (neighbour, block) if neighbour is block.previous else (block, neighbour)
                first.size += second.size
                first.next = second.next
                if second.next is not None:
                    second.next.previous = first
                if pool.tail is second:
                    pool.tail = first
                block = first
        pool.put(block)

    def _touch(self, block: _Block, change: int) -> None:
        """Count a live block, or no longer, on each of its pages."""
        page_bytes = SMALL_SEGMENT if block.pool.small else LARGE_SEGMENT
        for page in range(block.address // page_bytes, (block.address + block.size - 1) // page_bytes + 1):
            before = self._pages[block.pool, page]
            self._pages[block.pool, page] = before + change
            if not before or not before + change:
                self.touched_bytes += change * page_bytes

    def empty_cache(self) -> None:
        """Give wholly free segments back; of an expandable one, the free pages at its end."""
        for pool in self._pools.values():
            step = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
            for block in list(pool.at.values()):
                if not self._expandable:
                    if block.previous is None and block.next is None:
                        pool.drop(block)
                        self.reserved_bytes -= block.size
                elif block is pool.tail and block.size >= step:
                    given = block.size // step * step
                    pool.drop(block)
                    self.reserved_bytes -= given
                    if block.size > given:
                        block.size -= given
                        pool.put(block)
                    else:
                        pool.tail = block.previous
                        if block.previous is not None:
                            block.previous.next = None

    def _reserve(self, size: int) -> None:
        if self._capacity is not None and self.reserved_bytes + size > self._capacity:
            self.empty_cache()
        self.reserved_bytes += size

    def _new_segment(self, pool: _Pool, size: int) -> _Block:
        if pool.small:
            segment = SMALL_SEGMENT
        elif size < MIN_LARGE_SEGMENT_REQUEST:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        self._reserve(segment)
        block = _Block(pool, self._next_address, segment, None, None)
        self._next_address += segment
        pool.put(block)
        return block

    def _grow(self, pool: _Pool, size: int) -> _Block:
        grown = self._missing(pool, size)
        if self._capacity is not None and self.reserved_bytes + grown > self._capacity:
            self.empty_cache()
            grown = self._missing(pool, size)
        self.reserved_bytes += grown
        tail = pool.tail
        if tail is not None and tail.free:
            pool.drop(tail)
            tail.size += grown
        else:
            fresh = _Block(pool, tail.address + tail.size if tail is not None else 0, grown, tail, None)
            if tail is not None:
                tail.next = fresh
            pool.tail = tail = fresh
        pool.put(tail)
        return tail

    @staticmethod
    def _missing(pool: _Pool, size: int) -> int:
        step = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        have = pool.tail.size if pool.tail is not None and pool.tail.free else 0
        return -(-(size - have) // step) * step


class Held(NamedTuple):
    """Bytes that the allocator holds at most, and with expandable segments those of the pages that live blocks lie
    on."""

    reserved_bytes: int
    touched_bytes: int


def most_held(
    events: Sequence[Event], first: int, *, expandable_segments: bool = False, capacity_bytes: int | None = None
) -> Held:
    """The most that is held from event number `first` on."""
    allocator = CachingAllocator(expandable_segments=expandable_segments, capacity_bytes=capacity_bytes)
    for event in events[:first]:
        allocator.apply(event)
    reserved, touched = allocator.reserved_bytes, allocator.touched_bytes
    for event in events[first:]:
        allocator.apply(event)
        if allocator.reserved_bytes > reserved:
            reserved = allocator.reserved_bytes
        if allocator.touched_bytes > touched:
            touched = allocator.touched_bytes
    return Held(reserved, touched)
