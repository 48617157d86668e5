"""The dispatch mode that watches every operation: new storages go to the ledger, values nobody computed read as
zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .fused_attention import FUSED_BACKWARDS, kernel_workspace
from .ledger import Ledger
from .schedule import ScheduleRecorder

_READ_SCALAR = torch.ops.aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_LIFT = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what every operation allocates, and hands operations to `recorder` while that is active.

    Reading a value (`.item()`, `bool(tensor)`) of a fake tensor answers 0: gradients are then finite and within every
    clipping norm, the loss scaler sees no overflow, and no optimizer step is skipped.

    known: answers (operation, args, kwargs) as the mode below would, or NotImplemented where that has to run it.
    """

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, known: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self._recorder, self._known = ledger, recorder, known

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it would cost a third of every operation

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is _DEVICE and isinstance(args[0], FakeTensor):  # `tensor.device`, as frequent as everything else
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
        if operation in _LIFT:  # torch.tensor(...): FakeTensorMode would compute on with the values, on no real device
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
        """What the mode below answers, without another way through the dispatcher where the answer is known."""
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
