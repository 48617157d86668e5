"""How a step is executed beside its plan: what differs from DeepSpeed under transformers as it runs today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The defaults are what the project plans for; published runs need the rest."""

    sharding: Literal["zero", "fsdp"] = "zero"
    """What stage 3 stands for: ZeRO-3, whose hooks gather submodule by submodule, or PyTorch's FSDP with one unit per
    layer."""
    engine: bool = True
    """DeepSpeed's engine runs the step; False for a loop of one's own around one GPU, whose optimizer takes the
    gradients as they are."""
    fused_kernels: bool = False
    """RMSNorm, rotary embedding and gated activation are one kernel each, forward and backward, which reads its inputs
    and writes its result once (Liger, unsloth's kernels, torch.compile)."""
    attention_forward: float = 1.0
    """The speed of the flash kernel's forward pass against FlashAttention-2."""
    attention_backward: float = 1.0
    own_attention: bool = False
    """The model's code brings the attention that the workload names, whatever transformers' class offers
    (llm-foundry's MPT)."""
    reentrant: bool = False
    """Checkpointing runs whole layers again (`flops`, rule 6)."""


DEFAULT = Software()
