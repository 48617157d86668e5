"""All storages of a run: bytes, device, category and module, from birth to death.

A storage is counted once, whatever its number of views, from the operation that first returned it until torch destroys
it. The ledger keeps each storage as a `StorageLife` with the times of birth and death on one event clock; the parts of
the peak are the storages that were alive at that time.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

GPU_BLOCK_BYTES = 512
"""The CUDA caching allocator rounds requests up to multiples of it (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize),
and `torch.cuda.memory_allocated` counts the rounded sizes."""


def gpu_bytes(size_bytes: int) -> int:
    """A size, or a change of size, as the allocator counts it."""
    return -(-size_bytes // GPU_BLOCK_BYTES) * GPU_BLOCK_BYTES if size_bytes >= 0 else -gpu_bytes(-size_bytes)


@dataclass(slots=True, eq=False)
class StorageLife:
    """One storage from its birth to its death."""

    size_bytes: int
    device: str
    born: int
    phase: int
    stream: int
    pinned: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    category: str
    """An estimate, until `owned`."""
    module: str
    died: int = -1
    owned: bool = False
    """Whether a sweep or a hook has found the owner."""

    def alive_at(self, event: int) -> bool:
        return self.born <= event and (self.died < 0 or self.died > event)


class LiveBytes:
    """Live and peak bytes of one kind of memory; the peak is that of the running phase."""

    __slots__ = ("live_bytes", "peak_bytes", "peak_event")

    def __init__(self) -> None:
        self.live_bytes = self.peak_bytes = self.peak_event = 0

    def change(self, size_bytes: int, event: int) -> None:
        self.live_bytes += size_bytes
        if self.live_bytes > self.peak_bytes:
            self.restart(event)

    def restart(self, event: int) -> None:
        self.peak_bytes = self.live_bytes
        self.peak_event = event


class PinnedBlocks:
    """Memory of torch's page-locked allocator: requests are rounded up to a power of two, freed blocks are kept.

    Source: aten/src/ATen/core/CachingHostAllocator.h. A free block serves only requests of its power of two and is
    never returned to the operating system.
    """

    def __init__(self) -> None:
        self._live: Counter[int] = Counter()
        self._held: Counter[int] = Counter()

    def change(self, size_bytes: int) -> int:
        """Allocate a block, or free it for a negative size; returns the growth of the held memory."""
        rounded = 1 << (abs(size_bytes) - 1).bit_length() if size_bytes else 0
        self._live[rounded] += 1 if size_bytes > 0 else -1
        if self._live[rounded] <= self._held[rounded]:
            return 0
        self._held[rounded] += 1
        return rounded


class Ledger:
    """Live bytes by device, and the life of every storage.

    gpu_type:  device type that counts as the GPU; everything else but "meta" is the host.
    classify:  returns (category, module) of a tensor with a new storage.
    """

    def __init__(self, gpu_type: str, classify: Callable[[torch.Tensor], tuple[str, str]]) -> None:
        self.gpu = LiveBytes()
        self.host = LiveBytes()
        self.total = LiveBytes()
        self.host_pinned = LiveBytes()
        self.host_held = LiveBytes()
        self._pinned_blocks = PinnedBlocks()
        self.storages: list[StorageLife] = []
        self.cache_emptied: list[int] = []
        self.trace: list[tuple[Any, ...]] = []
        """The births, deaths, NVMe transfers and phases since `restart_trace`; equal for equal iterations."""
        self._trace_starts = 0
        self.events = self.phase = self.stream = 0
        self.nvme_bytes = Counter[str]()
        self.nvme_files: dict[str, int] = {}
        self._gpu_type = gpu_type
        self._classify = classify
        self._live: dict[int, tuple[StorageLife, weakref.ref[Any], bool]] = {}
        self._birth_pinned = self._birth_locked = False

    def track(self, tensor: torch.Tensor) -> None:
        """Enter the tensor's storage if it is new."""
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
        life = StorageLife(
            size_bytes,
            device,
            self.events,
            self.phase,
            self.stream,
            self._birth_pinned,
            tuple(tensor.shape),
            tensor.dtype,
            category,
            module,
        )
        self.storages.append(life)
        self._live[key] = (life, weakref.ref(storage, lambda _: self._release(key)), self._birth_locked)
        self.trace.append((size_bytes, device, self.stream, self._birth_pinned, self._birth_locked))
        self._change(life, size_bytes, self._birth_locked)

    def _release(self, key: int) -> None:
        life, _, locked = self._live.pop(key)
        self.events += 1
        life.died = self.events
        age = life.died - life.born if life.born > self._trace_starts else None
        self.trace.append((age, life.size_bytes, life.device, life.stream, life.pinned, locked))
        self._change(life, -life.size_bytes, locked)

    def _change(self, life: StorageLife, size_bytes: int, locked: bool) -> None:
        event = self.events
        self.total.change(size_bytes, event)
        if life.device == "gpu":
            self.gpu.change(gpu_bytes(size_bytes), event)
            return
        self.host.change(size_bytes, event)
        if life.pinned:
            self.host_pinned.change(size_bytes, event)
        held_bytes = self._pinned_blocks.change(size_bytes) if life.pinned and not locked else size_bytes
        self.host_held.change(held_bytes, event)

    def begin_phase(self, name: str) -> None:
        self.phase += 1
        self.trace.append((name,))
        self.nvme_bytes.clear()
        for counter in (self.gpu, self.host, self.total, self.host_pinned, self.host_held):
            counter.restart(self.events)

    def restart_trace(self) -> None:
        self.trace = []
        self._trace_starts = self.events

    def empty_cache(self) -> None:
        """The engine emptied the cache of the allocator."""
        self.events += 1
        self.cache_emptied.append(self.events)
        self.trace.append(())

    def figures(self) -> dict[str, int]:
        """The running phase's figures, by their names in `PhaseMemory`."""
        counters = {"gpu": self.gpu, "host": self.host, "host_pinned": self.host_pinned, "total": self.total}
        return {
            **{f"{name}_live_bytes": counter.live_bytes for name, counter in counters.items()},
            **{f"{name}_peak_bytes": counter.peak_bytes for name, counter in counters.items()},
            "host_held_live_bytes": self.host_held.live_bytes,
            "host_held_peak_bytes": self.host_held.peak_bytes,
            "nvme_read_bytes": self.nvme_bytes["read"],
            "nvme_written_bytes": self.nvme_bytes["write"],
        }

    def storage_of(self, tensor: torch.Tensor) -> StorageLife | None:
        """The life of a tensor's storage, None for an unknown one."""
        entry = self._live.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry else None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        life = self.storage_of(tensor)
        return life is not None and life.pinned

    @contextlib.contextmanager
    def births_pinned(self) -> Iterator[None]:
        """Storages born inside are page-locked by torch's allocator."""
        before = self._birth_pinned
        self._birth_pinned = True
        try:
            yield
        finally:
            self._birth_pinned = before

    def new_locked(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A host tensor that DeepSpeed page-locks itself, at its exact size."""
        self._birth_locked = True
        try:
            with self.births_pinned():
                return torch.empty(numel, dtype=dtype, device="cpu")
        finally:
            self._birth_locked = False

    def nvme_transfer(self, kind: Literal["read", "write"], path: str, size_bytes: int) -> None:
        self.nvme_bytes[kind] += size_bytes
        self.trace.append((kind, size_bytes))
        if kind == "write":
            self.nvme_files[path] = max(self.nvme_files.get(path, 0), size_bytes)
