"""A replay of PyTorch's CUDA caching allocator: the memory it reserves for recorded allocations and frees.

Rules (torch 2.13, c10/cuda/CUDACachingAllocator.cpp):
- A request is rounded up to 512 bytes. It is small up to 1 MiB. Small and large requests never share a segment, nor do
  requests of two streams.
- It takes the smallest free block that is large enough, among equals the one at the lowest address; a rest of at least
  512 bytes (small) or more than 1 MiB (large) is split off.
- Without such a block the driver allocates a segment: 2 MiB for a small request, 20 MiB for one below 10 MiB, else
  the request rounded up to 2 MiB.
- A freed block merges with its free neighbours and stays reserved until the cache is emptied or a request fails: then
  every free segment is returned to the driver.
- With `expandable_segments:True` each stream has one segment for small and one for large requests, which grows at its
  end in steps of 2 and 20 MiB after using its free end. When a request fails, all pages of that size without a live
  block are returned to the driver.

Not covered: private pools of CUDA graphs, other options of the allocator, and `record_stream`, which makes a block
reusable only when another stream has passed. Allocated bytes decrease at once, and before a request fails the allocator
waits for the streams (`release_cached_blocks`), so only the memory reserved with ample room can be higher.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

MIN_BLOCK = 512
SMALL_REQUEST = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE_SEGMENT_REQUEST = 10 << 20
LARGE_ROUNDING = 2 << 20


class _Block:
    """A part of a segment, linked with its neighbours."""

    __slots__ = ("address", "free", "next", "pool", "previous", "size")

    def __init__(self, pool: _Pool, address: int, size: int, previous: _Block | None, following: _Block | None) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.free = True
        self.previous = previous
        self.next = following


class _Pool:
    """The free blocks of one stream and one size class, sorted by (size, address)."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.step = SMALL_SEGMENT if small else LARGE_SEGMENT
        self.free: list[tuple[int, int, _Block]] = []
        self.tail: _Block | None = None  # last block of the expandable segment

    def put(self, block: _Block) -> None:
        insort(self.free, (block.size, block.address, block))

    def drop(self, block: _Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]

    def best_fit(self, size: int) -> _Block | None:
        index = bisect_left(self.free, (size, 0))
        return self.free[index][2] if index < len(self.free) else None


class CachingAllocator:
    """Updates `reserved_bytes`, `allocated_bytes` and, with expandable segments, `touched_bytes` at every call:
    the pages with live blocks, which are kept when memory is scarce.

    capacity_bytes: memory of the driver; a request beyond it first empties the cache. None: no limit. A request that
        still exceeds it is granted, to find the needed memory.
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
        """Change the number of live blocks on each page of a block."""
        page_bytes = block.pool.step
        for page in range(block.address // page_bytes, (block.address + block.size - 1) // page_bytes + 1):
            before = self._pages[block.pool, page]
            self._pages[block.pool, page] = before + change
            if not before or not before + change:
                self.touched_bytes += change * page_bytes

    def empty_cache(self) -> None:
        """Return free segments, and the free pages at the end of an expandable one."""
        for pool in self._pools.values():
            for *_, block in list(pool.free):
                if not self._expandable:
                    if block.previous is None and block.next is None:
                        pool.drop(block)
                        self.reserved_bytes -= block.size
                elif block is pool.tail and block.size >= pool.step:
                    given = block.size // pool.step * pool.step
                    pool.drop(block)
                    self.reserved_bytes -= given
                    if block.size > given:
                        block.size -= given
                        pool.put(block)
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
        grown = self._missing(pool, size)
        if self._exceeds_capacity(grown):
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
        have = pool.tail.size if pool.tail is not None and pool.tail.free else 0
        return -(-(size - have) // pool.step) * pool.step
