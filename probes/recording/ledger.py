"""Every live storage: its bytes, device, what it is for and which module made it, from birth to death.

A storage is counted once however many views look at it, from the operation that returned it first until torch destroys
it. The ledger keeps every storage it ever saw as a `StorageLife` with the times of birth and death on one event clock;
the peak is taken apart afterwards from those that were alive at that moment.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

GPU_BLOCK_BYTES = 512
"""The CUDA caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize), and
`torch.cuda.memory_allocated` counts the rounded size."""


def gpu_bytes(size_bytes: int) -> int:
    """What the allocator counts for a request; the sign of a change is kept."""
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
    """A guess, until `owned`."""
    module: str
    died: int = -1
    owned: bool = False
    """Whether a sweep or a hook has found who holds the storage."""

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
            self.peak_bytes, self.peak_event = self.live_bytes, event

    def restart(self, event: int) -> None:
        self.peak_bytes, self.peak_event = self.live_bytes, event


class PinnedBlocks:
    """What torch's page-locked allocator holds: requests rounded up to a power of two, freed blocks kept for reuse.

    Source: aten/src/ATen/core/CachingHostAllocator.h. A free block serves only requests of its own power of two, and
    the operating system never gets it back.
    """

    def __init__(self) -> None:
        self._live: Counter[int] = Counter()
        self._held: Counter[int] = Counter()

    def change(self, size_bytes: int) -> int:
        """Take a block of the size, or give it back where the size is negative; answers by how much the memory grows
        that the allocator holds."""
        rounded = 1 << (abs(size_bytes) - 1).bit_length() if size_bytes else 0
        self._live[rounded] += 1 if size_bytes > 0 else -1
        if self._live[rounded] <= self._held[rounded]:
            return 0
        self._held[rounded] += 1
        return rounded


class Ledger:
    """Live bytes by device, and the life of every storage.

    gpu_type:  device type that counts as the GPU; everything else but "meta" is the host.
    classify:  called at every birth with the tensor; answers (category, module).
    """

    def __init__(self, gpu_type: str, classify: Callable[[torch.Tensor], tuple[str, str]]) -> None:
        self.gpu, self.host, self.total = LiveBytes(), LiveBytes(), LiveBytes()
        self.host_pinned, self.host_held = LiveBytes(), LiveBytes()
        self._pinned_blocks = PinnedBlocks()
        self.storages: list[StorageLife] = []
        self.cache_emptied: list[int] = []
        self.trace: list[tuple[Any, ...]] = []
        """What happened since `restart_trace`, in order: births, deaths, transfers of the drive, phases. It is alike
        where the same happens again."""
        self._trace_starts = 0
        self.events = self.phase = self.stream = 0
        self.nvme_read_bytes = self.nvme_written_bytes = 0
        self.nvme_files: dict[str, int] = {}
        self._gpu_type, self._classify = gpu_type, classify
        self._live: dict[int, tuple[StorageLife, weakref.ref[Any], bool]] = {}
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
        self.nvme_read_bytes = self.nvme_written_bytes = 0
        for counter in (self.gpu, self.host, self.total, self.host_pinned, self.host_held):
            counter.restart(self.events)

    def restart_trace(self) -> None:
        self.trace, self._trace_starts = [], self.events

    def empty_cache(self) -> None:
        """The engine asked the caching allocator to give back what it does not use."""
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
            "nvme_read_bytes": self.nvme_read_bytes,
            "nvme_written_bytes": self.nvme_written_bytes,
        }

    def storage_of(self, tensor: torch.Tensor) -> StorageLife | None:
        """The life of a tensor's storage, None when it was never seen."""
        entry = self._live.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry else None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        life = self.storage_of(tensor)
        return life is not None and life.pinned

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
        self.trace.append(("read", size_bytes))

    def nvme_write(self, path: str, size_bytes: int) -> None:
        self.nvme_written_bytes += size_bytes
        self.trace.append(("written", size_bytes))
        self.nvme_files[path] = max(self.nvme_files.get(path, 0), size_bytes)
