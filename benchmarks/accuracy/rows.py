"""The measured memory runs of `benchmarks/data/published_memory.csv` as what the estimators take."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.ds_configs.presets import layer_units_plan
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.objectives import OBJECTIVES, trained_model
from ds_advise.estimators.plan import Offload, Plan
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.estimators.workload import (
    NEXT_TOKEN,
    AttentionKernel,
    LayerKernels,
    LossKernel,
    Method,
    Objective,
    OptimizerStep,
    Precision,
    Software,
    Workload,
)

from . import contributed
from .between_sources import origin_of
from .questions import Asked, model_of

DATA = Path(__file__).parents[1] / "data"

Quantity = Literal["allocated", "reserved", "device"]
UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30, "GB": 10**9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run; benchmarks/data/published_memory.md explains each column of the file.

    measured_bytes: of `quantity`, per GPU; None for a run that is only known not to have fitted.
    device_bytes:   what nvidia-smi showed besides, None where that is not printed.
    fitted:         it ran to the end; False when it ran out of memory.
    asked:          what the estimators take, with the words for the machines.
    not_met_because: why its error is not counted against the targets, "" when it is.
    """

    row: int
    source: str
    model: ModelShape
    cluster: Cluster
    workload: Workload
    plan: Plan
    asked: Asked
    quantity: Quantity
    measured_bytes: int | None
    device_bytes: int | None
    fitted: bool
    not_met_because: str
    notes: str
    step_s: float | None = None
    """Seconds of an optimizer step, where the source of a training with another objective prints them."""

    @property
    def origin(self) -> str:
        """What is left out to judge a run."""
        return origin_of(self.source)

    @property
    def subset(self) -> str:
        """Where the states are, what trains, and whether the loss is fused."""
        plan = self.plan
        if plan.offload_optimizer != "none" or plan.offload_param != "none":
            where = "offload"
        elif plan.sharding == "fsdp":
            where = "FSDP"
        elif plan.zero_stage >= 2:
            where = f"ZeRO-{plan.zero_stage}"
        else:
            where = "one GPU" if self.cluster.world_size == 1 else "DDP, ZeRO-1"
        if where == "offload":
            return where
        method = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}[self.workload.method]
        return f"{where}, {method}" + (", fused loss" if self.workload.loss == "fused" else "")

    @property
    def label(self) -> str:
        """`8 x A100-SXM-80GB, Llama-2-7b-hf, LoRA, B 2, S 4096`."""
        model = self.model.name.rpartition("/")[2]
        return (
            f"{self.cluster.world_size} x {self.cluster.gpu.name}, {model}, {self.workload.method}, "
            f"B {self.plan.micro_batch_size}, S {self.workload.seq_len}"
        )


@cache
def runs() -> tuple[Run, ...]:
    """Every row, in the order of the file, and the contributed runs."""
    with (DATA / "published_memory.csv").open(newline="", encoding="utf-8") as file:
        published = [run_of(number, row) for number, row in enumerate(csv.DictReader(file), start=2)]
    following = enumerate(contributed.rows(), start=len(published) + 2)
    return (*published, *(_contributed_run(number, row) for number, row in following if _has_memory(row)))


def _has_memory(row: contributed.Row) -> bool:
    return row.run.out_of_memory or row.run.measured.allocated_bytes is not None


def _contributed_run(number: int, row: contributed.Row) -> Run:
    run, asked = row.run, row.asked
    return Run(
        row=number,
        source=row.source,
        model=asked.model,
        cluster=asked.cluster,
        workload=asked.workload,
        plan=asked.plan,
        asked=asked,
        quantity="allocated",
        measured_bytes=run.measured.allocated_bytes,
        device_bytes=run.measured.device_bytes,
        fitted=not run.out_of_memory,
        not_met_because="",
        notes=f"{run.kind} of {run.date}",
    )


@cache
def excluded() -> tuple[dict[str, str], ...]:
    """What was measured and is not predicted, with the reason."""
    with (DATA / "published_memory_excluded.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def run_of(number: int, row: dict[str, str]) -> Run:
    """A row of `data/published_memory.csv`, or one with the same columns."""
    name, *words = (row["objective"] or NEXT_TOKEN).split()
    objective, settings = cast(Objective, name), dict(word.split("=") for word in words)
    model = trained_model(model_of(row["model"]), objective)
    trl, precomputed, step_s = (settings.pop(each, None) for each in ("trl", "precompute_ref_log_probs", "step_s"))
    rollouts = _rollouts(objective, settings)
    cluster, rollouts = _apart(parse_cluster(row["gpus"]), rollouts)
    workload = Workload(
        method=cast(Method, row["method"]),
        quantization="gptq" if row["quantization"] == "gptq" else "nf4",
        lora_rank=int(row["lora_rank"] or 8),
        lora_targets=tuple(row["lora_targets"].split()) or None,
        modules_to_save=tuple(row["modules_to_save"].split()),
        lora_dropout=float(row["lora_dropout"] or 0),
        seq_len=int(row["seq_len"]),
        precision=cast(Precision, row["precision"]),
        optimizer=row["optimizer"],
        attention=cast(AttentionKernel, row["attention"]),
        loss=cast(LossKernel, row["loss"] or "standard"),
        kernels=cast(LayerKernels, row["kernels"] or "torch"),
        framework="trl" if row["objective"] else "deepspeed" if row["output"] == "held" else "hf",
        objective=objective,
        precompute_ref_log_probs=precomputed == "yes",
        rollouts=rollouts,
        software=_software(row, trl),
    )
    plan = _plan(row, model)
    return Run(
        row=number,
        source=row["source"],
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        asked=Asked(row["model"], row["gpus"], model, workload, cluster, plan),
        quantity=cast(Quantity, row["quantity"]),
        measured_bytes=_bytes(row["measured"], row["unit"]),
        device_bytes=_bytes(row["device_mib"], "MiB"),
        fitted=row["fitted"] == "yes",
        step_s=float(step_s) if step_s else None,
        not_met_because=row["not_met_because"],
        notes=row["notes"],
    )


def _rollouts(objective: Objective, settings: dict[str, str]) -> Rollouts | None:
    """The objective's settings of completions, with those of the row."""
    rollouts = OBJECTIVES[objective].rollouts
    usual = {name: getattr(rollouts, name) for name in settings}
    typed: dict[str, Any] = {
        name: settings[name] == "yes"
        if isinstance(value, bool)
        else type(0 if value is None else value)(settings[name])
        for name, value in usual.items()
    }
    return rollouts and replace(rollouts, **typed)


def _apart(cluster: Cluster, rollouts: Rollouts | None) -> tuple[Cluster, Rollouts | None]:
    """The GPUs that train, without those of a server: a node of several."""
    if rollouts is None or not rollouts.server_gpus:
        return cluster, rollouts
    if cluster.nodes > 1:
        return replace(cluster, nodes=cluster.nodes - 1), replace(rollouts, server_has_node=True)
    return replace(cluster, gpus_per_node=cluster.gpus_per_node - rollouts.server_gpus), rollouts


def _bytes(figure: str, unit: str) -> int | None:
    return int(float(figure) * UNITS[unit]) if figure else None


def _software(row: dict[str, str], trl: str | None) -> Software:
    """None of the runs used expandable segments, and none DeepSpeed 0.19; older versions are alike."""
    return Software(
        transformers=_version(row["transformers"]) or Software().transformers,
        trl=_version(trl or "") or Software().trl,
        deepspeed=(0, 14) if row["loop"] == "deepspeed" else Software().deepspeed,
        reentrant=row["reentrant"] == "yes",
        autocast=row["autocast"] == "yes",
        fp32_adapters=row["adapters"] == "fp32",
        fp32_norms=row["layer_inputs"].startswith("fp32"),
        fp32_embeddings=row["layer_inputs"] == "fp32+embeddings",
        optimizer_step=cast(OptimizerStep, row["optimizer_step"]),
        expandable_segments=False,
        varying_lengths=row["lengths"] == "varying",
    )


def _version(text: str) -> tuple[int, int] | None:
    """Major and minor of `1.10`."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if text else None


def _plan(row: dict[str, str], model: ModelShape) -> Plan:
    """The row's plan; `buckets` is a key of `_sizes`, or a number of elements for `reduce_bucket_size`."""
    if row["loop"] != "deepspeed":
        fsdp = row["loop"] == "fsdp"
        alone = Plan(
            zero_stage=3 if fsdp else 0,
            sharding="fsdp" if fsdp else "none",
            micro_batch_size=int(row["micro_batch"]),
            gradient_accumulation_steps=int(row["grad_accum"] or 1),
            gradient_checkpointing=row["checkpointing"] == "yes",
            offload_optimizer=cast(Offload, row["offload_optimizer"] or "none"),
            offload_param=cast(Offload, row["offload_param"] or "none"),
        )
        return layer_units_plan(alone, model) if fsdp else alone
    sizes = _sizes(row["buckets"], model.hidden_size)
    return Plan(
        zero_stage=cast(Literal[0, 1, 2, 3], int(row["zero_stage"] or 0)),
        micro_batch_size=int(row["micro_batch"]),
        gradient_accumulation_steps=int(row["grad_accum"] or 1),
        gradient_checkpointing=row["checkpointing"] == "yes",
        offload_optimizer=cast(Offload, row["offload_optimizer"] or "none"),
        offload_param=cast(Offload, row["offload_param"] or "none"),
        overlap_comm=row["overlap_comm"] != "no",
        reduce_bucket_size=sizes["reduce"],
        sub_group_size=int(float(row["sub_group"] or 1e9)),
        stage3_prefetch_bucket_size=sizes["prefetch"],
        stage3_param_persistence_threshold=sizes["persistent"],
        stage3_max_live_parameters=sizes["live"],
    )


def _sizes(buckets: str, hidden: int) -> dict[str, int]:
    """Elements: "auto" is transformers' formulas, "chat" what DeepSpeed-Chat sets, "" DeepSpeed's defaults."""
    defaults = {"reduce": 500_000_000, "prefetch": 50_000_000, "persistent": 100_000, "live": 1_000_000_000}
    if buckets == "auto":
        return defaults | {"reduce": hidden * hidden, "prefetch": int(0.9 * hidden * hidden), "persistent": 10 * hidden}
    if buckets == "chat":
        return defaults | {"prefetch": 30_000_000, "persistent": 10_000, "live": 30_000_000}
    return defaults | ({"reduce": int(float(buckets))} if buckets else {})
