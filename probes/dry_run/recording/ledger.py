"""Every live storage: its bytes, device, what it is for and which module made it, from birth to death.

A storage is counted once however many views look at it, from the operation that returned it first until torch destroys
it. The ledger keeps every storage it ever saw as a `Block` with the times of birth and death on one event clock; the
peak is taken apart afterwards from those that were alive at its moment.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

GPU_BLOCK_BYTES = 512
"""The CUDA caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), and
`torch.cuda.memory_allocated` counts the rounded size."""


def gpu_bytes(size_bytes: int) -> int:
    """What the allocator counts for a request; the sign of a change is kept."""
    return -(-size_bytes // GPU_BLOCK_BYTES) * GPU_BLOCK_BYTES if size_bytes >= 0 else -gpu_bytes(-size_bytes)


class Block:
    """One storage's life. `owned` once a sweep or a hook has found who holds it; before, `category` is a guess."""

    __slots__ = (
        "born",
        "category",
        "device",
        "died",
        "dtype",
        "module",
        "owned",
        "phase",
        "pinned",
        "shape",
        "size_bytes",
        "stream",
    )

    def __init__(
        self,
        size_bytes: int,
        device: str,
        born: int,
        phase: int,
        stream: int,
        pinned: bool,
        tensor: torch.Tensor,
        category: str,
        module: str,
    ) -> None:
        self.size_bytes, self.device, self.born, self.phase = size_bytes, device, born, phase
        self.stream, self.pinned, self.category, self.module = stream, pinned, category, module
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.died, self.owned = -1, False

    def alive_at(self, event: int) -> bool:
        return self.born <= event and (self.died < 0 or self.died > event)


class Pool:
    """Live and peak bytes of one kind of memory; the peak is that of the running phase."""

    __slots__ = ("live_bytes", "peak_bytes", "peak_event")

    def __init__(self) -> None:
        self.live_bytes = self.peak_bytes = self.peak_event = 0

    def change(self, size_bytes: int, event: int) -> None:
        self.live_bytes += size_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_event = self.live_bytes, event

    def restart(self, event: int) -> None:
        self.peak_bytes, self.peak_event = self.live_bytes, event


class PinnedBlocks:
    """What torch's page-locked allocator holds: requests rounded up to a power of two, freed blocks kept for reuse.

    Source: aten/src/ATen/core/CachingHostAllocator.h: a free block serves only requests of its own power of two, and
        the
    operating system never gets it back.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._live: Counter[int] = Counter()
        self._held: Counter[int] = Counter()

    @staticmethod
    def rounded_bytes(size_bytes: int) -> int:
        return 1 << (size_bytes - 1).bit_length() if size_bytes else 0

    def allocate(self, size_bytes: int) -> None:
        rounded = self.rounded_bytes(size_bytes)
        self._live[rounded] += 1
        if self._live[rounded] > self._held[rounded]:
            self._held[rounded] += 1
            self.held_bytes += rounded

    def free(self, size_bytes: int) -> None:
        self._live[self.rounded_bytes(size_bytes)] -= 1


class Ledger:
    """Live bytes by device, and the life of every storage.

    gpu_type:  device type that counts as the GPU; everything else but "meta" is the host.
    classify:  called at every birth with the tensor; answers (category, module).
    """

    def __init__(self, gpu_type: str, classify: Callable[[torch.Tensor], tuple[str, str]]) -> None:
        self.gpu, self.host, self.total, self.pinned = Pool(), Pool(), Pool(), Pool()
        self.pinned_blocks = PinnedBlocks()
        self.host_held = Pool()
        self.blocks: list[Block] = []
        self.cache_emptied: list[int] = []
        self.events = self.phase = self.stream = 0
        self.nvme_read_bytes = self.nvme_written_bytes = 0
        self.nvme_files: dict[str, int] = {}
        self._gpu_type, self._classify = gpu_type, classify
        self._live: dict[int, tuple[Block, weakref.ref[Any], bool]] = {}
        self._birth_pinned = self._birth_locked = False

    def track(self, tensor: torch.Tensor) -> None:
        """Note the tensor's storage if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        kind = tensor.device.type
        if kind == "meta":
            return
        size_bytes = storage.nbytes()
        device = "gpu" if kind == self._gpu_type else "host"
        self.events += 1
        category, module = self._classify(tensor)
        block = Block(
            size_bytes, device, self.events, self.phase, self.stream, self._birth_pinned, tensor, category, module
        )
        self.blocks.append(block)
        self._live[key] = (block, weakref.ref(storage, lambda _: self._release(key)), self._birth_locked)
        self._change(block, size_bytes, self._birth_locked)

    def _release(self, key: int) -> None:
        block, _, locked = self._live.pop(key)
        self.events += 1
        block.died = self.events
        self._change(block, -block.size_bytes, locked)

    def _change(self, block: Block, size_bytes: int, locked: bool) -> None:
        event = self.events
        self.total.change(size_bytes, event)
        if block.device == "gpu":
            self.gpu.change(gpu_bytes(size_bytes), event)
            return
        self.host.change(size_bytes, event)
        if not block.pinned:
            self.host_held.change(size_bytes, event)
            return
        self.pinned.change(size_bytes, event)
        if locked:
            self.host_held.change(size_bytes, event)
            return
        held_before = self.pinned_blocks.held_bytes
        if size_bytes > 0:
            self.pinned_blocks.allocate(size_bytes)
        else:
            self.pinned_blocks.free(-size_bytes)
        self.host_held.change(self.pinned_blocks.held_bytes - held_before, event)

    def begin_phase(self) -> None:
        self.phase += 1
        self.nvme_read_bytes = self.nvme_written_bytes = 0
        for pool in (self.gpu, self.host, self.total, self.pinned, self.host_held):
            pool.restart(self.events)

    def empty_cache(self) -> None:
        """The engine asked the caching allocator to give back what it does not use."""
        self.events += 1
        self.cache_emptied.append(self.events)

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block behind a tensor, None when its storage was never seen."""
        entry = self._live.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry else None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        block = self.block_of(tensor)
        return block is not None and block.pinned

    @contextlib.contextmanager
    def births_pinned(self) -> Iterator[None]:
        """Storages born inside are page-locked by torch's allocator."""
        before, self._birth_pinned = self._birth_pinned, True
        try:
            yield
        finally:
            self._birth_pinned = before

    def new_locked(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A host tensor page-locked by DeepSpeed itself, at its exact size."""
        self._birth_locked = True
        try:
            with self.births_pinned():
                return torch.empty(numel, dtype=dtype, device="cpu")
        finally:
            self._birth_locked = False

    def nvme_read(self, _path: str, size_bytes: int) -> None:
        self.nvme_read_bytes += size_bytes

    def nvme_write(self, path: str, size_bytes: int) -> None:
        self.nvme_written_bytes += size_bytes
        self.nvme_files[path] = max(self.nvme_files.get(path, 0), size_bytes)
