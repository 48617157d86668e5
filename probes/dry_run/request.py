"""What the subprocess is asked to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One dry run, in JSON's types.

    config:     the ds_config.json, `auto` still in it.
    model:      a transformers `config.json` as a dict, or None when `factory` is given.
    factory:    "FILE.py:FUNCTION"; the function returns the module.
    input_shape: shape of one sample for a factory without `make_batch`.
    method, lora_rank, lora_targets, lora_dropout, seq_len, precision, optimizer, attention, framework: as in
        `Workload`.
    micro_batch_size, gradient_accumulation_steps: fill `auto`, or an absent value; None leaves them to DeepSpeed.
    compute_capability: of the GPU whose kernels are chosen, major * 10 + minor.
    gpu_memory_bytes:   what the simulated GPU claims to have; nothing fails when it is exceeded.
    """

    config: dict[str, Any]
    model: dict[str, Any] | None
    factory: str | None
    input_shape: tuple[int, ...] | None
    world_size: int
    gpus_per_node: int
    rank: int
    method: str
    lora_rank: int
    lora_targets: tuple[str, ...] | None
    seq_len: int
    precision: str
    optimizer: str
    attention: str
    framework: str
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    gradient_checkpointing: bool
    compute_capability: int
    gpu_memory_bytes: int
    iterations: int
    expandable_segments: bool
    lora_dropout: float = 0.0
