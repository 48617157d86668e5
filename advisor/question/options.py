"""The options of a question, each declared once: its type, default and help.

Everything else is derived from the declarations: the options of every command (`advisor.cli.options`), the signature
and documentation of `advise()` and `estimate()`, the form of the page (`advisor.page`), and the table in docs/asking.md
(`benchmarks/shown_output.py`). A new option needs its declaration here, and the code that uses it: an option of plans
is in `Question.options`, an option of the workload is a field of the same name there.
"""

# Without `from __future__ import annotations`: the annotations are read when this module is imported.

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from ...estimators.errors import UnknownOptionError
from ...estimators.rollouts import BATCH_SIZE
from ...estimators.workload import (
    NEXT_TOKEN,
    AttentionKernel,
    Framework,
    LayerKernels,
    LossKernel,
    Method,
    Mlp,
    Objective,
    Quantization,
)
from .option import KIBI, Count, Option, declared
from .rollout_options import RolloutOptions

if TYPE_CHECKING:
    from ...estimators.hardware import Cluster

CheckpointingChoice = Literal["auto", "on", "off", "offload"]
Device = Literal["cuda", "cpu"]
Experts = Literal["zero", "autoep"]
Risk = Literal["safe", "balanced", "bold"]

GLOBAL_BATCH = 32
"""Default samples per optimizer step, before `Question.default_batch` rounds it to the GPUs: the geometric mean of 8
and 128, between which published recipes lie. 8 is usual on one GPU (LLaMA-Factory examples/train_*@ff6d4d1: 13 of 18
files), 128 on eight (alignment-handbook recipes@925acdf: 14 of 22 files; Stanford Alpaca). It does not grow with the
GPUs, because it decides how a training converges."""

IMPORT_OPTIONS = (
    *("gpus", "ram", "host", "nvme", "link", "interconnect"),
    *("method", "lora_rank", "seq_len", "loss", "micro_batch", "gradient_checkpointing", "risk", "offline"),
)
"""The options of a question about the file of a training tool, without the model: most replace a value of the file."""

LORA_METHODS: tuple[Method, ...] = ("lora", "qlora")
_QLORA: tuple[Method, ...] = ("qlora",)


class MachineOptions(TypedDict, total=False):
    """The machines that train."""

    gpus: Annotated[
        "str | Cluster",
        Option(
            "GPUs: 2x32GB, 8xA100-80GB, 4x8xH100 (nodes x GPUs x kind), RTX4090, or auto.",
            "auto",
            metavar="SPEC",
            title="GPU",
        ),
    ]
    ram: Annotated[
        str | None,
        Option("Host RAM per node: 256GB as sold, 200GiB as usable.", metavar="SIZE", title="Host RAM per node"),
    ]
    host: Annotated[
        str | None,
        Option("Host: 72cores,500GB/s, 16cores,2xDDR5-5600 or a name: desktop.", metavar="HOST", title="Host machine"),
    ]
    nvme: Annotated[
        str | None,
        Option(
            "Folder on an NVMe drive, its free space: /nvme:2TB, with rates /nvme:2TB@7GB/s,5GB/s or @pcie4.",
            metavar="PATH:SIZE",
            title="NVMe drive",
        ),
    ]
    link: Annotated[
        str | None,
        Option("Links in a node: nvlink, infinity-fabric, pcie4x8.", metavar="LINK", title="Links in a node"),
    ]
    interconnect: Annotated[
        str | None,
        Option("Bandwidth between nodes, per node and direction: 200Gb/s.", metavar="RATE", title="Between nodes"),
    ]
    threads: Annotated[
        Count | None, Option("Host threads per rank.", default_text="as in the printed command", title="Host threads")
    ]


class CpuOptions(TypedDict, total=False):
    """Processes on this machine's CPU in place of GPUs."""

    device: Annotated[Device, Option("Train on GPUs, or with processes on this machine's CPU.", "cuda")]
    ranks: Annotated[Count | None, Option("Number of ranks with --device cpu.", default_text="2")]
    memory: Annotated[str | None, Option("Memory limit per rank with --device cpu, such as 2GB.", metavar="SIZE")]


class MethodOptions(TypedDict, total=False):
    """The trained part of a model."""

    objective: Annotated[
        Objective,
        Option(
            "Next token, labels (classification, reranking), pairs of texts (embedding), or by TRL preferences (dpo, "
            "orpo, simpo: a sample is a pair; kto: one sequence), rewards (pairs), or reinforcement learning (grpo, "
            "rloo, ppo: completions).",
            NEXT_TOKEN,
        ),
    ]
    precompute_ref_log_probs: Annotated[
        bool,
        Option(
            "Compute the reference model of dpo and kto before the training, and then free it.",
            False,
            title="Precomputed reference",
        ),
    ]
    method: Annotated[Method, Option("Train all weights, LoRA adapters, or LoRA on a quantized base.", "full")]
    quantization: Annotated[
        Quantization,
        Option("Weight format of qlora: bitsandbytes NF4 or int8, or a 4-bit GPTQ checkpoint.", "nf4", methods=_QLORA),
    ]
    lora_rank: Annotated[Count, Option("Rank of the LoRA adapters.", 8, methods=LORA_METHODS, title="LoRA rank")]
    lora_dropout: Annotated[
        float,
        Option(
            "Dropout probability of the LoRA adapters, below 1.",
            0.0,
            metavar="P",
            methods=LORA_METHODS,
            title="LoRA dropout",
        ),
    ]
    lora_targets: Annotated[
        str | Sequence[str] | None,
        Option(
            "Modules to adapt: q_proj,v_proj; linear-modules: those that tools list, without fused experts.",
            metavar="NAMES",
            methods=LORA_METHODS,
            default_text="all linear layers",
            title="LoRA targets",
        ),
    ]
    dora: Annotated[
        bool, Option("Weight-decomposed adapters (DoRA, peft's use_dora).", False, methods=LORA_METHODS, title="DoRA")
    ]
    modules_to_save: Annotated[
        str | Sequence[str] | None,
        Option("Embeddings and heads to train in full: embed_tokens,lm_head.", metavar="NAMES", methods=LORA_METHODS),
    ]
    freeze: Annotated[
        str | Sequence[str] | None,
        Option(
            "Frozen parts of a vision-language model, without adapters: vision-tower, projector, language-model.",
            metavar="PARTS",
            default_text="none",
            title="Frozen parts",
        ),
    ]


class ModuleOptions(TypedDict, total=False):
    """Inputs of a module of the user's."""

    input_shape: Annotated[
        str | None,
        Option(
            "For FILE.py:FUNCTION: the shape of one sample, such as 3,32,32; several inputs: 3,32,32+scalar.",
            metavar="SIZES",
            default_text="the file's make_batch",
        ),
    ]
    input_dtype: Annotated[
        str | None,
        Option("Type of the inputs: int64, or one type per input: float+int64.", metavar="TYPES", default_text="float"),
    ]


class BatchOptions(TypedDict, total=False):
    """Samples, precision and optimizer."""

    seq_len: Annotated[
        Count | Literal["max"] | None,
        Option(
            "Tokens per sample; max: the longest that fits.",
            default_text="2048, or the model's limit if shorter; grpo, rloo and ppo: 512 plus the completion",
            kilo=KIBI,
            title="Sequence",
        ),
    ]
    global_batch: Annotated[
        Count | Literal["no-accumulation"] | None,
        Option(
            "Samples per step, kept exactly; no-accumulation: the fastest micro batch.",
            default_text=f"about {GLOBAL_BATCH}; less for few samples, or for a step of over 4 M tokens; grpo and "
            f"rloo: about {BATCH_SIZE:,}; ppo: 64 per GPU",
            former={
                "fastest": "write no-accumulation for one micro batch per GPU, whichever is fastest; a larger batch, "
                "which accumulates more of them, is faster per token"
            },
        ),
    ]
    micro_batch: Annotated[
        Count | Literal["max"] | None,
        Option("Samples per GPU and forward pass; max: the most that fit.", default_text="the fastest that fits"),
    ]
    eval_batch: Annotated[
        Count | None,
        Option(
            "Samples per GPU in evaluations, which must also fit (per_device_eval_batch_size).",
            default_text="no evaluation",
            title="Evaluation batch",
        ),
    ]
    eval_logits: Annotated[
        Count | None,
        Option(
            "Evaluation batches whose logits stay on each GPU for metrics (eval_accumulation_steps; default: all).",
            default_text="none",
            title="Evaluation logits",
        ),
    ]
    eval_samples: Annotated[
        Count | None,
        Option(
            "Samples per evaluation; their logits are collected in host RAM.",
            default_text="those of --eval-split, or the --eval-logits batches",
            title="Evaluation samples",
        ),
    ]
    eval_new_tokens: Annotated[
        Count | None,
        Option(
            "Tokens that evaluations generate per sample (predict_with_generate).",
            default_text="none",
            kilo=KIBI,
            title="Evaluation tokens",
        ),
    ]
    document_len: Annotated[
        Count | None,
        Option(
            "Mean length of the documents packed into a sample.",
            default_text="one document per sample",
            kilo=KIBI,
            title="Document length",
        ),
    ]
    images_per_sample: Annotated[
        Count | None,
        Option("Images in each sample of a vision-language model.", default_text="1"),
    ]
    max_pixels: Annotated[
        Count | None,
        Option(
            "Largest image in pixels; its tokens count in --seq-len.",
            default_text="1280 tokens with Qwen's, else the model's largest image",
            title="Largest image",
        ),
    ]
    precision: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"],
        Option("Training precision; auto: bf16 if the GPU supports it, else fp16.", "auto"),
    ]
    optimizer: Annotated[
        str, Option("Optimizer: adamw, adamw_8bit, adafactor, lion, muon, sgd, ...", "adamw", metavar="NAME")
    ]


class PlanOptions(TypedDict, total=False):
    """Features of the plans that are tried. `Question.options` has them unchanged."""

    optimizer_dtype: Annotated[
        Literal["fp32", "bf16"],
        Option(
            "Type of master weights and optimizer states; bf16 halves them and loses small updates.",
            "fp32",
            title="Optimizer states",
        ),
    ]
    gradient_checkpointing: Annotated[
        CheckpointingChoice | bool,
        Option(
            "Recompute layers in the backward pass; offload: keep their inputs in host RAM.",
            "auto",
            title="Gradient checkpointing",
        ),
    ]
    sequence_parallel_size: Annotated[
        Count | None,
        Option(
            "Ulysses sequence-parallel size.",
            default_text="1, or more if a sample does not fit one GPU",
            title="Sequence parallel",
        ),
    ]
    experts: Annotated[
        Experts,
        Option("Sharding of experts: by ZeRO, or also whole experts per GPU (AutoEP, transformers < 5.23).", "zero"),
    ]
    zeropp: Annotated[
        bool,
        Option(
            "Also try ZeRO-3 with 8-bit weights and, between nodes, 4-bit gradients (ZeRO++).", False, title="ZeRO++"
        ),
    ]


class KernelOptions(TypedDict, total=False):
    """Kernels of the model."""

    attention: Annotated[
        AttentionKernel, Option("Attention kernel; triton: FlashAttention of 2023 in the model's own code.", "sdpa")
    ]
    loss: Annotated[
        Literal["auto", LossKernel],
        Option(
            "Loss kernel; auto: the framework's default, or one that its arguments enable, if only that fits or it is "
            "faster. fused (Liger), chunked-head (TRL), tiled (DeepSpeed): no whole logits; chunked-softmax "
            "(DeepSpeed): in 16 bits; in-place (unsloth): overwritten; chunked (LitGPT): upcast by parts.",
            "auto",
        ),
    ]
    mlp: Annotated[
        Mlp, Option("Feed-forward on all tokens at once, or in tiles (DeepSpeed's TiledMLP).", "whole", title="MLP")
    ]


class TrainingOptions(BatchOptions, PlanOptions, KernelOptions, total=False):
    """Batch, precision, parallelism and kernels."""


class SoftwareOptions(TypedDict, total=False):
    """The software that trains."""

    framework: Annotated[
        Literal[Framework, "llama-factory", "axolotl", "ms-swift"],
        Option("Training backend: HF Trainer, TRL's trainers, plain deepspeed.initialize, or a tool.", "hf"),
    ]
    kernels: Annotated[
        LayerKernels,
        Option("Kernels of norms, rotary embedding and activation; Liger's and unsloth's are fused.", "torch"),
    ]
    software: Annotated[
        str | Mapping[str, Any] | None,
        Option(
            "Differences from current software: transformers=4.45, deepspeed=0.18, trl=1.6, padding-mask, reentrant, "
            "autocast, tf32, fp32-adapters, fp32-norms, fp32-embeddings, from-scratch, loading=gpu, zero-init=no, "
            "optimizer-step=foreach, expandable-segments=no, varying-lengths, pinned-inputs=no.",
            metavar="NAME[=VALUE],...",
        ),
    ]


class JobOptions(TypedDict, total=False):
    """The amount of training."""

    data: Annotated[
        str | Path | None, Option("Training data; its rows are counted: .jsonl, .csv, .parquet.", metavar="FILE")
    ]
    samples: Annotated[int | str | None, Option("Samples per epoch: 52k. Replaces --data.", metavar="N")]
    tokens: Annotated[int | str | None, Option("Training tokens in total: 1B. Replaces --data.", metavar="N")]
    epochs: Annotated[float | None, Option("Number of epochs.", metavar="N", default_text="3")]
    packing: Annotated[bool, Option("Pack several rows into each sample.", False)]
    eval_split: Annotated[
        float, Option("Fraction of the samples held out, and evaluated at every checkpoint.", 0.0, metavar="FRACTION")
    ]
    price: Annotated[str | None, Option("Price per GPU: 2.49/h, or per node: 20USD/node/h.", metavar="RATE")]


class AnswerOptions(TypedDict, total=False):
    """How the answer is computed."""

    risk: Annotated[
        Risk, Option("Required probability of fitting: 97.5 % (safe), 80 % (balanced), 50 % (bold).", "safe")
    ]
    offline: Annotated[bool, Option("Do not use the network.", False)]


class QuestionOptions(
    MachineOptions,
    MethodOptions,
    TrainingOptions,
    SoftwareOptions,
    JobOptions,
    AnswerOptions,
    RolloutOptions,
    ModuleOptions,
    CpuOptions,
    total=False,
):
    """All options of a question. An omitted option has its default (`fill_defaults`)."""


OPTIONS: Mapping[str, Option] = declared(QuestionOptions.__annotations__)
"""The options by parameter name."""

GROUPS: Mapping[str, type] = {
    "Machine": MachineOptions,
    "Method": MethodOptions,
    "Training": TrainingOptions,
    "Software": SoftwareOptions,
    "Amount of training": JobOptions,
    "Answer": AnswerOptions,
    "Reinforcement learning": RolloutOptions,
    "Your own module": ModuleOptions,
    "Training on the CPU": CpuOptions,
}
"""The groups by title in the help and in the manual."""


def names_in(*groups: type, without: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the options in these groups."""
    return tuple(name for group in groups for name in group.__annotations__ if name not in without)


def check_names(given: Iterable[str], known: Collection[str], function: str = "advise") -> None:
    """Raise UnknownOptionError for a name that is not known, with the nearest one. function: of `ds_advise`, whose help
    lists the names."""
    for name in given:
        if name not in known:
            from ...validate.lint.values import nearest  # imported here: difflib is slow to import
            from .other_names import filled_advice, meant_strategy, other_name

            other = other_name(name).split(" ")[0].lstrip("-").replace("-", "_")
            advice = filled_advice(name, "", meant_strategy({name: ""}))
            near = other if other in known else "" if advice else nearest(name, known, cutoff=0.65)
            fix = f"did you mean {near}?" if near else advice or f"help(ds_advise.{function}) lists the options"
            raise UnknownOptionError(f"there is no option {name[:40]!r}", fix=fix)


def fill_defaults(options: Mapping[str, Any]) -> QuestionOptions:
    """All options, with defaults for the omitted ones, and values in their types (`Option.typed`). Raises
    UnknownOptionError for an unknown name, and WorkloadError for a value that is not a choice or a number of its
    option, or a count outside 1 to `LARGEST_COUNT`. None stands for the default."""
    check_names(options, OPTIONS)
    filled: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
    for name, value in options.items():
        if value is None:
            continue
        if name == "gradient_checkpointing" and isinstance(value, bool):
            value = "on" if value else "off"
        filled[name] = OPTIONS[name].typed(value)
        OPTIONS[name].check(value if OPTIONS[name].kind == "text" else filled[name])
    return filled  # type: ignore[return-value]  # its keys are those of the declarations


def plan_options(options: Mapping[str, Any] = MappingProxyType({})) -> PlanOptions:
    """The features of plans among the options of a question, with defaults."""
    return {name: options.get(name, OPTIONS[name].default) for name in names_in(PlanOptions)}  # type: ignore[return-value]
