"""DeepSpeed's compiled kernels, replaced by ones that compute nothing.

DeepSpeed asks its accelerator for an op builder and that for a loaded extension. The classes around the kernels
(`FusedAdam`, `DeepSpeedCPUAdam`, the NVMe swappers) stay DeepSpeed's own, so the states they keep, and in which dtype,
follow the installed version. The real kernels update in place and allocate nothing either
(csrc/adam/multi_tensor_adam.cu, csrc/adam/cpu_adam_impl.cpp), which is why doing nothing is faithful where torch's
foreach Adam would not be. Those that do allocate have a stand-in of their own: the quantizer, and the drive's handle.
"""

from __future__ import annotations

import sys
from typing import Any

from ..recording.ledger import Ledger
from ..recording.schedule import ScheduleRecorder
from . import aio
from .quantizer import QuantizerKernels


class _NoOpExtension:
    """Any function of a compiled extension: updates in place, allocates nothing; `recorder` hears of the call."""

    def __init__(self, recorder: ScheduleRecorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: self._recorder.note_kernel(name, arguments)


class _AsyncIo(_NoOpExtension):
    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder) -> None:
        super().__init__(recorder)
        self._ledger = ledger

    def aio_handle(self, *arguments: Any, **options: Any) -> aio.CountingHandle:
        return aio.CountingHandle(self._ledger, self._recorder, *arguments, **options)


def op_builder(class_name: str, ledger: Ledger, recorder: ScheduleRecorder) -> type | None:
    """The class that DeepSpeed instantiates and whose `load()` returns the extension; None for what no GPU has."""
    if class_name in ("ShareMemCommBuilder", "CCLCommBuilder"):  # collectives between CPUs
        return None

    class Builder:
        NAME = name = class_name

        def load(self, verbose: bool = True) -> _NoOpExtension | QuantizerKernels:
            if class_name == "QuantizerBuilder":
                return QuantizerKernels(recorder)
            return _AsyncIo(ledger, recorder) if class_name == "AsyncIOBuilder" else _NoOpExtension(recorder)

        def is_compatible(self, verbose: bool = False) -> bool:
            return True

        def builder_available(self) -> bool:
            return True

    Builder.__name__ = class_name
    return Builder


def install(ledger: Ledger, recorder: ScheduleRecorder) -> None:
    """Exchange the builders that DeepSpeed's modules bound while they were imported, before there was our
    accelerator."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("deepspeed.") and ".op_builder." not in module_name:
            for name in [name for name in vars(module) if name.endswith("Builder")]:
                setattr(module, name, op_builder(name, ledger, recorder))
