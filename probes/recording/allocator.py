"""A replay of PyTorch's CUDA caching allocator: the memory it reserves for recorded allocations and frees.

Rules (torch 2.13, c10/cuda/CUDACachingAllocator.cpp):
- A request is rounded up to 512 bytes. It is small up to 1 MiB. Small and large requests never share a segment, nor do
  requests of two streams.
- It takes the smallest free block that is large enough (among equal ones that at the lowest address); a remainder of at
  least 512 bytes (small) or more than 1 MiB (large) is split off.
- Without such a block the driver allocates a segment: 2 MiB for a small request, 20 MiB for one below 10 MiB, else
  the request rounded up to 2 MiB.
- A freed block merges with its free neighbours and stays reserved until the cache is emptied or a request fails: then
  every free segment is returned to the driver.
- With `expandable_segments:True` each stream has one segment for small and one for large requests. When the cache is
  emptied or a request fails, all pages (2 and 20 MiB) without a live block are returned to the driver
  (`release_blocks`, `unmap_block`). If no free block serves a request, it gets pages at the lowest range of addresses
  without a live block that is large enough, else at the segment's end (`find_expandable_block`).

Not covered: private pools of CUDA graphs, other options of the allocator, and `record_stream`, which makes a block
reusable only when another stream has passed. Allocated bytes decrease at once, and before a request fails the allocator
waits for the streams (`release_cached_blocks`), so only the memory reserved with ample room can be higher.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

MIN_BLOCK = 512
SMALL_REQUEST = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE_SEGMENT_REQUEST = 10 << 20
LARGE_ROUNDING = 2 << 20


@dataclass(slots=True, eq=False)
class _Block:
    """A part of a segment, linked with its neighbours."""

    pool: _Pool
    address: int
    size: int
    previous: _Block | None
    next: _Block | None
    free: bool = True
    mapped: bool = True
    """False for addresses of an expandable segment without memory."""

    def split(self, size: int) -> _Block:
        """Split the block; returns the part after the first `size` bytes as a separate block."""
        rest = _Block(self.pool, self.address + size, self.size - size, self, self.next)
        if self.next is not None:
            self.next.previous = rest
        self.next = rest
        self.size = size
        if self.pool.tail is self:
            self.pool.tail = rest
        return rest

    def take_next(self) -> None:
        second = self.next
        assert second is not None
        self.size += second.size
        self.next = second.next
        if second.next is not None:
            second.next.previous = self
        if self.pool.tail is second:
            self.pool.tail = self

    @property
    def usable(self) -> bool:
        return self.free and self.mapped


class _Pool:
    """The free blocks of one stream and one size class, sorted by (size, address)."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.free: list[tuple[int, int, _Block]] = []
        self.tail: _Block | None = None  # last block of the expandable segment
        self.gaps: list[_Block] = []  # its blocks without memory
        self.page_bytes = SMALL_SEGMENT if small else LARGE_SEGMENT

    def pages(self, size: int) -> int:
        return max(0, -(-size // self.page_bytes)) * self.page_bytes

    def put(self, block: _Block) -> None:
        insort(self.free, (block.size, block.address, block))

    def drop(self, block: _Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]

    def best_fit(self, size: int) -> _Block | None:
        index = bisect_left(self.free, (size, 0))
        return self.free[index][2] if index < len(self.free) else None


class CachingAllocator:
    """Replay of the allocator. Every call updates `reserved_bytes`, `allocated_bytes` and, with expandable segments,
    `touched_bytes`: the pages with live blocks, which are kept when memory is scarce.

    capacity_bytes: memory of the driver; None for no limit. A request beyond it first empties the cache. If the request
        still exceeds it, it is granted, so that the replay finds the required memory.
    """

    def __init__(self, *, expandable_segments: bool = False, capacity_bytes: int | None = None) -> None:
        self.reserved_bytes = self.allocated_bytes = self.touched_bytes = 0
        self._pages: Counter[tuple[_Pool, int]] = Counter()
        self._expandable = expandable_segments
        self._capacity = capacity_bytes
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._live: dict[int, _Block] = {}
        self._next_address = 0

    def allocate(self, key: int, size_bytes: int, stream: int = 0) -> None:
        """Serve a request; `key` identifies it for `free`."""
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
            pool.put(block.split(size))
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
            if neighbour is not None and neighbour.usable:
                pool.drop(neighbour)
                block = neighbour if neighbour is block.previous else block
                block.take_next()
        pool.put(block)

    def _touch(self, block: _Block, change: int) -> None:
        """Change the number of live blocks on each page of a block."""
        page_bytes = block.pool.page_bytes
        for page in range(block.address // page_bytes, (block.address + block.size - 1) // page_bytes + 1):
            before = self._pages[block.pool, page]
            self._pages[block.pool, page] = before + change
            if not before or not before + change:
                self.touched_bytes += change * page_bytes

    def empty_cache(self) -> None:
        """Return free segments and all free pages of an expandable segment to the driver."""
        for pool in self._pools.values():
            for *_, block in list(pool.free):
                if self._expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    pool.drop(block)
                    self.reserved_bytes -= block.size

    def _unmap(self, block: _Block) -> None:
        """Return the pages that lie completely in a free block to the driver."""
        pool, page = block.pool, block.pool.page_bytes
        first, end = -(-block.address // page) * page, (block.address + block.size) // page * page
        if first >= end:
            return
        pool.drop(block)
        if block.address < first:
            before, block = block, block.split(first - block.address)
            pool.put(before)
        if block.address + block.size > end:
            pool.put(block.split(end - first))
        self.reserved_bytes -= block.size
        block.mapped = False
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.mapped:
                pool.gaps.remove(neighbour)
                block = neighbour if neighbour is block.previous else block
                block.take_next()
        if block is not pool.tail:
            insort(pool.gaps, block, key=lambda gap: gap.address)
        else:
            pool.tail = block.previous
            if block.previous is not None:
                block.previous.next = None

    def _exceeds_capacity(self, size: int) -> bool:
        return self._capacity is not None and self.reserved_bytes + size > self._capacity

    def _new_segment(self, pool: _Pool, size: int) -> _Block:
        if pool.small:
            segment = SMALL_SEGMENT
        elif size < MIN_LARGE_SEGMENT_REQUEST:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        if self._exceeds_capacity(segment):
            self.empty_cache()
        self.reserved_bytes += segment
        block = _Block(pool, self._next_address, segment, None, None)
        self._next_address += segment
        pool.put(block)
        return block

    def _grow(self, pool: _Pool, size: int) -> _Block:
        """A sufficiently large free block of an expandable segment, partly of new pages."""
        start, missing = self._room(pool, size)
        if self._exceeds_capacity(missing):
            self.empty_cache()
            start, missing = self._room(pool, size)
        self.reserved_bytes += missing
        if start is None:
            tail = pool.tail
            start = _Block(pool, tail.address + tail.size if tail is not None else 0, 0, tail, None)
            if tail is not None:
                tail.next = start
            pool.tail = start
        elif start.mapped:
            pool.drop(start)
        else:
            self._map(start, size)
        while start.size < size and start.next is not None:
            if start.next.mapped:
                pool.drop(start.next)
            else:
                self._map(start.next, size - start.size)
            start.take_next()
        start.size += pool.pages(size - start.size)
        pool.put(start)
        return start

    @staticmethod
    def _room(pool: _Pool, size: int) -> tuple[_Block | None, int]:
        """(first block of the request's range of addresses, or None for a new block at the segment's end; bytes of new
        pages)."""
        ends = [pool.tail] if pool.tail is not None and pool.tail.free else []
        for gap in [*pool.gaps, *ends]:
            before = gap.previous
            start = before if not gap.mapped and before is not None and before.usable else gap
            block: _Block | None = start
            have = missing = 0
            while block is not None and block.free and have < size:
                missing += 0 if block.mapped else min(block.size, pool.pages(size - have))
                have += block.size
                block = block.next
            if have >= size or block is None:
                return start, missing + pool.pages(size - have)
        return None, pool.pages(size)

    @staticmethod
    def _map(gap: _Block, size: int) -> None:
        """Map the pages of a gap that `size` bytes need."""
        pool, wanted = gap.pool, gap.pool.pages(size)
        pool.gaps.remove(gap)
        if wanted < gap.size:
            rest = gap.split(wanted)
            rest.mapped = False
            insort(pool.gaps, rest, key=lambda each: each.address)
        gap.mapped = True
