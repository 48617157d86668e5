"""What DeepSpeed's hooks make the host do beside operations: the recorder hears of every module that is visited, weight
that is gathered and gradient that is taken."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..recording.schedule import ScheduleRecorder


def _once(*_: Any) -> int:
    return 1


def _gathered(parameters: Any, *_: Any) -> int:
    """Of the parameters that a fetch asks for, those that are not there yet."""
    return sum(parameter.ds_status.name == "NOT_AVAILABLE" for parameter in parameters)


_HOOKS: tuple[tuple[str, str, str, Callable[..., int]], ...] = (
    ("parameter_offload.DeepSpeedZeRoOffload", "pre_sub_module_forward_function", "visit_forward", _once),
    ("parameter_offload.DeepSpeedZeRoOffload", "post_sub_module_forward_function", "", _once),
    ("parameter_offload.DeepSpeedZeRoOffload", "pre_sub_module_backward_function", "visit_backward", _once),
    ("parameter_offload.DeepSpeedZeRoOffload", "post_sub_module_backward_function", "", _once),
    ("partitioned_param_coordinator.PartitionedParameterCoordinator", "__all_gather_params", "gather", _gathered),
    ("stage_1_and_2.DeepSpeedZeroOptimizer", "process_gradients", "bucketed_gradient", _once),
    ("stage_1_and_2.DeepSpeedZeroOptimizer", "reduce_ipg_grads", "bucket", _once),
    ("stage3.DeepSpeedZeroOptimizer_Stage3", "reduce_ready_partitions_and_remove_grads", "partitioned_gradient", _once),
    ("stage3.DeepSpeedZeroOptimizer_Stage3", "__reduce_and_partition_ipg_grads", "bucket", _once),
)
"""Class below deepspeed.runtime.zero, its method, what `HostCosts` calls it ("": part of another), and how often that
happens in one call of the method (deepspeed 0.18.3 to 0.19.8)."""


def record(recorder: ScheduleRecorder) -> None:
    """After DeepSpeed is imported and before its engine is made."""

    def recorded(method: Any, call: str, times: Callable[..., int]) -> Any:
        def run(self: Any, *arguments: Any, **options: Any) -> Any:
            if call:
                recorder.call(call, times(*arguments))
            with recorder.hook():
                return method(self, *arguments, **options)

        return run

    for path, method, call, times in _HOOKS:
        module, _, owner = path.partition(".")
        hooked: Any = getattr(importlib.import_module(f"deepspeed.runtime.zero.{module}"), owner)
        name = f"_{owner}{method}" if method.startswith("__") else method
        setattr(hooked, name, recorded(getattr(hooked, name), call, times))
