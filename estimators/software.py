"""What differs where the software is not transformers 5 as DeepSpeed's engine and the printed commands run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OptimizerStep = Literal["foreach", "fused", "loop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The defaults are what the project plans for; older versions and other habits are described by the rest."""

    transformers: tuple[int, int] = (5, 0)
    """The version of transformers, major and minor. Before 4.48 the loss makes more copies of the logits
    (`memory.activations.loss`); before 5 every expert is a module of its own, which bitsandbytes quantizes, and GPT-2's
    eager attention masks its scores twice (`time.memory_bound.score_bytes`)."""
    deepspeed: tuple[int, int] = (0, 19)
    """The version of DeepSpeed. Before 0.19 stages 1 and 2 flatten the weights on the host, not on the GPU;
    before 0.13 hpZ's second copy does not serve what a recomputation gathers; before 0.6 stage 3 waits for the GPU at
    every fetch."""
    torch: tuple[int, int] = (2, 0)
    """The version of PyTorch. Before 1.13 CUDA loaded every kernel of its libraries at once
    (`memory.device_overhead.EAGER_CONTEXT_BYTES`); before 2.0 `zero_grad()` filled gradients with zeros, so that in
    plain PyTorch they live at every moment."""
    reentrant: bool = False
    """Checkpointing is reentrant (`use_reentrant=True`): it runs whole layers again, and FSDP's hooks on frozen weights
    then hold every layer's input to the end of the backward pass."""
    autocast: bool = False
    """What trains is kept in fp32 and cast in every pass (`torch.autocast`). Plain PyTorch only: DeepSpeed's engine
    casts the weights once. Of adapters `fp32_adapters` says what they are kept in."""
    fp32_adapters: bool = False
    """Adapters stay in the fp32 that peft creates them in (before 0.7 always, since 0.12 again); DeepSpeed's engine
    casts them to the training precision."""
    fp32_norms: bool = False
    """The norms give fp32, and so what passes from layer to layer is fp32: after peft's
    `prepare_model_for_kbit_training`, or with LayerNorm under autocast before 4-bit layers."""
    optimizer_step: OptimizerStep = "foreach"
    """How torch's Adam steps in plain PyTorch: all tensors at once with temporaries ("foreach", torch's default), in
    one kernel ("fused"), or tensor by tensor ("loop"). DeepSpeed's engine has an Adam of its own."""
    expandable_segments: bool = True
    """PyTorch's allocator runs with `expandable_segments:True`, as the printed commands set it."""
    pinned_inputs: bool = True
    """Inputs of checkpointed layers that wait in host RAM are page-locked, each block rounded up to a power of two, as
    transformers has it. Without, they are pageable: exactly as large, and copied more slowly; the printed lines of the
    script see to it."""


DEFAULT = Software()
