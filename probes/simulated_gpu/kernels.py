"""Replacements of DeepSpeed's compiled kernels, which compute nothing.

DeepSpeed loads an extension through an op builder of its accelerator. The classes around the kernels (`FusedAdam`,
`DeepSpeedCPUAdam`, the NVMe swappers) stay DeepSpeed's own, so their states and dtypes are those of the installed
version. The real Adam kernels update in place and allocate nothing either (csrc/adam/multi_tensor_adam.cu,
csrc/adam/cpu_adam_impl.cpp). Kernels that allocate have their own replacements: the quantizer and the NVMe handle.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import torch

from ..recording.ledger import Ledger
from ..recording.schedule import ScheduleRecorder


class _NoOpExtension:
    """Any function of a compiled extension: allocates nothing; the recorder notes the call."""

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

    def aio_handle(self, *arguments: Any, **options: Any) -> CountingHandle:
        return CountingHandle(self._ledger, self._recorder, *arguments, **options)


def op_builder(class_name: str, ledger: Ledger, recorder: ScheduleRecorder) -> type | None:
    """The class that DeepSpeed instantiates and whose `load()` returns the extension; None for CPU collectives."""
    if class_name in ("ShareMemCommBuilder", "CCLCommBuilder"):
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
    """Replace the builders that DeepSpeed's modules bound at their import, before the accelerator was set."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("deepspeed.") and ".op_builder." not in module_name:
            for name in [name for name in vars(module) if name.endswith("Builder")]:
                setattr(module, name, op_builder(name, ledger, recorder))


class CountingHandle:
    """Replaces `aio_handle` (deepspeed/ops/op_builder/async_io.py): counts bytes, and every transfer succeeds at once.

    `wait()` returns the number of transfers since the last call. Its page-locked tensors come from `posix_memalign` in
    the real handle, so torch's rounding of pinned blocks does not apply to them.
    """

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, *arguments: Any, **options: Any) -> None:
        self._ledger = ledger
        self._recorder = recorder
        self._pending = 0
        self._queue = recorder.new_stream()

    def async_pread(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._transfer("read", buffer, path)
        self._pending += 1
        return 0

    def async_pwrite(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._transfer("write", buffer, path)
        self._pending += 1
        return 0

    def sync_pread(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._transfer("read", buffer, path)
        self._recorder.synchronize_stream(self._queue)
        return 1

    def sync_pwrite(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._transfer("write", buffer, path)
        self._recorder.synchronize_stream(self._queue)
        return 1

    def _transfer(self, kind: Literal["read", "write"], buffer: torch.Tensor, path: str) -> None:
        self._ledger.nvme_transfer(kind, path, buffer.nbytes)
        self._recorder.transfer(kind, buffer.nbytes, self._queue)

    def wait(self) -> int:
        self._recorder.synchronize_stream(self._queue)
        done = self._pending
        self._pending = 0
        return done

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        return self._ledger.new_locked(int(numel), example.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._ledger.is_pinned(tensor)


class QuantizerKernels:
    """The extension of ZeRO++'s collectives; each function reads its input and writes its results once.

    Shapes and types of the results are those of deepspeed 0.19.8 csrc/quantization/pt_binding.cpp (`quantize_kernel`,
    `dequantize`, `ds_swizzle_quant`, `quantized_reduction`): an int8 tensor, with two numbers per byte in 4 bits, and
    one fp32 scale per group of a symmetric quantization. They run on CUDA only and are not tested against it.
    """

    Symmetric = 0
    """The only kind that is called: a scale without offset."""

    def __init__(self, recorder: ScheduleRecorder) -> None:
        self._recorder = recorder

    def quantize(self, values: Any, groups: int, bits: int, kind: int) -> list[Any]:
        *leading, last = values.shape
        numbers = values.new_empty((*leading, last * bits // 8), dtype=torch.int8)
        return self._noted("quantize", [numbers, self._scales(values, groups)], values)

    def dequantize(self, numbers: Any, scales: Any, groups: int, bits: int, kind: int) -> Any:
        *leading, last = numbers.shape
        values = numbers.new_empty((*leading, last * 8 // bits), dtype=torch.half)
        return self._noted("dequantize", [values], numbers)[0]

    def swizzle_quant(
        self, values: Any, groups: int, bits: int, kind: int, pipeline_size: int, nodes: int, per_node: int
    ) -> list[Any]:
        numbers = values.new_empty((values.numel() * bits // 8,), dtype=torch.int8)
        return self._noted("swizzle_quant", [numbers, self._scales(values, groups)], values)

    def quantized_reduction(
        self, numbers: Any, scales: Any, in_groups: int, out_groups: int, bits: int, kind: int, per_node: int
    ) -> list[Any]:
        *leading, last = numbers.shape
        reduced = numbers.new_empty((*leading, last // per_node))
        return self._noted("quantized_reduction", [reduced, self._scales(numbers, out_groups)], numbers)

    @staticmethod
    def _scales(example: Any, groups: int) -> Any:
        return example.new_empty((groups, 1), dtype=torch.float32)

    def _noted(self, name: str, results: list[Any], read: Any) -> list[Any]:
        self._recorder.note_memory_kernel(name, [read, *results])
        return results
