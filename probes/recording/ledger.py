"""All storages of a run from allocation to release, with bytes, device, category and module.

A storage counts once, regardless of its views, from the operation that first returned it until torch destroys it. The
ledger keeps each storage as a `StorageLife` with the times of birth and death on one event clock; the parts of the peak
are the storages that were alive at that time.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .schedule import ScheduleRecorder

GPU_BLOCK_BYTES = 512
"""Granularity of the CUDA caching allocator: it rounds requests up to multiples (c10/cuda/CUDACachingAllocator.cpp,
kMinBlockSize), and `torch.cuda.memory_allocated` counts the rounded sizes."""


def gpu_bytes(size_bytes: int) -> int:
    """A size, or a change of size, rounded as in the allocator."""
    return -(-size_bytes // GPU_BLOCK_BYTES) * GPU_BLOCK_BYTES if size_bytes >= 0 else -gpu_bytes(-size_bytes)


@dataclass(slots=True, eq=False)
class StorageLife:
    """One storage from its allocation to its release."""

    size_bytes: int
    device: str
    born: int
    phase: int
    stream: int
    pinned: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    category: str
    """An estimate unless `owned`."""
    module: str
    died: int = -1
    owned: bool = False
    """Whether a sweep or a hook has found the owner."""

    def is_live_at(self, event: int) -> bool:
        return self.born <= event and (self.died < 0 or self.died > event)


class LiveBytes:
    """Live and peak bytes of one kind of memory. The peak is that of the current phase."""

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
        """Allocate a block, or free it for a negative size. Returns the growth of the held memory in bytes."""
        rounded = 1 << (abs(size_bytes) - 1).bit_length() if size_bytes else 0
        self._live[rounded] += 1 if size_bytes > 0 else -1
        if self._live[rounded] <= self._held[rounded]:
            return 0
        self._held[rounded] += 1
        return rounded


class Ledger:
    """Live bytes by device, and the lifetime of every storage.

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
        """Allocations, releases, NVMe transfers and phases since `restart_trace`; equal for equal iterations."""
        self._trace_starts = 0
        self.events = self.phase = self.stream = 0
        self.nvme_bytes = Counter[str]()
        self.nvme_files: dict[str, int] = {}
        self._gpu_type = gpu_type
        self._classify = classify
        self._live: dict[int, tuple[StorageLife, weakref.ref[Any], bool]] = {}
        self._birth_pinned = self._birth_locked = False

    def track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        # The address of the StorageImpl, equal for all views; `id(storage)` is that of a wrapper.
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
        # The wrapper lives as long as the StorageImpl, so the callback runs when torch frees the memory.
        self._live[key] = (life, weakref.ref(storage, lambda _: self._release(key)), self._birth_locked)
        self.trace.append((size_bytes, device, self.stream, self._birth_pinned, self._birth_locked))
        self._change(life, size_bytes, self._birth_locked)

    def _release(self, key: int) -> None:
        life, _, locked = self._live.pop(key)
        self.events += 1
        life.died = self.events
        # An age instead of an identity: traces of equal iterations are equal.
        age = life.died - life.born if life.born > self._trace_starts else None
        # A number of an earlier step, such as a loss that is logged, dies in its own time.
        if age is not None or life.size_bytes > GPU_BLOCK_BYTES:
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
        # A peak belongs to one phase, so it starts again from the live bytes.
        for counter in (self.gpu, self.host, self.total, self.host_pinned, self.host_held):
            counter.restart(self.events)

    def restart_trace(self) -> None:
        self.trace = []
        self._trace_starts = self.events

    def empty_cache(self) -> None:
        """Record that the engine emptied the allocator's cache."""
        self.events += 1
        self.cache_emptied.append(self.events)
        self.trace.append(())

    def figures(self) -> dict[str, int]:
        """The figures of the current phase, by their names in `PhaseMemory`."""
        counters = {"gpu": self.gpu, "host": self.host, "host_pinned": self.host_pinned, "total": self.total}
        return {
            **{f"{name}_live_bytes": counter.live_bytes for name, counter in counters.items()},
            **{f"{name}_peak_bytes": counter.peak_bytes for name, counter in counters.items()},
            "host_held_live_bytes": self.host_held.live_bytes,
            "host_held_peak_bytes": self.host_held.peak_bytes,
            "nvme_read_bytes": self.nvme_bytes["read"],
            "nvme_written_bytes": self.nvme_bytes["write"],
        }

    def find_storage(self, tensor: torch.Tensor) -> StorageLife | None:
        """The lifetime of a tensor's storage; None for an unknown one."""
        entry = self._live.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry else None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        life = self.find_storage(tensor)
        return life is not None and life.pinned

    @contextlib.contextmanager
    def births_pinned(self) -> Iterator[None]:
        """Mark storages that are allocated in the context as page-locked by torch's allocator."""
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


_READ_SCALAR = torch.ops.aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_LIFT = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the allocations of every operation, and passes operations to `recorder` while it is active.

    A value of a fake tensor (`.item()`, `bool(tensor)`) is 0: gradients are then finite and within every clipping norm,
    the loss scaler sees no overflow, and no optimizer step is skipped.

    known: returns the result of (operation, args, kwargs) like the mode below, or NotImplemented.
    """

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, known: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._recorder = recorder
        self._known = known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it would cost a third of every operation

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # `tensor.device` is as frequent as all other operations together.
        if operation is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        kwargs = kwargs or {}
        result = self._run(operation, args, kwargs)
        if self._recorder.active:
            self._recorder.note(operation, args, kwargs, result)
        return result

    def _run(self, operation: Any, args: Any, kwargs: Any) -> Any:
        # FakeTensorMode refuses values; the engine reads norms, overflow flags and loss scales.
        if operation is _READ_SCALAR:
            try:
                return operation(*args, **kwargs)
            except DataDependentOutputException:
                kind = args[0].dtype
                return False if kind is torch.bool else 0.0 if kind.is_floating_point else 0
        if operation in _LIFT:  # torch.tensor(...): FakeTensorMode would compute with the values, without a device
            result = operation(*args, **kwargs)
            if isinstance(result, FakeTensor) and result.device.type != "cpu":
                result.constant = None
            return self._recorded(result)
        # FakeTensorMode has no pinned tensors: the ledger keeps the flag.
        if kwargs.get("pin_memory"):
            with self._ledger.births_pinned():
                return self._recorded(operation(*args, **{**kwargs, "pin_memory": False}))
        if id(operation) in FUSED_BACKWARDS:  # hashing the operation itself is Python code
            workspace = [
                self._recorded(torch.empty(shape, dtype=dtype, device=args[0].device))
                for shape, dtype in kernel_workspace(operation, args)
            ]
            result = self._recorded(self._result(operation, args, kwargs))
            # The workspace is freed when the kernel ends, after its results were allocated.
            del workspace
            return result
        return self._recorded(self._result(operation, args, kwargs))

    def _result(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """The result of the mode below, without the dispatcher if it is cached."""
        result = self._known(operation, args, kwargs)
        return operation(*args, **kwargs) if result is NotImplemented else result

    def _recorded(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            self._ledger.track(result)
        elif result is not None:
            for leaf in tree_iter(result):
                if isinstance(leaf, torch.Tensor):
                    self._ledger.track(leaf)
        return result


_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_EFFICIENT_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
FUSED_BACKWARDS = frozenset((id(_FLASH_BACKWARD), id(_EFFICIENT_BACKWARD)))
"""Identities of the operations."""


def kernel_workspace(operation: Any, args: tuple[Any, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """(shape, dtype) of the temporary tensors of a fused attention kernel's backward pass, invisible as operators.

    Flash: the query gradient accumulates in float32, one float32 row sum per query, and with fewer key heads than query
    heads the key and value gradients at full heads; S rounded up to 128, D to 32 (to 64 above 128).
    Efficient (compute capability 7.0 on): the query gradient in float32, S and D rounded up to 64, and the row sums.
    Source: pytorch transformers/cuda/flash_attn/flash_api.cpp (mha_bwd), transformers/cuda/attention_backward.cu and
    mem_eff_attention/kernel_backward.h (kNeedsAccumGradQ).
    Not covered: the efficient kernel's partial sums per split of the keys, and cuDNN's workspace.
    """
    if operation is _FLASH_BACKWARD:
        query, key = args[1], args[2]
        batch, heads, length, head = query.shape
        rounded = -(-length // 128) * 128
        wide = -(-head // 32) * 32 if head <= 128 else -(-head // 64) * 64
        shapes = [((batch, rounded, heads, wide), torch.float32), ((batch, heads, rounded), torch.float32)]
        if key.shape[1] != heads:
            shapes += [((batch, key.shape[2], heads, head), query.dtype)] * 2
        return shapes
    if operation is _EFFICIENT_BACKWARD:
        batch, heads, length, head = args[1].shape
        rounded = (batch, heads, -(-length // 64) * 64, -(-head // 64) * 64)
        return [(rounded, torch.float32), ((batch, heads, length), torch.float32)]
    return []
