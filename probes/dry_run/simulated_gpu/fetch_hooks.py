"""ZeRO-3's hooks around every module: the recorder hears of each pass, because their Python keeps the host busy."""

from __future__ import annotations

import importlib
from typing import Any

from ....estimators.schedule.recorded import HostCall
from ..recording.schedule import ScheduleRecorder

_HOOKS: dict[str, HostCall] = {
    "pre_sub_module_forward_function": "fetch forward",
    "pre_sub_module_backward_function": "fetch backward",
}
"""Methods that run once for each module and pass (deepspeed 0.18.3 to 0.19.8, runtime/zero/parameter_offload.py)."""


def record(recorder: ScheduleRecorder) -> None:
    """After DeepSpeed is imported and before its engine is made."""
    hooks: Any = importlib.import_module("deepspeed.runtime.zero.parameter_offload").DeepSpeedZeRoOffload

    def recorded(method: Any, call: HostCall) -> Any:
        def run(self: Any, module: Any) -> Any:
            recorder.call(call)
            return method(self, module)

        return run

    for name, call in _HOOKS.items():
        setattr(hooks, name, recorded(getattr(hooks, name), call))
