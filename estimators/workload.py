"""The training job without its parallelism: method, sequence length, precision, optimizer, kernels, software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from .rollouts import Rollouts

Loading = Literal["host", "host-fp32", "gpu", "gpu-fp32"]
OptimizerStep = Literal["auto", "foreach", "fused", "loop"]

FUSED_BY_DEFAULT = (4, 54)
"""First transformers whose Trainer makes torch's fused AdamW by default (training_args.py `default_optim`, with torch
2.8). Before, `adamw_torch` is foreach on a GPU; `adamw_hf` (up to 4.30) has temporaries of the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Library versions and their settings. The defaults are transformers 5 and DeepSpeed 0.19 as the printed commands
    run them."""

    transformers: tuple[int, int] = (5, 0)
    """Major and minor version. Before 4.48 the loss makes more copies of the logits (`memory.activations.loss`); before
    5 every expert is a separate module: bitsandbytes quantizes it, its routing waits for the GPU, and ZeRO-3 gathers it
    separately; and GPT-2's eager attention masks its scores twice. In 4.38 and 4.39 Llama has a mask without padding;
    before 4.54 key and value heads are repeated for torch's attention."""
    deepspeed: tuple[int, ...] = (0, 19, 8)
    """Major and minor version, and a patch. What an offload costs depends on it (`time.offload_time`), as does
    `pins_by_default`. Before 0.19 stages 1 and 2 flatten the weights on the host; before 0.18 stage 3 hooks
    every module of an expert unless `set_z3_leaf_modules` was called; before 0.13 gathers of a recomputation do not use
    hpZ's second copy; before 0.6 stage 3 waits for the GPU at every fetch."""
    trl: tuple[int, int] = (1, 16)
    """Major and minor version, for `Workload.framework` "trl". Before 1.7 its trainers use transformers' loss. At
    least in 1.7 to 1.9 a chunk is 256 tokens by all columns, with up to 2 V H bytes less; they are counted as 1.16."""
    padding_mask: bool = False
    """Whether the samples of a batch are padded. torch's attention ("sdpa") then gets a mask, and its memory-efficient
    kernel computes all pairs of tokens, with repeated heads. The flash-attn package handles padding without a mask."""
    reentrant: bool = False
    """Whether checkpointing is reentrant (`use_reentrant=True`): whole layers run again, and FSDP's hooks on frozen
    weights hold every layer's input to the end of the backward pass."""
    autocast: bool = False
    """Whether trained weights are fp32 and cast in every pass (`torch.autocast`); the hidden states between layers are
    then fp32. Plain PyTorch only; for adapters see `fp32_adapters`."""
    tf32: bool = False
    """Whether fp32 matrix products run in TF32 on GPUs that have it (`torch.backends.cuda.matmul.allow_tf32`, on by
    default in torch 1.7 to 1.11; the Trainer's `tf32`). Fused attention stays in fp32, as does a dry run's schedule."""
    fp32_adapters: bool = False
    """Whether adapters stay in fp32, in which peft creates them (before 0.7 always, since 0.12 again). DeepSpeed's
    engine casts them to the training precision."""
    fp32_norms: bool = False
    """Whether norms and layer inputs are fp32: after peft's `prepare_model_for_kbit_training`, or with LayerNorm under
    autocast before 4-bit layers."""
    fp32_embeddings: bool = False
    """Whether embeddings and head of a quantized model are fp32, as after peft's `prepare_model_for_kbit_training` (TRL
    and DeepSpeed's engine cast them back to bf16). Under autocast the head is cast for every loss."""
    from_scratch: bool = False
    """Whether the script builds the model from its configuration, without reading a checkpoint."""
    loading: Loading = "host"
    """Where each rank holds the whole model until the engine takes it, and in which type: "host" or "gpu" (a
    `device_map`) in the training precision, "host-fp32" (`from_pretrained` in fp32), "gpu-fp32" (what trains is cast to
    fp32 on the GPU, as by LLaMA-Factory). At stage 3 `zero.Init` shards the model while it is built."""
    zero_init: bool = True
    """Whether `zero.Init` is active at stage 3. Not if the model is built before TrainingArguments, or without
    `zero.Init` for `deepspeed.initialize`: the engine then moves the whole model to every GPU before it shards it."""
    optimizer_step: OptimizerStep = "auto"
    """Implementation of torch's Adam: "foreach" (torch's default on a GPU), "fused", or "loop" over tensors. Under
    DeepSpeed "auto" is DeepSpeed's own optimizer; any other value means that the training script creates the optimizer.
    In plain PyTorch "auto" is `Workload.script_step`."""
    expandable_segments: bool = True
    """Whether the allocator runs with `expandable_segments:True`, as in the printed commands."""
    varying_lengths: bool = False
    """Whether each batch is padded to its longest sample, instead of packed or padded to a fixed length. A batch of one
    then has no padding (`Workload.in_batch`). Without `expandable_segments` the allocator keeps blocks of many sizes,
    which nvidia-smi includes."""
    pinned_inputs: bool = True
    """Whether layer inputs in host RAM are page-locked, each block rounded up to a power of two, as in transformers.
    Pageable ones have their exact size and are copied more slowly."""

    @property
    def pins_by_default(self) -> bool:
        """Whether DeepSpeed takes an absent `pin_memory` as true (runtime/zero/offload_config.py)."""
        return self.deepspeed >= (0, 19, 5)


DEFAULT = Software()

Method = Literal["full", "lora", "qlora"]
Precision = Literal["bf16", "fp16", "fp32"]
MatmulPrecision = Literal["bf16", "fp16", "fp32", "tf32"]
"""Number format of matrix products."""
TORCH_DTYPES: Mapping[Precision, str] = MappingProxyType({"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"})
"""torch's name of each precision."""
PRECISIONS: Mapping[str, Precision] = MappingProxyType({name: precision for precision, name in TORCH_DTYPES.items()})
AttentionKernel = Literal["flash", "sdpa", "eager", "triton"]
LossKernel = Literal[
    "standard",
    "fused",
    "in-place",
    "chunked",
    "chunked-softmax",
    "chunked-head",
    "tiled",
    "log-probs",
    "odds-ratio",
    "value-head",
]
Mlp = Literal["whole", "tiled"]
Quantization = Literal["nf4", "int8", "gptq"]
LayerKernels = Literal["torch", "liger", "unsloth"]
Framework = Literal["hf", "trl", "deepspeed"]
Objective = Literal[
    "next-token", "classification", "embedding", "dpo", "kto", "orpo", "simpo", "reward", "grpo", "rloo", "ppo"
]
NEXT_TOKEN: Objective = "next-token"
"""Fine-tuning on given samples, and pre-training."""

DEFAULT_SEQ_LEN = 2048
"""Sequence length if neither the user nor the data give one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    objective: Objective = NEXT_TOKEN
    """A key of `objectives.OBJECTIVES`."""
    precompute_ref_log_probs: bool = False
    """Whether the policy computes the reference model's log-probabilities before the training."""
    rollouts: Rollouts | None = None
    """Generation of completions for "grpo", "rloo" and "ppo"; None for other objectives."""
    method: Method = "full"
    quantization: Quantization = "nf4"
    """Weight format under method "qlora": bitsandbytes' NF4 with double quantization or int8 (LLM.int8), or an existing
    GPTQ checkpoint in four bits and groups of 128."""
    lora_rank: int = 8
    lora_targets: tuple[str, ...] | None = None
    """Suffixes of module names (`q_proj`); None for peft's "all-linear" (`lora.adapters`)."""
    modules_to_save: tuple[str, ...] = ()
    """Suffixes of names of embeddings and output heads that LoRA trains as copies (`lora.trained_copies`)."""
    freeze: tuple[str, ...] = ()
    """Frozen parts of a vision-language model (`vision_parts.PATTERNS`)."""
    dora: bool = False
    """Whether adapters also train the norm of each output's weights (DoRA, peft's `use_dora`)."""
    lora_dropout: float = 0.0
    """Dropout before each adapter. Memory and time depend only on whether it is 0."""
    seq_len: int = 2048
    """S, tokens of a sample, padded or packed."""
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    """A key of `optimizers.OPTIMIZERS`."""
    optimizer_block: bool | None = None
    """Whether the configuration has an `optimizer` block, from which DeepSpeed makes the optimizer; None for an emitted
    one (`parameter_groups.emits_optimizer_block`)."""
    eval_batch: int | None = None
    """Samples per GPU of an evaluation between two steps; None without evaluation."""
    eval_logits: int | None = None
    """Evaluation batches whose logits are on every GPU at the same time, for metrics; None without metrics."""
    eval_samples: int | None = None
    """Samples of such an evaluation, whose logits are collected in host RAM; None if unknown."""
    eval_new_tokens: int | None = None
    """Tokens that an evaluation generates for each sample; None without generation."""
    global_batch_size: int | None = None
    """Samples per optimizer step over all GPUs, which the search keeps exactly; None if any number is allowed."""
    attention: AttentionKernel = "sdpa"
    """"triton" is FlashAttention's Triton kernel of 2023, from the model's own code (llm-foundry)."""
    loss: LossKernel = "standard"
    """A key of `objectives.LOSSES`. `objectives.default_loss` returns the framework's default."""
    mlp: Mlp = "whole"
    """"tiled": the feed-forward runs in tiles of tokens, repeated in the backward pass (DeepSpeed's TiledMLP)."""
    kernels: LayerKernels = "torch"
    """With "liger" and "unsloth", RMSNorm, rotary embedding and gated activation are one kernel each. The memory of
    unsloth's gated activation is counted as torch's, because its fused adapters are not modelled."""
    document_len: int | None = None
    """Mean length of packed documents, each of which attends only to itself; None if a sample is one document."""
    framework: Framework = "hf"
    """"hf": Trainer or accelerate; "trl": TRL's trainers; "deepspeed": plain `deepspeed.initialize`."""
    software: Software = DEFAULT
    sequence_parallel_size: int = 1
    """P, for one rank's part of a job under Ulysses (`rank_share`); `seq_len` is then S / P."""

    def rank_share(self, sequence_parallel_size: int) -> Workload:
        # The global batch is dropped: the passes of a rank do not depend on it, and caches compare whole workloads.
        if sequence_parallel_size == 1 and self.global_batch_size is None:
            return self
        return replace(
            self,
            seq_len=self.seq_len // sequence_parallel_size,
            sequence_parallel_size=sequence_parallel_size,
            global_batch_size=None,
        )

    def at_length(self, seq_len: int) -> Workload:
        return replace(self, seq_len=seq_len)

    def passes_cache_key(self) -> Workload:
        """Return a cache key: the fields that determine what a forward and a backward pass compute and keep."""
        return self if self.rollouts is None else _passes_cache_key(self)

    def layers_cache_key(self) -> Workload:
        """Return a cache key: the fields that determine what the layers compute and keep, without the loss."""
        return replace(self, loss="standard", eval_batch=None, global_batch_size=None)

    def weights_cache_key(self) -> Workload:
        """Return a cache key: the fields that determine weights, states and launches, without samples, batch, tiles."""
        return _weights_cache_key(self)

    @property
    def lora_alpha(self) -> int:
        """Scale of the adapters in every script that is started or printed; it changes neither memory nor time. peft's
        own default is 8 at any rank."""
        return 2 * self.lora_rank

    @property
    def scored_len(self) -> int:
        """Tokens of a sequence that the output layer processes. TRL's chunked head skips prompts (trl 1.16
        trainer/utils.py `add_fused_lm_head`), its PPO trainer does not."""
        return self.seq_len if self.objective == "ppo" else self.completion_len

    @property
    def completion_len(self) -> int:
        """Generated tokens of a sequence; the whole sequence for objectives without generation."""
        return self.seq_len if self.rollouts is None else min(self.seq_len, self.rollouts.max_completion_length)

    @property
    def uses_trainer(self) -> bool:
        """Whether transformers' Trainer, which TRL's trainers extend, or accelerate reads the configuration."""
        return self.framework != "deepspeed"

    def checkpoints_reentrantly(self, zero_stage: int) -> bool:
        """Return whether checkpointing is reentrant. TRL's trainers switch it on with adapters at stage 3 (trl 1.16
        trainer/sft_trainer.py)."""
        by_trl = self.framework == "trl" and self.method != "full" and zero_stage == 3
        return self.software.reentrant or by_trl

    def under_fsdp(self) -> Workload:
        """Return the workload under FSDP. FSDP casts weights and inputs itself, so full training computes in 16 bits
        without autocast."""
        return replace(self, software=replace(self.software, autocast=False)) if self.autocasts else self

    def in_batch(self, rows: int) -> Workload:
        """Return the workload with that number of rows in a batch. A single row that its own length pads has no
        padding, and transformers drops a mask of ones (5.24 masking_utils.py _ignore_causal_mask_sdpa)."""
        is_padded = self.software.padding_mask and self.software.varying_lengths
        return _without_padding(self) if rows == 1 and is_padded else self

    def under_engine(self, zero_stage: int) -> Workload:
        """Return the workload as DeepSpeed's engine trains it.

        The engine casts every parameter once, including adapters. From 0.19 on it casts none of a model built under
        zero.Init, such as the Trainer's at stage 3 (deepspeed 0.19.8 engine.py _cast_module_mixed_precision): adapters
        created in fp32 then stay so. TRL's trainers create them in the weights' type there, and checkpoint reentrantly.
        """
        return _under_engine(self, zero_stage)

    @property
    def script_step(self) -> OptimizerStep:
        """Implementation of an Adam that the training script creates: that of `software`, else the default of the
        Trainer's version or, in a custom training loop, of torch."""
        if self.software.optimizer_step != "auto":
            return self.software.optimizer_step
        fused = self.uses_trainer and self.software.transformers >= FUSED_BY_DEFAULT
        return "fused" if fused else "foreach"

    @property
    def matmul_precision(self) -> MatmulPrecision:
        return "tf32" if self.precision == "fp32" and self.software.tf32 else self.precision

    @property
    def autocasts(self) -> bool:
        """Whether this is full training of fp32 weights under autocast: linear layers cast weights and inputs to 16
        bits; norms, softmax, powers, sums and the hidden states between layers are fp32."""
        return self.software.autocast and self.method == "full" and self.precision != "fp32"

    @property
    def activation_itemsize(self) -> int:
        return 4 if self.autocasts else self.weight_bytes

    @property
    def weight_bytes(self) -> int:
        return 4 if self.precision == "fp32" else 2


@lru_cache(maxsize=256)
def _without_padding(workload: Workload) -> Workload:
    return replace(workload, software=replace(workload.software, padding_mask=False))


@lru_cache(maxsize=256)
def _under_engine(workload: Workload, zero_stage: int) -> Workload:
    software = workload.software
    initialized = zero_stage == 3 and workload.framework == "hf" and workload.method != "full"
    cast = replace(
        software,
        fp32_adapters=software.fp32_adapters and initialized and software.deepspeed >= (0, 19),
        autocast=False,
        fp32_embeddings=False,
        reentrant=workload.checkpoints_reentrantly(zero_stage),
    )
    return workload if cast == software else replace(workload, software=cast)


@lru_cache(maxsize=256)
def _passes_cache_key(workload: Workload) -> Workload:
    return replace(workload, rollouts=Rollouts(max_completion_length=workload.completion_len))


@lru_cache(maxsize=256)
def _weights_cache_key(workload: Workload) -> Workload:
    return replace(
        workload,
        seq_len=1,
        document_len=None,
        global_batch_size=None,
        eval_batch=None,
        eval_logits=None,
        eval_samples=None,
        eval_new_tokens=None,
        sequence_parallel_size=1,
        # TRL's head is gathered separately at stage 3.
        loss="chunked-head" if workload.loss == "chunked-head" else "standard",
        mlp="whole",
        rollouts=workload.rollouts and workload.rollouts.weights_cache_key(),
    )
