"""What one training step executes: the last iteration's operations by name and shapes, for their time.

FLOPs of attention come from torch's own formulas (`torch.utils.flop_counter`), which see shapes only; a causal mask
halves them. Views move nothing and launch nothing and are left out. What a compiled extension of DeepSpeed's would do
is noted by its caller (`kernels`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ....estimators.time.recorded_time import Kind, RecordedOperation

_aten: Any = torch.ops.aten
_FETCHES = ("aten::embedding", "aten::index_select", "aten::gather", "aten::index", "aten::nll_loss_forward")
_FILLS = (
    "aten::nll_loss_backward",
    "aten::zeros",
    "aten::zeros_like",
    "aten::zero_",
    "aten::fill_",
    "aten::full",
    "aten::full_like",
    "aten::ones",
    "aten::ones_like",
)
"""Read as much as they write, whatever the size of what they look into; and nothing at all."""
_NO_KERNEL = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::set_",
    "aten::resize_",
    "aten::_local_scalar_dense",
    "aten::is_pinned",
    "aten::lift_fresh",
    "aten::record_stream",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::detach_",
)
_COLLECTIVES_OUT = {
    "_allgather_base_": 0,
    "_reduce_scatter_base_": 1,
    "allgather_into_tensor_coalesced_": 0,
    "reduce_scatter_tensor_coalesced_": 1,
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "broadcast_": 0,
    "reduce_": 0,
    "allgather_": 0,
    "alltoall_base_": 0,
}
"""Of each collective, the argument that holds the whole, not the rank's part."""


class Operations:
    """Counts operations while the phases of iteration `last` run; `begin` is told every phase by name."""

    def __init__(self, last: int) -> None:
        self._last = f" of iteration {last}"
        self._phase = ""
        self._counts: dict[tuple[Any, ...], int] = {}
        self._kinds: dict[tuple[Any, ...], RecordedOperation | None] = {}
        torch.nn.modules.module.register_module_forward_pre_hook(self._visit)

    def begin(self, phase: str) -> None:
        self._phase = phase.removesuffix(self._last) if phase.endswith(self._last) else ""

    @property
    def active(self) -> bool:
        return bool(self._phase)

    def note(self, operation: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One operation that has run."""
        if operation.is_view:
            return
        tensors: list[torch.Tensor] = []
        _collect(args, tensors)
        _collect(kwargs.values(), tensors)
        key = (
            self._phase,
            operation,
            *((*tensor.shape, tensor.dtype, tensor.device.type) for tensor in tensors),
            *(value for value in args if isinstance(value, bool)),
        )
        if key not in self._kinds:
            self._kinds[key] = _described(self._phase, operation, args, kwargs, result, tensors)
        self._counts[key] = self._counts.get(key, 0) + 1

    def note_kernel(self, name: str, args: Any) -> None:
        """A call of a compiled extension's Adam: it reads gradient, master and two states, and writes all but the
        gradient."""
        tensors: list[torch.Tensor] = []
        _collect(args, tensors)
        if not self._phase or not tensors:
            return
        size = sum(_size(tensor) for tensor in tensors)
        key = (self._phase, name, size)
        kind: Kind = "host" if tensors[-1].device.type == "cpu" else "memory"
        self._kinds.setdefault(
            key,
            RecordedOperation(
                phase=self._phase,
                kind=kind,
                name=name,
                count=1,
                precision=_dtype(tensors[-1]),
                size_bytes=size * 7 // 4,
            ),
        )
        self._counts[key] = self._counts.get(key, 0) + 1

    def recorded(self) -> tuple[RecordedOperation, ...]:
        """Equal ones together, in the order in which they came first."""
        merged: dict[RecordedOperation, int] = {}
        for key, count in self._counts.items():
            kind = self._kinds[key]
            if kind is not None:
                merged[kind] = merged.get(kind, 0) + count
        return tuple(RecordedOperation(**{**_fields(kind), "count": count}) for kind, count in merged.items())

    def _visit(self, _module: torch.nn.Module, _inputs: Any) -> None:
        if self._phase:
            key = (self._phase, "visit")
            self._kinds[key] = RecordedOperation(phase=self._phase, kind="visit", name="submodule", count=1)
            self._counts[key] = self._counts.get(key, 0) + 1


def _described(
    phase: str, operation: Any, args: Any, kwargs: Any, result: Any, tensors: list[torch.Tensor]
) -> RecordedOperation | None:
    schema_name, namespace = operation._schema.name, operation.namespace
    results: list[torch.Tensor] = []
    _collect((result,), results)

    def recorded(kind: Kind, size: int, **more: Any) -> RecordedOperation:
        return RecordedOperation(
            phase=phase,
            kind=kind,
            name=schema_name,
            count=1,
            size_bytes=size,
            precision=_dtype(results[0] if results else tensors[0]),
            **more,
        )

    if namespace == "c10d":
        name = schema_name.partition("::")[2]
        if name not in _COLLECTIVES_OUT:
            return None
        whole: list[torch.Tensor] = []
        _collect((args[_COLLECTIVES_OUT[name]],), whole)
        return recorded("collective", sum(map(_size, whole)))
    if schema_name in _NO_KERNEL or not (tensors or results):
        return None
    devices = {tensor.device.type for tensor in (*tensors, *results) if tensor.dim() or tensor.device.type != "cpu"}
    read, written = sum(map(_size, tensors)), sum(map(_size, results))
    if devices <= {"cpu"}:
        return recorded("host", read + written)
    if "cpu" in devices:
        out = results[0]
        return recorded("to host" if out.device.type == "cpu" else "to device", _size(out))
    if operation._overloadpacket in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm):
        left, right = [tensor for tensor in tensors if tensor.dim() == (3 if "bmm" in schema_name else 2)][-2:]
        return recorded(
            "product",
            read + written,
            product=(left.shape[0] if left.dim() == 3 else 1, left.shape[-2], left.shape[-1], right.shape[-1]),
        )
    if operation._overloadpacket in flop_registry:
        flops = int(flop_registry[operation._overloadpacket](*args, **kwargs, out_val=result))
        if "attention" not in schema_name:  # a convolution: as the product of its output with its window
            return recorded("product", read + written, product=_as_product(flops, results[0]))
        keys = tensors[2 if "backward" in schema_name else 1].shape[-2]
        if _argument(operation, args, kwargs, "is_causal"):
            flops = round(flops * (keys + 1) / (2 * keys))
        return recorded("attention", read + written, flops=flops, keys=keys)
    read = written if schema_name in _FETCHES else 0 if schema_name in _FILLS else read
    return recorded("memory", read + written)


def _as_product(flops: int, result: torch.Tensor) -> tuple[int, int, int, int]:
    rows, columns = (
        max(1, result.numel() // max(1, result.shape[1])),
        max(1, result.shape[1] if result.dim() > 1 else 1),
    )
    return 1, rows, max(1, flops // (2 * rows * columns)), columns


def _argument(operation: Any, args: Any, kwargs: Any, name: str) -> Any:
    for position, argument in enumerate(operation._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    return None


def _collect(values: Any, into: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            into.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, into)


def _size(tensor: torch.Tensor) -> int:
    """Bytes that reading it moves; an expanded tensor's no more often than it has them."""
    numel = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= length if stride else 1
    return numel * tensor.element_size()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _fields(operation: RecordedOperation) -> dict[str, Any]:
    return {name: getattr(operation, name) for name in RecordedOperation.__dataclass_fields__}
