"""The dispatch mode of a dry run: it enters new storages into the ledger, and reads unknown values as zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .ledger import Ledger
from .schedule import ScheduleRecorder

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
        if operation is _DEVICE and isinstance(
            args[0], FakeTensor
        ):  # `tensor.device`, as frequent as all other operations
            return args[0].fake_device
        kwargs = kwargs or {}
        result = self._run(operation, args, kwargs)
        if self._recorder.active:
            self._recorder.note(operation, args, kwargs, result)
        return result

    def _run(self, operation: Any, args: Any, kwargs: Any) -> Any:
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
        if kwargs.get("pin_memory"):
            with self._ledger.births_pinned():
                return self._recorded(operation(*args, **{**kwargs, "pin_memory": False}))
        if id(operation) in FUSED_BACKWARDS:  # hashing the operation itself is Python code
            kept = [
                self._recorded(torch.empty(shape, dtype=dtype, device=args[0].device))
                for shape, dtype in kernel_workspace(operation, args)
            ]
            result = self._recorded(self._result(operation, args, kwargs))
            del kept
            return result
        return self._recorded(self._result(operation, args, kwargs))

    def _result(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """The result of the mode below, without the dispatcher where it is known."""
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
"""By identity."""


def kernel_workspace(operation: Any, args: tuple[Any, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """(shape, dtype) of the temporary tensors of a fused attention kernel's backward pass, which no operator shows.

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
