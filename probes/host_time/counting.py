"""Counts what the host does in a training step: operations, module calls, hooks.

It changes DeepSpeed and torch for good, so it runs in a process that ends afterwards.
"""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .result import HostCounts


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every dispatched operation and module call by the phase that runs."""

    def __init__(self, model: torch.nn.Module, *, recomputes: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recomputes = recomputes
        self.phase = ""
        self._found: dict[str, Counter[str]] = {}
        self._depth = 0
        """Modules that are being called."""
        self._hooks = 0
        """Hooks of DeepSpeed that are running."""
        self._wrap_modules()
        self._wrap_hooks()
        for parameter in model.parameters():
            if hasattr(parameter, "all_gather_coalesced"):
                self._wrap_gathers(parameter)

    def counts(self) -> dict[str, HostCounts]:
        return {phase: HostCounts(**found) for phase, found in self._found.items()}

    def note(self, what: str, times: int = 1) -> None:
        phase = self.phase
        if self._recomputes and "backward" in phase and (self._depth or _records_in_backward()):
            # Every micro batch recomputes alike.
            phase = "recompute" if phase == "backward" else ""
        if phase:
            self._found.setdefault(phase, Counter())[what] += times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = "views" if is_view(func) else "kernels"
        self.note(f"hook_{kind}" if self._hooks else kind)
        return func(*args, **(kwargs or {}))

    def _wrap_modules(self) -> None:
        call: Any = torch.nn.Module._call_impl

        @functools.wraps(call)
        def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            self.note("calls")
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        setattr(torch.nn.Module, "_call_impl", counted)  # noqa: B010

    def _wrap_hooks(self) -> None:
        def module(name: str) -> Any:
            return importlib.import_module(f"deepspeed.runtime.{name}")

        coordinator = module("zero.partitioned_param_coordinator").PartitionedParameterCoordinator
        self._within(coordinator, "fetch_sub_module")
        self._within(coordinator, "release_sub_module")
        third = module("zero.stage3").DeepSpeedZeroOptimizer_Stage3
        second = module("zero.stage_1_and_2").DeepSpeedZeroOptimizer
        self._within(third, "reduce_ready_partitions_and_remove_grads", "reduced")
        self._within(third, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads", "buckets")
        self._within(second, "process_gradients", "reduced")
        self._within(second, "reduce_ipg_grads", "buckets")

    def _wrap_gathers(self, parameter: Any) -> None:
        all_gather = parameter.all_gather_coalesced

        def counted(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = list(parameters)
            self.note("gathers")
            self.note("gathered", len(parameters))
            return all_gather(parameters, *args, **kwargs)

        parameter.all_gather_coalesced = counted

    def _within(self, owner: Any, name: str, noted: str = "") -> None:
        """What the method dispatches belongs to hooks."""
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if noted:
                self.note(noted)
            self._hooks += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._hooks -= 1

        setattr(owner, name, counted)


def _records_in_backward() -> bool:
    """A backward pass runs, and operations are recorded for one: they are recomputed, for autograd's own are not."""
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1


def is_view(operation: Any) -> bool:
    """Nothing is launched: the result shares its input's memory, or is not a tensor."""
    if operation.is_view:
        return True
    name = operation._schema.name.rpartition("::")[2]
    return name in _NOTHING_LAUNCHED


_NOTHING_LAUNCHED = frozenset(
    ("_unsafe_view", "detach", "_reshape_alias", "empty", "empty_like", "new_empty", "set_", "resize_")
)
"""Operations that share or reserve memory and launch no kernel, although their schema does not call them views."""
