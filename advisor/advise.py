"""`advise()`: from what a user says to the recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..estimators.errors import WorkloadError
from ..estimators.hardware.cluster import Cluster, Gpu
from ..estimators.models.model_shape import ModelShape
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.time.step_time import assumptions
from ..estimators.workload import AttentionKernel, Framework, LossKernel, Method, Precision, Workload
from ..probes.store_path import anything_kept
from .question.cluster_spec import parse_cluster
from .question.model_source import load_model
from .question.question import CheckpointingChoice, Question
from .recommend.reasons import reasons
from .recommend.recommendation import Recommendation, closest
from .recommend.search import climb, fastest_that_fits
from .recommend.what_if import changes

DEFAULT_SEQ_LEN = 2048


def advise(
    model: str | ModelShape,
    *,
    gpus: str | Cluster = "auto",
    method: Method = "full",
    lora_rank: int = 8,
    lora_dropout: float = 0.0,
    lora_targets: Sequence[str] | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    precision: Precision | str = "auto",
    optimizer: str = "adamw",
    gradient_checkpointing: CheckpointingChoice = "auto",
    attention: AttentionKernel = "sdpa",
    loss: LossKernel = "standard",
    framework: Framework = "hf",
    ram: str | None = None,
    nvme: str | None = None,
    interconnect: str | None = None,
    offline: bool = False,
    deepspeed_estimate: bool = True,
) -> Recommendation:
    """The fastest DeepSpeed configuration that fits, with every rung's memory and time.

    model:   a catalogue name in any spelling, a folder or `config.json`, a hub id, or a `ModelShape`.
    gpus:    `2x32GB`, `8xA100-80GB`, `4x8xH100` (nodes x GPUs x kind), `RTX4090`, `auto` (this machine), a `Cluster`.
    seq_len: default 2048, or the model's learned positions where they are fewer.
    precision: "auto" is bf16 where the GPU has it, else fp16.
    ram, nvme, interconnect: as on the command line; no effect when `gpus` is a `Cluster`.
    deepspeed_estimate: also call DeepSpeed's own estimator (imports torch and deepspeed, seconds).

    Raises `DsAdviseError` for a question that cannot be answered; a plan that does not fit is an answer
    (`recommended` is None).
    """
    cluster = gpus if isinstance(gpus, Cluster) else parse_cluster(gpus, ram=ram, nvme=nvme, interconnect=interconnect)
    shape = model if isinstance(model, ModelShape) else load_model(model, offline=offline)
    workload = Workload(
        method=method,
        lora_rank=_positive("lora_rank", lora_rank),
        lora_dropout=dropout_probability(lora_dropout, method),
        lora_targets=tuple(lora_targets) if lora_targets else None,
        seq_len=sequence_length(shape, seq_len),
        precision=resolve_precision(precision, cluster.gpu),
        optimizer=_optimizer(optimizer),
        attention=attention,
        loss=loss,
        framework=framework,
        global_batch_size=global_batch if global_batch is None else _positive("global_batch", global_batch),
    )
    question = Question(
        model=shape,
        workload=workload,
        cluster=cluster,
        gradient_checkpointing=gradient_checkpointing,
        micro_batch_size=micro_batch if micro_batch is None else _positive("micro_batch", micro_batch),
    )
    recommendation = answer(question)
    return with_deepspeed_estimate(recommendation) if deepspeed_estimate else recommendation


def answer(question: Question) -> Recommendation:
    """The recommendation for a question."""
    ladder, candidates = climb(question)
    recommended = fastest_that_fits(ladder)
    recommendation = Recommendation(
        question=question,
        candidates=candidates,
        ladder=ladder,
        recommended=recommended,
        reasons=reasons(question, ladder, recommended, candidates),
        assumptions=assumptions(question.cluster),
        changes=changes(question, ladder, recommended),
    )
    if question.cluster.is_this_machine and anything_kept():
        # Imported here: what knows probes is of no use to most questions.
        from .prove.after_probes import with_earlier_probes

        recommendation = with_earlier_probes(recommendation)
    return recommendation


def with_deepspeed_estimate(recommendation: Recommendation) -> Recommendation:
    """The answer with DeepSpeed's own estimate for the recommended plan, or for the one that misses by least."""
    # Imported here: it loads torch and deepspeed, which the analytic path never needs.
    from .recommend.deepspeed_estimate import deepspeed_estimate

    question, shown = recommendation.question, recommendation.recommended or closest(recommendation.ladder)
    if shown is None:
        return recommendation
    return replace(
        recommendation, deepspeed_estimate=deepspeed_estimate(question.model, question.cluster, shown.estimate.plan)
    )


def sequence_length(model: ModelShape, wanted: int | None) -> int:
    """The sequence length that was asked for, or the default one for this model."""
    if model.fixed_len is not None:
        if wanted not in (None, model.fixed_len):
            raise WorkloadError(
                f"every sample of {model.name} has {model.fixed_len} tokens",
                why="its images have one size",
                fix="leave --seq-len out",
            )
        return model.fixed_len
    if wanted is not None:
        return _positive("seq_len", wanted)
    bounded = model.has_learned_positions and model.max_positions is not None
    return min(DEFAULT_SEQ_LEN, model.max_positions) if bounded and model.max_positions else DEFAULT_SEQ_LEN


def dropout_probability(value: float, method: str) -> float:
    """Of adapters, so 0 without any. Raises WorkloadError for what is no probability below 1."""
    if not 0 <= value < 1:
        raise WorkloadError(
            f"lora_dropout is {value}", why="it must be from 0 to below 1", fix="pass one such as --lora-dropout 0.05"
        )
    return 0.0 if method == "full" else value


def resolve_precision(wanted: str, gpu: Gpu) -> Precision:
    """The precision that was asked for, with `auto` resolved. Raises WorkloadError for one that the GPU lacks."""
    if wanted == "auto":
        return "bf16" if gpu.has_bf16 else "fp16"
    if wanted == "bf16" and not gpu.has_bf16:
        raise WorkloadError(
            f"the {gpu.name} has no bf16 units",
            why="bf16 is emulated there, several times slower than fp16",
            fix="pass --precision fp16 (or auto)",
        )
    if wanted not in ("bf16", "fp16", "fp32"):
        raise WorkloadError(f"unknown precision {wanted!r}", fix="pass auto, bf16, fp16 or fp32")
    return wanted  # type: ignore[return-value]  # narrowed by the line above


def _optimizer(name: str) -> str:
    known = {_letters(key): key for key in OPTIMIZERS}
    key = known.get(_letters(name))
    if key is None:
        raise WorkloadError(
            f"unknown optimizer {name!r}",
            why="its state bytes per parameter decide the memory",
            fix=f"pass one of {', '.join(sorted(OPTIMIZERS))}",
        )
    return key


def _letters(name: str) -> str:
    """`AdamW_8bit`, `adamw-8bit` and `adamw8bit` are one name."""
    return name.lower().replace("-", "").replace("_", "")


LIMIT = 10**9
"""Counts beyond this are typing errors."""


def _positive(name: str, value: int) -> int:
    if not 0 < value <= LIMIT:
        raise WorkloadError(
            f"{name} is {value}",
            why=f"it must be between 1 and {LIMIT}",
            fix=f"pass a sensible --{name.replace('_', '-')}",
        )
    return value
