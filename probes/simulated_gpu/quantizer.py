"""DeepSpeed's quantization kernels, replaced by ones that allocate what the real ones do and compute nothing.

Shapes and types of the results are those of deepspeed 0.19.8 csrc/quantization/pt_binding.cpp (`quantize_kernel`,
`dequantize`, `ds_swizzle_quant`, `quantized_reduction`): numbers in an int8 tensor, two to a byte in 4 bits, and one
fp32 scale for each group of a symmetric quantization. They run on CUDA only, so nothing here was compared with them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..recording.schedule import ScheduleRecorder


class QuantizerKernels:
    """The functions of the extension that ZeRO++'s collectives call; each reads its input and writes its results
    once."""

    Symmetric = 0
    """The only kind that is called: no offset beside the scale."""

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
    def _scales(beside: Any, groups: int) -> Any:
        return beside.new_empty((groups, 1), dtype=torch.float32)

    def _noted(self, name: str, results: list[Any], read: Any) -> list[Any]:
        self._recorder.note_memory_kernel(name, [read, *results])
        return results
