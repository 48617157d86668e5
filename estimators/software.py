"""How a step is executed beside its plan: what differs from DeepSpeed under transformers as it runs today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The defaults are what the project plans for; published runs need the rest.

    sharding:        what stage 3 stands for: ZeRO-3, whose hooks gather submodule by submodule, or PyTorch's FSDP with
                     one unit per layer.
    fused_kernels:   RMSNorm, rotary embedding and gated activation are one kernel each, forward and backward, which
                     read their inputs and write their result once (Liger, unsloth's kernels, torch.compile).
    attention_forward, attention_backward: speed of the flash kernel against FlashAttention-2.
    reentrant:       checkpointing runs whole layers again (`flops`, rule 6).
    """

    sharding: Literal["zero", "fsdp"] = "zero"
    fused_kernels: bool = False
    attention_forward: float = 1.0
    attention_backward: float = 1.0
    reentrant: bool = False


DEFAULT = Software()
