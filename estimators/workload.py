"""What differs where the software is not transformers 5 as DeepSpeed's engine and the printed commands run it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
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


Method = Literal["full", "lora", "qlora"]
Precision = Literal["bf16", "fp16", "fp32"]
AttentionKernel = Literal["flash", "sdpa", "eager", "triton"]
LossKernel = Literal["standard", "fused", "in-place", "chunked", "tiled"]
Mlp = Literal["whole", "tiled"]
Quantization = Literal["nf4", "int8", "gptq"]
LayerKernels = Literal["torch", "liger", "unsloth"]
Framework = Literal["hf", "deepspeed"]

DEFAULT_SEQ_LEN = 2048
"""Tokens of a sample where neither the user nor the data give a length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training job without its parallelism; what the plan decides is in `Plan`."""

    method: Method = "full"
    quantization: Quantization = "nf4"
    """The format of the base's weights under method "qlora": bitsandbytes' NF4 with double quantization or its int8
    (LLM.int8), or GPTQ in four bits and groups of 128, whose checkpoint must exist."""
    lora_rank: int = 8
    """The rank r of every adapter; it has no effect with method "full"."""
    lora_targets: tuple[str, ...] | None = None
    """The ends of module names (`q_proj`), None for all that peft's "all-linear" means; see `lora.adapters`."""
    modules_to_save: tuple[str, ...] = ()
    """The ends of names of embeddings and output heads of which LoRA trains a copy beside the frozen original (peft);
    see `lora.trained_copies`."""
    lora_dropout: float = 0.0
    """The probability of dropout before each adapter. Memory and time depend on whether it is 0, not on its size."""
    seq_len: int = 2048
    """S, the tokens of a sample as the model sees it (padded or packed)."""
    precision: Precision = "bf16"
    """The precision of weights and activations; masters and optimizer states follow from DeepSpeed's rules for it."""
    optimizer: str = "adamw"
    """A key of `estimators.optimizers.OPTIMIZERS`."""
    global_batch_size: int | None = None
    """Samples per optimizer step over all GPUs, which the search keeps exactly; None leaves them to it."""
    attention: AttentionKernel = "sdpa"
    """"triton" is FlashAttention's Triton kernel of 2023, which the model's own code must bring (llm-foundry)."""
    loss: LossKernel = "standard"
    """A "fused" loss never holds all logits (Liger's fused linear cross entropy); an "in-place" one writes the gradient
    over them (the cross entropies of flash-attn and unsloth); a "chunked" one upcasts a part at a time (litgpt); a
    "tiled" one makes the logits of a part at a time and forgets them, forward and backward (DeepSpeed's
    sequence_tiled_compute, `tiles.loss_tiles`)."""
    mlp: Mlp = "whole"
    """A "tiled" feed-forward works on a part of the tokens at a time, once more in the backward pass (DeepSpeed's
    TiledMLP; `tiles.mlp_tiles`)."""
    kernels: LayerKernels = "torch"
    """With "liger" and "unsloth" RMSNorm, rotary embedding and gated activation are one kernel each, forward and
    backward, which reads its inputs and writes its result once. In memory unsloth's gated activation counts as
    torch's: it is part of the fused adapters, which are not modelled."""
    document_len: int | None = None
    """The mean length of the documents that are packed into a sample, each of which attends to itself alone; None: a
    sample is one document."""
    framework: Framework = "hf"
    """Trainer and accelerate are "hf"; "deepspeed" is plain `deepspeed.initialize`."""
    software: Software = DEFAULT
    sequence_parallel_size: int = 1
    """P where this is one rank's part of a job with sequence parallelism (`of_rank`), whose `seq_len` is then S / P."""

    def of_rank(self, sequence_parallel_size: int) -> Workload:
        """What one of the ranks that share a sample computes of it, whatever the samples of a step are in all."""
        if sequence_parallel_size == 1 and self.global_batch_size is None:
            return self
        return replace(
            self,
            seq_len=self.seq_len // sequence_parallel_size,
            sequence_parallel_size=sequence_parallel_size,
            global_batch_size=None,
        )

    def of_weights(self) -> Workload:
        """What decides the weights, their states and how often the host launches: nothing of a sample, of the batch or
        of how loss and feed-forward are cut into tiles. Questions that differ in those alone share what it keys."""
        return _of_weights(self)

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight as the forward pass uses it."""
        return 4 if self.precision == "fp32" else 2


@lru_cache(maxsize=256)
def _of_weights(workload: Workload) -> Workload:
    return replace(
        workload,
        seq_len=1,
        document_len=None,
        global_batch_size=None,
        sequence_parallel_size=1,
        loss="standard",
        mlp="whole",
    )
