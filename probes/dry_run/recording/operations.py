"""What one training step executes: the operations of the last iteration that ran by name and shapes, for their time.

FLOPs of attention come from torch's own formulas (`torch.utils.flop_counter`), which see shapes only; a causal mask
halves them. Views move nothing and launch nothing and are left out. What a compiled extension of DeepSpeed's would do
is noted by its caller (`kernels`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ....estimators.time.recorded_time import Kind, RecordedOperation

_aten: Any = torch.ops.aten
_ATEN = {
    "fetch": "embedding index_select gather index nll_loss_forward",
    "fill": "nll_loss_backward zeros zeros_like zero_ fill_ full full_like ones ones_like",
    "no kernel": """empty empty_like empty_strided new_empty new_empty_strided set_ resize_ _local_scalar_dense
        is_pinned lift_fresh record_stream _unsafe_view alias detach_""",
}
"""A fetch reads as much as it writes, whatever the size of what it looks into; a fill reads nothing."""

_COLLECTIVES = """_allgather_base_ _reduce_scatter_base_ allgather_into_tensor_coalesced_
    reduce_scatter_tensor_coalesced_ allreduce_ allreduce_coalesced_ broadcast_ reduce_ allgather_ alltoall_base_"""

_KIND = {f"aten::{name}": kind for kind, names in _ATEN.items() for name in names.split()}
_KIND |= {f"c10d::{name}": "collective" for name in _COLLECTIVES.split()}


class Operations:
    """Counts the operations of one iteration, from 1 on; `begin` is told every phase, and forgets what was counted when
    another iteration begins."""

    def __init__(self) -> None:
        self._iteration, self._phase = 0, ""
        self._counts = Counter[Any]()
        self._kinds: dict[Any, RecordedOperation | None] = {}
        torch.nn.modules.module.register_module_forward_pre_hook(self._visit)

    def begin(self, iteration: int, phase: str) -> None:
        if iteration != self._iteration:
            self._iteration = iteration
            self._counts.clear()
        self._phase = phase if iteration else ""

    @property
    def active(self) -> bool:
        return bool(self._phase)

    def note(self, operation: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One operation that has run."""
        if operation.is_view:
            return
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        key = (
            self._phase,
            operation,
            *((*tensor.shape, tensor.dtype, tensor.device.type) for tensor in tensors),
            *(value for value in args if isinstance(value, bool)),
        )
        if key not in self._kinds:
            self._kinds[key] = _described(self._phase, operation, args, kwargs, result, tensors)
        self._counts[key] += 1

    def note_kernel(self, name: str, args: Any) -> None:
        """A call of a compiled extension's Adam: it reads gradient, master and two states, and writes all but the
        gradient."""
        tensors = list(_tensors(args))
        if not self._phase or not tensors:
            return
        size = sum(map(_size, tensors))
        kind: Kind = "host" if tensors[-1].device.type == "cpu" else "memory"
        self._count(_operation(self._phase, kind, name, size * 7 // 4, tensors[-1]))

    def recorded(self) -> tuple[RecordedOperation, ...]:
        """Equal ones together, in the order in which they came first."""
        merged = Counter[RecordedOperation]()
        for key, count in self._counts.items():
            operation = self._kinds[key]
            if operation is not None:
                merged[operation] += count
        return tuple(replace(operation, count=count) for operation, count in merged.items())

    def _visit(self, _module: torch.nn.Module, _inputs: Any) -> None:
        if self._phase:
            self._count(RecordedOperation(phase=self._phase, kind="visit", name="submodule", count=1))

    def _count(self, operation: RecordedOperation) -> None:
        self._kinds[operation] = operation
        self._counts[operation] += 1


def _operation(
    phase: str, kind: Kind, name: str, size_bytes: int, example: torch.Tensor, **more: Any
) -> RecordedOperation:
    precision = str(example.dtype).removeprefix("torch.")
    return RecordedOperation(
        phase=phase, kind=kind, name=name, count=1, size_bytes=size_bytes, precision=precision, **more
    )


def _described(
    phase: str, operation: Any, args: Any, kwargs: Any, result: Any, tensors: list[torch.Tensor]
) -> RecordedOperation | None:
    name = operation._schema.name
    kind = _KIND.get(name)
    results = list(_tensors((result,)))

    def recorded(kind: Kind, size: int, **more: Any) -> RecordedOperation:
        return _operation(phase, kind, name, size, results[0] if results else tensors[0], **more)

    if kind == "collective":  # the first argument holds the whole; those that scatter have it second
        return recorded("collective", sum(map(_size, _tensors((args[1 if "scatter" in name else 0],)))))
    if kind == "no kernel" or operation.namespace == "c10d" or not (tensors or results):
        return None
    devices = {tensor.device.type for tensor in (*tensors, *results) if tensor.dim() or tensor.device.type != "cpu"}
    read, written = sum(map(_size, tensors)), sum(map(_size, results))
    if devices <= {"cpu"}:
        return recorded("host", read + written)
    if "cpu" in devices:
        return recorded("to host" if results[0].device.type == "cpu" else "to device", _size(results[0]))
    if operation._overloadpacket in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm):
        left, right = [tensor for tensor in tensors if tensor.dim() == (3 if "bmm" in name else 2)][-2:]
        product = (left.shape[0] if left.dim() == 3 else 1, left.shape[-2], left.shape[-1], right.shape[-1])
        return recorded("product", read + written, product=product)
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


def _size(tensor: torch.Tensor) -> int:
    """Bytes that reading it moves; an expanded tensor's no more often than it has them."""
    numel = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= length if stride else 1
    return numel * tensor.element_size()
