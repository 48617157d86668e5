"""What one training step executes and what orders it: operations, streams, events, waits (`estimators.schedule`).

FLOPs of attention come from torch's own formulas (`torch.utils.flop_counter`), which see shapes only; a causal mask
halves them. Views move nothing and launch nothing, but keep the host busy. What a compiled extension of DeepSpeed's
would do is noted by its caller (`kernels`, `aio`).
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
"""A fetch reads as much as it writes, whatever the size of what it looks into; a fill reads nothing, and an overwrite
not what was there."""

_COLLECTIVES = """_allgather_base_ _reduce_scatter_base_ allgather_into_tensor_coalesced_
    reduce_scatter_tensor_coalesced_ allreduce_ allreduce_coalesced_ broadcast_ reduce_ allgather_ alltoall_base_"""

_KIND = {f"aten::{name}": kind for kind, names in _ATEN.items() for name in names.split()}
_KIND |= {f"c10d::{name}": "collective" for name in _COLLECTIVES.split()}

_READ_SCALAR = torch.ops.aten._local_scalar_dense.default
_ULYSSES = "deepspeed::dim_zero_all_to_all"
"""An operator of DeepSpeed's own that exchanges heads for tokens (deepspeed/sequence/layer.py, 0.19.8): a mode sees it,
not the collective that it calls and waits for. Its arguments are the tensor and the name of the process group."""


class ScheduleRecorder:
    """Records the iteration that runs; a new one replaces it. `begin` is told every phase by name.

    first_iteration: the first that may be the last; those before it are not recorded.

    current_stream: answers the number of the stream that operations go to now; 0 is the default stream.
    is_pinned: answers whether a tensor of the host is page-locked.
    """

    def __init__(self, current_stream: Callable[[], int], is_pinned: Callable[[torch.Tensor], bool]) -> None:
        self.current_stream, self._is_pinned = current_stream, is_pinned
        self.active, self.first_iteration = False, 1
        self.group: tuple[int, int, int] | None = None
        """(stream, ranks, nodes) of the process group whose collective is being issued."""
        self.group_named: Callable[[str], tuple[int, int, int]] = lambda _name: (0, 1, 1)
        """Answers the same of the group of a name."""
        self._iteration = 0
        self._streams = self._events = 0
        self._table: list[RecordedOperation] = []
        self._numbers: dict[RecordedOperation, int] = {}
        self._known: dict[Any, int] = {}
        self._phases: dict[str, int] = {}
        self._kinds_of_calls: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._calls = Counter[str]()
        self._phase, self._depth, self._hooks = "", 0, 0
        self._recomputing = False
        torch.nn.modules.module.register_module_forward_pre_hook(lambda module, _: self._enter(module))
        torch.nn.modules.module.register_module_forward_hook(lambda *_: self._leave(), always_call=True)

    def begin(self, iteration: int, phase: str) -> None:
        """A phase begins; iteration 0 comes before training and is not recorded."""
        self.active = iteration >= self.first_iteration
        if iteration != self._iteration:
            self._iteration = iteration
            self._entries.clear()
            self._calls.clear()
        self._phase, self._depth, self._recomputing = phase, 0, False
        if self.active:
            self._entry(Code.PHASE, self._phases.setdefault(phase, len(self._phases)))
            if phase == "forward":
                self.call("micro_batch")
            elif phase == "step":
                self.call("engine_step")

    def recorded(self) -> Schedule:
        """The last iteration that ran."""
        self._flush()
        return Schedule(
            operations=tuple(self._table),
            phases=tuple(self._phases),
            calls=tuple(self._kinds_of_calls),
            entries=tuple(self._entries),
        )

    # What the simulated accelerator and process groups tell.

    def new_stream(self) -> int:
        self._streams += 1
        return self._streams

    def new_event(self) -> int:
        self._events += 1
        return self._events

    def call(self, kind: str, times: int = 1) -> None:
        """The host does something, named as in `HostCosts`."""
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
        """A read from or a write to NVMe that its queue carries out."""
        if self.active:
            self._run(RecordedOperation(kind=kind, name=f"aio::{kind}", size_bytes=size_bytes), queue)

    # What the dispatch mode tells.

    @contextlib.contextmanager
    def hook(self) -> Iterator[None]:
        """A hook of DeepSpeed's runs."""
        self._hooks += 1
        try:
            yield
        finally:
            self._hooks -= 1

    def _enter(self, module: torch.nn.Module) -> None:
        if self._phase == "backward" and not self._recomputing:
            self.call("checkpoint")
            self._recomputing = True
        self._depth += 1
        self.call("module_call")
        if type(module).__name__ == "ParamWrapper":  # of peft, which need not be there
            self.call("fold")

    def _leave(self) -> None:
        self._depth -= 1

    def _recomputed(self, *, view: bool) -> bool:
        """Whether a checkpointed layer that runs again in the backward pass dispatches the operation.

        The layer runs again from its first module's call until autograd launches a kernel: autograd records nothing,
        and what a layer dispatches between its modules is recorded.
        """
        if self._depth or not self._recomputing:
            return bool(self._depth)
        recorded = torch.is_grad_enabled()
        self._recomputing = recorded or view
        return recorded

    def _dispatch(self, *, view: bool) -> None:
        """The host dispatches an operation."""
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
        """One operation that has run."""
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
        """A call of a compiled extension's Adam: it reads gradient, master and two states, and writes all but the
        gradient."""
        tensors = list(_tensors(args))
        if self.active and tensors:
            size = sum(map(_size, tensors))
            kind: Kind = "host" if tensors[-1].device.type == "cpu" else "memory"
            self._run(_operation(kind, name, size * 7 // 4, tensors[-1]), self.current_stream())

    def note_memory_kernel(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """A call of a compiled kernel that reads or writes each of the tensors once."""
        if self.active:
            operation = _operation("memory", name, sum(map(_size, tensors)), tensors[-1])
            self._run(operation, self.current_stream())

    def _collective(self, index: int) -> None:
        """The group's stream runs it after what its caller's stream has done so far."""
        assert self.group is not None
        stream, _, _ = self.group
        self.wait_stream(stream, self.current_stream())
        self._entry(Code.RUN, index, stream)

    def _exchange(self, sent: torch.Tensor, group_name: str) -> None:
        """An all-to-all of the named group, for which the current stream waits."""
        stream, ranks, nodes = self.group_named(group_name)
        self._dispatch(view=False)
        self.wait_stream(stream, self.current_stream())
        self._run(_operation("collective", "c10d::alltoall_base_", _size(sent), sent, ranks=ranks, nodes=nodes), stream)
        self.wait_stream(self.current_stream(), stream)

    def _copy(self, recorded: RecordedOperation, operation: Any, args: Any, kwargs: Any, tensors: list[Any]) -> None:
        """A copy between host and GPU; the host waits for it unless the copy may be late and the memory is pinned."""
        host = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.dim()]
        pinned = bool(host) and self._is_pinned(host[-1 if recorded.kind == "to host" else 0])
        stream = self.current_stream()
        fields = {name: getattr(recorded, name) for name in ("kind", "name", "precision", "size_bytes")}
        self._run(RecordedOperation(**fields, pinned=pinned), stream)
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
        # The first argument holds the whole; those that scatter have it second.
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
            number = self._kinds_of_calls.setdefault(kind, len(self._kinds_of_calls))
            self._entries.append((int(Code.CALL), number, count))
        self._calls.clear()


def _operation(kind: Kind, name: str, size_bytes: int, example: torch.Tensor, **more: Any) -> RecordedOperation:
    precision = str(example.dtype).removeprefix("torch.")
    return RecordedOperation(kind=kind, name=name, size_bytes=size_bytes, precision=precision, **more)


def _computed(
    operation: Any, args: Any, kwargs: Any, result: Any, tensors: list[torch.Tensor]
) -> RecordedOperation | None:
    """An operation of one rank alone; None for one that moves nothing."""
    name = operation._schema.name
    kind = _KIND.get(name)
    results = list(_tensors((result,)))
    if kind == "no kernel" or operation.namespace == "c10d" or not (tensors or results):
        return None

    def recorded(kind: Kind, size: int, **more: Any) -> RecordedOperation:
        return _operation(kind, name, size, (results or tensors)[0], unmapped_bytes=_unmapped(tensors, results), **more)

    devices = {tensor.device.type for tensor in (*tensors, *results) if tensor.dim() or tensor.device.type != "cpu"}
    read, written = sum(map(_size, tensors[1:] if kind == "overwrite" else tensors)), sum(map(_size, results))
    if devices <= {"cpu"}:
        return recorded("host", read + written)
    if "cpu" in devices:
        return recorded("to host" if results[0].device.type == "cpu" else "to device", _size(results[0]))
    if operation._overloadpacket in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm):
        left, right = [tensor for tensor in tensors if tensor.dim() == (3 if "bmm" in name else 2)][-2:]
        product = (left.shape[0] if left.dim() == 3 else 1, left.shape[-2], left.shape[-1], right.shape[-1])
        return recorded("product", read + written, product=product)
    if operation._overloadpacket is _aten._grouped_mm:
        return recorded("product", read + written, product=_of_groups(tensors[0], tensors[1], results[0]))
    if operation._overloadpacket in flop_registry:
        flops = int(flop_registry[operation._overloadpacket](*args, **kwargs, out_val=result))
        if "attention" not in name:  # a convolution: as the product of its output with its window
            return recorded("product", read + written, product=_as_product(flops, results[0]))
        keys = tensors[2 if "backward" in name else 1].shape[-2]
        if _argument(operation, args, kwargs, "is_causal"):
            flops = round(flops * (keys + 1) / (2 * keys))
        return recorded("attention", read + written, flops=flops, keys=keys)
    read = {"fetch": written, "fill": 0}.get(kind or "", read)
    return recorded("memory", read + written)


def _of_groups(left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> tuple[int, int, int, int]:
    """A product for each expert, of as many tokens each: of its tokens with its matrix, or, for the gradient of that
    one, a sum over its tokens."""
    groups = (right if right.dim() == 3 else result).shape[0]
    if right.dim() == 3:
        return groups, max(1, left.shape[0] // groups), left.shape[1], right.shape[2]
    return groups, left.shape[0], max(1, left.shape[1] // groups), right.shape[1]


def _as_product(flops: int, result: torch.Tensor) -> tuple[int, int, int, int]:
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
    """Bytes of the large tensors that an operation makes, and does not return as they were given to it."""
    if not any(result.nbytes > LARGEST_KEPT_BYTES for result in results):
        return 0
    given = {tensor.untyped_storage()._cdata for tensor in tensors}
    new = (result.nbytes for result in results if result.untyped_storage()._cdata not in given)
    return sum(size for size in new if size > LARGEST_KEPT_BYTES)


def _size(tensor: torch.Tensor) -> int:
    """Bytes that reading it moves; an expanded tensor's no more often than it has them."""
    numel = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= length if stride else 1
    return numel * tensor.element_size()
