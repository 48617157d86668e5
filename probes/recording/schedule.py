"""Record the operations of one training step and their order: streams, events, waits (`estimators.schedule`).

FLOPs of attention come from torch's own formulas (`torch.utils.flop_counter`), which see shapes only; a causal mask
halves them. Views take host time only. The replacements of DeepSpeed's extensions record their own work (`kernels`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ...estimators.schedule.recorded import (
    ALL_STREAMS,
    LARGEST_KEPT_BYTES,
    Code,
    Entry,
    Kind,
    RecordedOperation,
    Schedule,
)

_aten: Any = torch.ops.aten
_ATEN = {
    "fetch": "embedding index_select gather index nll_loss_forward",
    "fill": "nll_loss_backward zeros zeros_like zero_ fill_ full full_like ones ones_like",
    "overwrite": "copy_",
    "no kernel": """empty empty_like empty_strided new_empty new_empty_strided set_ resize_ _local_scalar_dense
        is_pinned lift_fresh record_stream _unsafe_view alias detach_""",
}
"""Kind -> operators. A fetch reads as much as it writes, regardless of the size of its source; a fill reads nothing,
and an overwrite does not read its target."""

_COLLECTIVES = """_allgather_base_ _reduce_scatter_base_ allgather_into_tensor_coalesced_
    reduce_scatter_tensor_coalesced_ allreduce_ allreduce_coalesced_ broadcast_ reduce_ allgather_ alltoall_base_"""

_KIND = {f"aten::{name}": kind for kind, names in _ATEN.items() for name in names.split()}
_KIND |= {f"c10d::{name}": "collective" for name in _COLLECTIVES.split()}

_READ_SCALAR = torch.ops.aten._local_scalar_dense.default
_ULYSSES = "deepspeed::dim_zero_all_to_all"
"""DeepSpeed's operator that exchanges heads for tokens (deepspeed/sequence/layer.py, 0.19.8); a dispatch mode sees this
operator instead of its collective. Its arguments are the tensor and the name of the process group."""


class ScheduleRecorder:
    """Records the current iteration; the next iteration replaces it.

    current_stream: returns the number of the current stream; 0 is the default stream.
    is_pinned: returns whether a host tensor is page-locked.
    """

    def __init__(self, current_stream: Callable[[], int], is_pinned: Callable[[torch.Tensor], bool]) -> None:
        self.current_stream = current_stream
        self._is_pinned = is_pinned
        self.active = False
        self._is_stopped = False
        self.group: tuple[int, int, int] | None = None
        """(stream, ranks, nodes) of the process group of the current collective."""
        self.group_named: Callable[[str], tuple[int, int, int]] = lambda _name: (0, 1, 1)
        """(stream, ranks, nodes) of the process group with this name."""
        self._iteration = 0
        self._streams = self._events = 0
        self._table: list[RecordedOperation] = []
        self._numbers: dict[RecordedOperation, int] = {}
        self._known: dict[Any, int] = {}
        self._phases: dict[str, int] = {}
        self._call_kinds: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._complete: list[Entry] | None = None
        self._calls = Counter[str]()
        self._phase = ""
        self._depth = 0
        self._hooks = 0
        self._recomputing = False
        torch.nn.modules.module.register_module_forward_pre_hook(lambda module, _: self._enter(module))
        torch.nn.modules.module.register_module_forward_hook(lambda *_: self._leave(), always_call=True)

    def begin(self, iteration: int, phase: str) -> None:
        """Begin a phase. Iteration 0 is before training and is not recorded."""
        self.active = iteration > 0 and not self._is_stopped
        if iteration != self._iteration:
            self._iteration = iteration
            # Only the last iteration is kept.
            self._entries.clear()
            self._calls.clear()
        self._phase = phase
        self._depth = 0
        self._recomputing = False
        if self.active:
            self._entry(Code.PHASE, self._phases.setdefault(phase, len(self._phases)))
            if phase == "forward":
                self.call("micro_batch")
            elif phase == "step":
                self.call("engine_step")

    def recorded(self) -> Schedule:
        """The schedule of the last iteration, or of the one that `complete_iteration` ended."""
        self._flush()
        return Schedule(
            operations=tuple(self._table),
            phases=tuple(self._phases),
            calls=tuple(self._call_kinds),
            entries=tuple(self._entries if self._complete is None else self._complete),
        )

    def complete_iteration(self) -> None:
        """The current iteration is over; what follows it may never become a whole one."""
        if self._calls:
            self._flush()
        self._complete = list(self._entries)

    def stop(self) -> None:
        """Record nothing from here on."""
        self.active = False
        self._is_stopped = True

    # Called by the simulated accelerator and process groups.

    def new_stream(self) -> int:
        self._streams += 1
        return self._streams

    def new_event(self) -> int:
        self._events += 1
        return self._events

    def call(self, kind: str, times: int = 1) -> None:
        """Count a host call. name: a field of `HostCosts`."""
        if self.active:
            self._calls[kind] += times

    def record(self, event: int, stream: int | None = None) -> None:
        self._entry(Code.RECORD, event, self.current_stream() if stream is None else stream)

    def wait(self, stream: int, event: int) -> None:
        self._entry(Code.WAIT, stream, event)

    def wait_stream(self, stream: int, other: int) -> None:
        if stream != other:
            event = self.new_event()
            self.record(event, other)
            self.wait(stream, event)

    def synchronize(self, event: int = ALL_STREAMS) -> None:
        self._entry(Code.SYNCHRONIZE, event)

    def synchronize_stream(self, stream: int) -> None:
        event = self.new_event()
        self.record(event, stream)
        self.synchronize(event)

    def transfer(self, kind: Kind, size_bytes: int, queue: int) -> None:
        """Record a read from or a write to NVMe on a queue."""
        if self.active:
            self._run(RecordedOperation(kind=kind, name=f"aio::{kind}", size_bytes=size_bytes), queue)

    # Called by the dispatch mode.

    @contextlib.contextmanager
    def hook(self) -> Iterator[None]:
        """Context in which a hook of DeepSpeed runs."""
        self._hooks += 1
        try:
            yield
        finally:
            self._hooks -= 1

    def _enter(self, module: torch.nn.Module) -> None:
        # In the backward pass modules run forward only when a checkpointed layer is recomputed.
        if self._phase == "backward" and not self._recomputing:
            self.call("checkpoint")
            self._recomputing = True
        self._depth += 1
        self.call("module_call")
        if type(module).__name__ == "ParamWrapper":  # a class of peft, which may not be installed
            self.call("fold")

    def _leave(self) -> None:
        self._depth -= 1

    def _recomputed(self, *, view: bool) -> bool:
        """Whether the operation belongs to the recomputation of a checkpointed layer in the backward pass.

        Recomputation lasts from the first module call until autograd launches a kernel: autograd's own operations are
        not recorded for a backward pass, those of a layer are.
        """
        if self._depth or not self._recomputing:
            return bool(self._depth)
        recorded = torch.is_grad_enabled()
        self._recomputing = recorded or view
        return recorded

    def _dispatch(self, *, view: bool) -> None:
        """Count the host work of an operation."""
        if self._phase == "step":
            self._calls["step_operation"] += 1
            return
        backward = self._phase == "backward"
        if self._hooks or (backward and not self._recomputed(view=view)):
            self._calls["backward_view" if view else "backward_operation"] += 1
            return
        self._calls["view" if view else "operation"] += 1
        if backward and not view:
            self._calls["recomputed_operation"] += 1

    def note(self, operation: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record an executed operation."""
        if operation.is_view:
            self._dispatch(view=True)
            return
        if operation._schema.name == _ULYSSES:
            self._exchange(*args)
            return
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if operation is _READ_SCALAR:
            if tensors[0].device.type != "cpu":
                self.synchronize_stream(self.current_stream())
            return
        key = (
            id(operation),  # hashing the operation itself is Python code
            self.group,
            *((*tensor.shape, tensor.dtype, tensor.device.type) for tensor in tensors),
            *(value for value in args if isinstance(value, bool)),
        )
        index = self._known.get(key)
        if index is None:
            described = self._described(operation, args, kwargs, result, tensors)
            index = self._known[key] = -1 if described is None else self._index(described)
        self._dispatch(view=index < 0)
        if index < 0:
            return
        recorded = self._table[index]
        if recorded.kind == "collective":
            self._collective(index)
        elif recorded.kind in ("to host", "to device"):
            self._copy(recorded, operation, args, kwargs, [*tensors, *_tensors((result,))])
        else:
            self._entry(Code.RUN, index, self.current_stream())

    def note_kernel(self, name: str, args: Any) -> None:
        """Record a call of a compiled Adam: it reads gradient, master weights and two states, and writes all but the
        gradient."""
        tensors = list(_tensors(args))
        if self.active and tensors:
            size = sum(map(_size, tensors))
            # Four tensors of equal size, read once each, and three of them written: 7/4 of their bytes.
            kind: Kind = "host" if tensors[-1].device.type == "cpu" else "memory"
            self._run(_operation(kind, name, size * 7 // 4, tensors[-1]), self.current_stream())

    def note_memory_kernel(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Record a call of a compiled kernel that reads or writes each tensor once."""
        if self.active:
            operation = _operation("memory", name, sum(map(_size, tensors)), tensors[-1])
            self._run(operation, self.current_stream())

    def _collective(self, index: int) -> None:
        """Record a collective on the group's stream, after the current work of the caller's stream."""
        assert self.group is not None
        stream, _, _ = self.group
        self.wait_stream(stream, self.current_stream())
        # The caller's stream waits for the group's only in `Work.wait`.
        self._entry(Code.RUN, index, stream)

    def _exchange(self, sent: torch.Tensor, group_name: str) -> None:
        """Record an all-to-all of the named group; the current stream waits for it."""
        stream, ranks, nodes = self.group_named(group_name)
        self._dispatch(view=False)
        self.wait_stream(stream, self.current_stream())
        self._run(_operation("collective", "c10d::alltoall_base_", _size(sent), sent, ranks=ranks, nodes=nodes), stream)
        self.wait_stream(self.current_stream(), stream)

    def _copy(self, recorded: RecordedOperation, operation: Any, args: Any, kwargs: Any, tensors: list[Any]) -> None:
        """Record a copy between host and GPU; the host waits for it unless it is non-blocking and the memory is
        pinned."""
        host = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.dim()]
        pinned = bool(host) and self._is_pinned(host[-1 if recorded.kind == "to host" else 0])
        stream = self.current_stream()
        fields = {name: getattr(recorded, name) for name in ("kind", "name", "precision", "size_bytes")}
        self._run(RecordedOperation(**fields, pinned=pinned), stream)
        # CUDA copies pageable memory through a staging buffer, for which the host waits.
        if not (pinned and _argument(operation, args, kwargs, "non_blocking")):
            self.synchronize_stream(stream)

    def _described(
        self, operation: Any, args: Any, kwargs: Any, result: Any, tensors: list[torch.Tensor]
    ) -> RecordedOperation | None:
        name = operation._schema.name
        if _KIND.get(name) != "collective":
            return _computed(operation, args, kwargs, result, tensors)
        if self.group is None or not tensors or tensors[0].device.type == "cpu":
            return None
        # The whole tensor is the first argument, in a scatter the second.
        size = sum(map(_size, _tensors((args[1 if "scatter" in name else 0],))))
        _, ranks, nodes = self.group
        return _operation("collective", name, size, tensors[0], ranks=ranks, nodes=nodes)

    def _run(self, operation: RecordedOperation, stream: int) -> None:
        self._entry(Code.RUN, self._index(operation), stream)

    def _index(self, operation: RecordedOperation) -> int:
        index = self._numbers.setdefault(operation, len(self._table))
        if index == len(self._table):
            self._table.append(operation)
        return index

    def _entry(self, code: Code, first: int, second: int = 0) -> None:
        if self.active:
            if self._calls:
                self._flush()
            self._entries.append((int(code), first, second))

    def _flush(self) -> None:
        for kind, count in self._calls.items():
            number = self._call_kinds.setdefault(kind, len(self._call_kinds))
            self._entries.append((int(Code.CALL), number, count))
        self._calls.clear()


def _operation(kind: Kind, name: str, size_bytes: int, example: torch.Tensor, **more: Any) -> RecordedOperation:
    precision = str(example.dtype).removeprefix("torch.")
    return RecordedOperation(kind=kind, name=name, size_bytes=size_bytes, precision=precision, **more)


def _computed(
    operation: Any, args: Any, kwargs: Any, result: Any, tensors: list[torch.Tensor]
) -> RecordedOperation | None:
    """The record of an operation without communication; None if it does no work."""
    name = operation._schema.name
    kind = _KIND.get(name)
    results = list(_tensors((result,)))
    if kind == "no kernel" or operation.namespace == "c10d" or not (tensors or results):
        return None

    def recorded(kind: Kind, size: int, **more: Any) -> RecordedOperation:
        return _operation(kind, name, size, (results or tensors)[0], unmapped_bytes=_unmapped(tensors, results), **more)

    # Scalars on the host do not make an operation a copy: torch passes them as arguments.
    devices = {tensor.device.type for tensor in (*tensors, *results) if tensor.dim() or tensor.device.type != "cpu"}
    read = sum(map(_size, tensors[1:] if kind == "overwrite" else tensors))
    written = sum(map(_size, results))
    if devices <= {"cpu"}:
        return recorded("host", read + written)
    if "cpu" in devices:
        return recorded("to host" if results[0].device.type == "cpu" else "to device", _size(results[0]))
    if operation._overloadpacket in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm):
        left, right = args[-2:]  # `out` is a keyword argument
        product = (left.shape[0] if left.dim() == 3 else 1, left.shape[-2], left.shape[-1], right.shape[-1])
        return recorded("product", read + written, product=product)
    if operation._overloadpacket is _aten._grouped_mm:
        return recorded("product", read + written, product=_grouped_product(tensors[0], tensors[1], results[0]))
    if operation._overloadpacket in flop_registry:
        flops = int(flop_registry[operation._overloadpacket](*args, **kwargs, out_val=result))
        if "attention" not in name:  # a convolution counts as the product of its output and its window
            return recorded("product", read + written, product=_equivalent_product(flops, results[0]))
        keys = tensors[2 if "backward" in name else 1].shape[-2]
        if _argument(operation, args, kwargs, "is_causal"):
            # Query i attends to i keys: keys (keys + 1) / 2 of keys^2 products.
            flops = round(flops * (keys + 1) / (2 * keys))
        masked = "efficient" in name and _argument(operation, args, kwargs, "attn_bias") is not None
        return recorded("attention", read + written, flops=flops, keys=keys, masked=masked)
    # A gather touches only the rows that it returns.
    read = {"fetch": written, "fill": 0}.get(kind or "", read)
    return recorded("memory", read + written)


def _grouped_product(left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> tuple[int, int, int, int]:
    """Dimensions of a product per expert, with equally many tokens each: tokens times matrix, or the matrix's
    gradient."""
    groups = (right if right.dim() == 3 else result).shape[0]
    if right.dim() == 3:
        return groups, max(1, left.shape[0] // groups), left.shape[1], right.shape[2]
    return groups, left.shape[0], max(1, left.shape[1] // groups), right.shape[1]


def _equivalent_product(flops: int, result: torch.Tensor) -> tuple[int, int, int, int]:
    columns = max(1, result.shape[1] if result.dim() > 1 else 1)
    rows = max(1, result.numel() // columns)
    return 1, rows, max(1, flops // (2 * rows * columns)), columns


def _argument(operation: Any, args: Any, kwargs: Any, name: str) -> Any:
    for position, argument in enumerate(operation._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    return None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _unmapped(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> int:
    """Bytes of newly allocated large tensors of an operation."""
    if not any(result.nbytes > LARGEST_KEPT_BYTES for result in results):
        return 0
    known = {tensor.untyped_storage()._cdata for tensor in tensors}
    new = (result.nbytes for result in results if result.untyped_storage()._cdata not in known)
    return sum(size for size in new if size > LARGEST_KEPT_BYTES)


def _size(tensor: torch.Tensor) -> int:
    """Bytes that one read of a tensor moves; expanded dimensions count once."""
    numel = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= length if stride else 1
    return numel * tensor.element_size()
