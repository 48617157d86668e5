"""Kernels of DeepSpeed that the ranks of a run need and the device may not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ds_configs.read import needs_quantizer
from ...estimators.errors import WorkloadError
from .job import Device


def check_kernels(config: Mapping[str, Any], device: Device) -> None:
    """Raises WorkloadError for what no rank on this device can run: ZeRO++'s quantized collectives on the CPU, where
    DeepSpeed has no kernels for them (deepspeed 0.19.8 op_builder/cpu/no_impl.py)."""
    if device == "cpu" and needs_quantizer(config):
        raise WorkloadError(
            "quantized collectives do not run on the CPU",
            why="DeepSpeed's quantization kernels are for NVIDIA's GPUs",
            fix="set zero_quantized_weights and zero_quantized_gradients to false, or make a dry run",
        )
