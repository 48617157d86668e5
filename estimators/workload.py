"""What is trained: method, sequence length, precision, optimizer, kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["full", "lora", "qlora"]
Precision = Literal["bf16", "fp16", "fp32"]
AttentionKernel = Literal["flash", "sdpa", "eager"]
LossKernel = Literal["standard", "fused"]
Framework = Literal["hf", "deepspeed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training job without its parallelism; what the plan decides is in `Plan`.

    lora_rank:    r of every adapter; no effect with method "full".
    lora_targets: ends of module names (`q_proj`), None for all that peft's "all-linear" means; see `lora.adapters`.
    lora_dropout: probability of the dropout before each adapter; memory depends on whether there is one, time is not
        counted.
    adapters_fp32: adapters stay in the fp32 that peft creates them in; DeepSpeed's engine casts them to `precision`.
    seq_len:      S, tokens per sample as the model sees them (padded or packed).
    precision:    of weights and activations; masters and optimizer states follow from DeepSpeed's rules for it.
    optimizer:    a key of `estimators.optimizers.OPTIMIZERS`.
    global_batch_size: samples per optimizer step over all GPUs, kept exactly; None leaves it to the search.
    loss:         "fused" for a loss that never holds all logits (Liger's fused linear cross entropy).
    framework:    "hf" for Trainer and accelerate, "deepspeed" for plain `deepspeed.initialize`.
    """

    method: Method = "full"
    lora_rank: int = 8
    lora_targets: tuple[str, ...] | None = None
    lora_dropout: float = 0.0
    adapters_fp32: bool = False
    seq_len: int = 2048
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    global_batch_size: int | None = None
    attention: AttentionKernel = "sdpa"
    loss: LossKernel = "standard"
    framework: Framework = "hf"

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight as the forward pass uses it."""
        return 4 if self.precision == "fp32" else 2
