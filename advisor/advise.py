"""`advise()`: from what a user says to the recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..estimators.hardware.cluster import Cluster
from ..estimators.models.model_shape import ModelShape
from ..estimators.time.step_time import assumptions
from ..estimators.workload import (
    AttentionKernel,
    Framework,
    LayerKernels,
    LossKernel,
    Method,
    Mlp,
    Precision,
    Quantization,
)
from ..probes.store_path import anything_kept
from .answer.reasons import doubts, reasons
from .answer.recommendation import Recommendation, closest
from .answer.what_if import changes
from .ask import ask
from .estimate import plain_pytorch
from .gc_pause import collector_paused
from .question.cluster import ClusterOptions
from .question.question import CheckpointingChoice, Collectives, Experts, Question, Risk, States
from .search.choice import fastest_that_fits, worth_trying_first
from .search.search import predict_all


def advise(
    model: str | ModelShape,
    *,
    gpus: str | Cluster = "auto",
    model_size: Literal["max"] | None = None,
    method: Method = "full",
    quantization: Quantization = "nf4",
    lora_rank: int = 8,
    lora_dropout: float = 0.0,
    lora_targets: str | Sequence[str] | None = None,
    modules_to_save: str | Sequence[str] | None = None,
    seq_len: int | Literal["max"] | None = None,
    global_batch: int | None = None,
    micro_batch: int | Literal["max"] | None = None,
    precision: Precision | str = "auto",
    optimizer: str = "adamw",
    gradient_checkpointing: CheckpointingChoice = "auto",
    sequence_parallel_size: int | None = None,
    experts: Experts = "zero",
    states: States = "fp32",
    collectives: Collectives = "exact",
    risk: Risk = "safe",
    attention: AttentionKernel = "sdpa",
    loss: LossKernel = "standard",
    mlp: Mlp = "whole",
    kernels: LayerKernels = "torch",
    document_len: int | None = None,
    software: str | Mapping[str, Any] | None = None,
    framework: Framework = "hf",
    sharding: Literal["zero", "fsdp"] = "zero",
    ram: str | None = None,
    nvme: str | None = None,
    interconnect: str | None = None,
    threads: int | None = None,
    data: str | Path | None = None,
    samples: int | str | None = None,
    tokens: str | None = None,
    epochs: float | None = None,
    packing: bool = False,
    eval_split: float = 0.0,
    price: str | None = None,
    offline: bool = False,
    deepspeed_estimate: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Recommendation:
    """The fastest DeepSpeed configuration that fits, with every rung's memory and time.

    model:   a catalogue name in any spelling, a folder or `config.json`, a hub id, or a `ModelShape`.
    gpus:    `2x32GB`, `8xA100-80GB`, `4x8xH100` (nodes x GPUs x kind), `RTX4090`, `auto` (this machine), a `Cluster`.
    seq_len: default 2048, or the model's learned positions where they are fewer; "max": the longest that fits.
    micro_batch: default the fastest that fits; "max": the largest.
    model_size: "max" takes `model` as a family's name (`Qwen2.5`), and of it the largest model that fits.
    precision: "auto" is bf16 where the GPU has it, else fp16.
    document_len: the mean length of the documents packed into a sample; None: a sample is one.
    software: what differs from what is planned for (`estimators.workload.Software`), as "transformers=4.45,reentrant".
    sharding: "fsdp" also predicts plain PyTorch, for comparison (`Recommendation.pytorch_baseline`).
    sequence_parallel_size: GPUs that share each sample (Ulysses); None tries more where a whole sample does not fit.
    experts: "autoep" lets each GPU keep whole experts of a mixture, where that is faster (transformers 5.0 to 5.22).
    states: "bf16" keeps master weights and optimizer states in bf16, which rounds small updates away.
    collectives: "quantized" lets ZeRO-3 send weights in 8 bits and, between nodes, gradients in 4 (ZeRO++), where that
        is faster.
    risk: "safe" recommends what fits with 97.5 %, "balanced" with 80 %, "bold" with 50 %.
    ram, nvme, interconnect: as on the command line; no effect when `gpus` is a `Cluster`.
    threads: of each rank on the host; None: those that the printed commands set.
    data: a file of rows as `ds-advise train` takes it: its samples are counted, and set seq_len and global_batch.
    samples, tokens: how much is trained, in place of `data`: samples of an epoch, or tokens in all ("1B").
    epochs: default 3, of `data` or `samples`. packing, eval_split: as in `ds-advise train`.
    price: what the machines cost, "2.49/h" of each GPU or "$20/node/h"; with an amount it makes a cost.
    deepspeed_estimate: also call DeepSpeed's own estimator (imports torch and deepspeed, seconds).
    say: called with a line of progress while a large file of `data` is counted.

    Raises `DsAdviseError` for a question that cannot be answered; a plan that does not fit is an answer
    (`recommended` is None).
    """
    question = ask(
        model,
        gpus=gpus,
        ram=ram,
        nvme=nvme,
        interconnect=interconnect,
        threads=threads,
        model_size=model_size,
        micro_batch=micro_batch,
        gradient_checkpointing=gradient_checkpointing,
        sequence_parallel_size=sequence_parallel_size,
        experts=experts,
        states=states,
        collectives=collectives,
        risk=risk,
        offline=offline,
        method=method,
        quantization=quantization,
        lora_rank=lora_rank,
        lora_dropout=lora_dropout,
        modules_to_save=modules_to_save,
        lora_targets=lora_targets,
        seq_len=seq_len,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        attention=attention,
        loss=loss,
        mlp=mlp,
        kernels=kernels,
        document_len=document_len,
        software=software,
        framework=framework,
        data=data,
        samples=samples,
        tokens=tokens,
        epochs=epochs,
        packing=packing,
        eval_split=eval_split,
        price=price,
        say=say,
    )
    recommendation = answer(question)
    if sharding == "fsdp":
        recommendation = replace(recommendation, pytorch_baseline=plain_pytorch(question))
    return with_deepspeed_estimate(recommendation) if deepspeed_estimate else recommendation


@collector_paused()
def answer(question: Question) -> Recommendation:
    """The recommendation for a question."""
    recommendation = predicted(question)
    recommendation = replace(
        recommendation, changes=changes(question, recommendation.ladder, recommendation.recommended)
    )
    if question.cluster.is_this_machine and anything_kept():
        # Imported here: what knows probes is of no use to most questions.
        from .verification.verify import with_past_probes

        recommendation = with_past_probes(recommendation)
    return recommendation


def predicted(question: Question) -> Recommendation:
    """The recommendation by prediction alone, without what would change it, which takes most of an answer's time."""
    ladder, candidates = predict_all(question)
    recommended = fastest_that_fits(ladder)
    return Recommendation(
        question=question,
        candidates=candidates,
        ladder=ladder,
        recommended=recommended,
        try_first=worth_trying_first(candidates, recommended, question.risk),
        reasons=reasons(question, ladder, recommended, candidates),
        doubts=doubts(question.cluster, ladder, recommended),
        assumptions=question.model.assumptions
        + assumptions(question.cluster, recommended.estimate.time if recommended else None),
    )


def answer_with_proofs(
    question: dict[str, Any],
    *,
    say: Callable[[str], None],
    device: Literal["cuda", "cpu"],
    ranks: int | None,
    memory: str | None,
    verify: bool,
    probe: bool,
    budget: str,
    no_deepspeed_estimate: bool,
) -> Recommendation:
    """The recommendation after the dry runs and probes that the command line asks for.

    question: keyword arguments of `advise`; device, ranks and memory stand in for its GPUs where the CPU trains.
    """
    machines = ClusterOptions(
        **{name: question[name] for name in ("gpus", "ram", "nvme", "interconnect")},
        device=device,
        ranks=ranks,
        memory=memory,
    )
    cluster = machines.cluster_here() if probe else machines.cluster()
    recommendation = advise(**{**question, "gpus": cluster}, deepspeed_estimate=False, say=say)
    # Imported where they are needed: an answer without proofs is to come at once.
    if verify:
        from .verification.verify import verify as verified

        recommendation = verified(
            recommendation,
            offline=question["offline"],
            on_start=lambda candidate: say(f"dry run of {candidate.rung} ..."),
        )
    if probe:
        from .verification.verify import settle

        recommendation = settle(
            recommendation,
            device=device,
            memory_limit_bytes=machines.memory_limit_bytes,
            budget=budget,
            offline=question["offline"],
            say=say,
        )
    # Last, for the plan that dry runs and probes have left.
    return recommendation if no_deepspeed_estimate else with_deepspeed_estimate(recommendation)


def with_deepspeed_estimate(recommendation: Recommendation) -> Recommendation:
    """The answer with DeepSpeed's own estimate for the recommended plan, or for the one that misses by least."""
    # Imported here: it loads torch and deepspeed, which the analytic path never needs.
    from ..validate.deepspeed_estimate import deepspeed_estimate

    question, shown = recommendation.question, recommendation.recommended or closest(recommendation.ladder)
    if shown is None:
        return recommendation
    return replace(recommendation, deepspeed_estimate=deepspeed_estimate(question.model, question.cluster, shown.plan))
