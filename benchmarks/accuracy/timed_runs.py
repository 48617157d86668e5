"""The measured times of `benchmarks/data/published_throughput.csv` as what the estimators take, singly and in groups.

The error of a run is predicted over measured step time, less one: under the committed constants, or under a fit that
has not seen its origin (`speed_fit`). A group varies one thing on the same hardware; in it the order
counts (Kendall's tau), and what choosing the run that the advice would take costs (regret).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.search.choice import drop_dominated
from ds_advise.ds_configs.presets import layer_units_plan
from ds_advise.estimators.hardware import Cluster, cpu_cores
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Fsdp, Offload, Plan
from ds_advise.estimators.schedule.recorded import Schedule
from ds_advise.estimators.schedule.simulate import simulate
from ds_advise.estimators.time.step_time import estimate_forward_s, estimate_time
from ds_advise.estimators.workload import (
    AttentionKernel,
    LayerKernels,
    LossKernel,
    Method,
    Precision,
    Software,
    Workload,
)

from .. import seed_ranking
from ..schedule_files import read_schedule
from . import contributed
from .between_sources import origin_of
from .questions import Asked, model_of

DATA = Path(__file__).parents[1] / "data"
LEFT_OUT = DATA / "speed_left_out.csv"
"""What `benchmarks.accuracy --fit --write` found: each run's prediction under a fit on the runs of other origins."""

LIGHT = {"bytedance-iaas/AsymGEMM": 0.25}
"""Origins that count for less than the square root of their runs: a project's own log, its settings not stated."""

OWN_LOOPS = (
    "mosaicml/llm-foundry",
    "pytorch/",
    "huggingface/peft method_comparison",
    "AnswerDotAI/fsdp_qlora",
    "DeepSpeed blogs/",
    "DeepSpeed docs/",
    "DeepSpeedExamples ",
    "ALST ",
    "gist.github.com/chenyaofo",
    "tohtana/bench_deep_compile",
)
"""Beginnings of the sources whose times are not those of transformers' Trainer: scripts with loops of their own, and
the autotuner's sum of the engine's passes."""

SCHEDULES = DATA / "schedules"
"""What `benchmarks.dry_run.record_schedules` wrote: a step of some of the runs."""

ASSUMED_TOLERANCE = 0.25
"""Of a run whose author leaves settings or hardware open."""

TIE = 0.03
"""Runs whose measured speeds differ by less are not ranked: what the sources publish as repetitions differs by that
much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One published run.

    measured_s: seconds of one optimizer step, from whatever the source prints.
    evaluated:  samples that each GPU evaluates, one by one, for each step, where the measured time has them in it.
    tolerance:  what the source leaves open, as a share: repetitions and clocks, lengths that are means, settings
        assumed.
    counted:    False where the run used other kernels than the estimators model; shown, but in no statistic.
    """

    source: str
    name: str
    group: str
    model: ModelShape
    cluster: Cluster
    workload: Workload
    plan: Plan
    asked: Asked
    measured_s: float
    left_out_s: float | None
    """Its prediction under a fit that has not seen its origin; None where `LEFT_OUT` does not have it."""
    tolerance: float
    counted: bool
    note: str
    evaluated: float = 0.0

    @property
    def origin(self) -> str:
        """What a fit leaves out to judge a run."""
        return origin_of(self.source)

    @property
    def step_s(self) -> float:
        step_s = estimate_time(self.model, self.workload, self.cluster, self.plan).step_s
        if not self.evaluated:
            return step_s
        one_by_one = replace(self.plan, micro_batch_size=1, gradient_accumulation_steps=1)
        return step_s + self.evaluated * estimate_forward_s(self.model, self.workload, self.cluster, one_by_one)

    def played_s(self, schedule: Schedule) -> float:
        """Seconds of one optimizer step by the schedule that a dry run recorded."""
        return simulate(schedule, self.cluster, tokens_per_step=self.tokens).time.step_s

    @property
    def samples(self) -> int:
        """Of one optimizer step over all GPUs."""
        return self.plan.micro_batch_size * self.plan.gradient_accumulation_steps * self.cluster.world_size

    @property
    def label(self) -> str:
        workload, plan = self.workload, self.plan
        sharding = plan.sharding.upper() if plan.is_fsdp else f"stage {plan.zero_stage}"
        words = [
            f"{self.model.name.rpartition('/')[2]} {workload.method}",
            f"{self.cluster.world_size} x {self.cluster.gpu.name}",
            sharding,
            f"S {workload.seq_len}",
            f"B {plan.micro_batch_size} x {plan.gradient_accumulation_steps}",
        ]
        words += ["offload"] if plan.offload_optimizer != "none" else []
        words += [f"{plan.sequence_parallel_size} GPUs a sample"] if plan.sequence_parallel_size > 1 else []
        words += ["layers' inputs in host RAM"] if plan.cpu_checkpointing else []
        words += ["checkpointing"] if plan.gradient_checkpointing else []
        words += ["fused kernels"] if workload.kernels != "torch" else []
        return ", ".join(words)

    @property
    def tokens(self) -> int:
        return self.samples * self.workload.seq_len

    @property
    def error(self) -> float:
        """Under the committed constants, which its own measurement may have helped to fit."""
        return self.step_s / self.measured_s - 1

    @property
    def unseen_s(self) -> float:
        """`left_out_s`, which it must have."""
        if self.left_out_s is None:
            raise LookupError(
                f"{LEFT_OUT.name} lacks {self.source} {self.name}: run python -m benchmarks.accuracy --fit --write"
            )
        return self.left_out_s

    @property
    def unseen_error(self) -> float:
        return self.unseen_s / self.measured_s - 1

    @property
    def tokens_per_s(self) -> float:
        """As `unseen_s` has it."""
        return self.tokens / self.unseen_s


def weights(origins: Sequence[str]) -> list[float]:
    """The part that each run has in a statistic, by the origins of all: an origin counts as the square root of its
    runs, so that a hundred rows of one table do not outvote the rest."""
    counts = Counter(origins)
    shares = [LIGHT.get(origin, 1.0) / sqrt(counts[origin]) for origin in origins]
    return [share / sum(shares) for share in shares]


def read_runs() -> list[TimedRun]:
    """Every published run that is predicted, the project's first ones (`seed_ranking`), and the contributed ones."""
    with (DATA / "published_throughput.csv").open(newline="", encoding="utf-8") as file:
        published = [run_of(row) for row in csv.DictReader(file)]
    with seed_ranking.DATA.open(newline="", encoding="utf-8") as file:
        published += [_seed_run(row) for row in csv.DictReader(file)]
    return published + [_contributed_run(row) for row in contributed.rows() if row.run.measured.step_s]


def _contributed_run(row: contributed.Row) -> TimedRun:
    """Until it is part of a fit, the committed constants have not seen it."""
    asked, step_s = row.step_asked, row.run.measured.step_s
    assert step_s is not None
    model, workload, cluster, plan = asked.model, asked.workload, asked.cluster, asked.plan
    committed_s = estimate_time(model, workload, cluster, plan).step_s
    is_mean = workload.seq_len != row.asked.workload.seq_len
    return TimedRun(
        source=row.source,
        name=str(row.number),
        group="",
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        asked=asked,
        measured_s=step_s,
        left_out_s=_left_out().get((row.source, str(row.number)), committed_s),
        tolerance=0.15 if is_mean else 0.10,
        counted=True,
        note="the mean length of the samples" if is_mean else "",
    )


def _seed_run(row: dict[str, str]) -> TimedRun:
    """A row of `data/seed_runs.csv`; where its engine steps in every micro batch, one of those steps."""
    model = find(row["model"])
    plan = seed_ranking.plan_of(row, model.hidden_size)
    steps = int(row["engine_steps"])
    source = f"seed {row['group'][:3]}"
    workload, interconnect = seed_ranking.workload_of(row), seed_ranking.interconnect_of(row) or None
    cluster = _as_started(source, row["row"], row["gpus"], interconnect)
    return TimedRun(
        source=source,
        name=row["row"],
        group=row["group"] if row["ranked"] == "yes" else "",
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        asked=Asked(row["model"], row["gpus"], model, workload, cluster, plan),
        measured_s=float(row["step_s"]) / steps,
        left_out_s=_left_out().get((source, row["row"])),
        tolerance=ASSUMED_TOLERANCE,
        counted=row["ranked"] == "yes",
        note=row["assumed"] or row["notes"],
        evaluated=float(row["evaluated"] or 0),
    )


@cache
def _left_out() -> dict[tuple[str, str], float]:
    with LEFT_OUT.open(newline="", encoding="utf-8") as file:
        return {(row["source"], row["row"]): float(row["left_out_s"]) for row in csv.DictReader(file)}


@cache
def _machines() -> dict[tuple[str, str], dict[str, str]]:
    with (DATA / "machines_of_sources.csv").open(newline="", encoding="utf-8") as file:
        return {(row["source"], row["row"]): row for row in csv.DictReader(file)}


def _as_started(source: str, row: str, gpus: str, interconnect: str | None) -> Cluster:
    """The cluster with the host and the links that the source states, and with the threads that each rank had, a number
    or all, where it says how the run was started."""
    stated = _machines().get((source, row)) or _machines().get((source, "")) or {}
    parts = {name: stated.get(name) or None for name in ("host", "link")}
    cluster, threads = parse_cluster(gpus, interconnect=interconnect, **parts), stated.get("threads")
    if not threads:
        return cluster
    return replace(cluster, threads_per_rank=cpu_cores(cluster) if threads == "all" else int(threads))


def run_of(row: dict[str, str]) -> TimedRun:
    """A row of `data/published_throughput.csv`, or one with the same columns."""
    model = model_of(row["model"])
    fsdp = row["engine"] in get_args(Fsdp) and row["zero_stage"] == "3"
    workload = Workload(
        method=cast(Method, row["method"]),
        lora_rank=int(row["lora_rank"] or 8),
        lora_targets=tuple(row["lora_targets"].split()) or None,
        lora_dropout=float(row["lora_dropout"] or 0),
        seq_len=int(row["seq_len"]),
        precision=cast(Precision, row["precision"]),
        optimizer=row["optimizer"],
        attention=cast(AttentionKernel, row["attention"]),
        loss=cast(LossKernel, row["loss"]),
        kernels=cast(LayerKernels, row["kernels"] or "torch"),
        software=_software(row),
        framework="deepspeed" if row["source"].startswith(OWN_LOOPS) else "hf",
    )
    plan = Plan(
        zero_stage=cast(Literal[0, 1, 2, 3], int(row["zero_stage"])),
        micro_batch_size=int(row["micro_batch"]),
        gradient_accumulation_steps=int(row["grad_accum"]),
        gradient_checkpointing=row["checkpointing"] == "on",
        offload_optimizer=cast(Offload, row["offload_optimizer"]),
        offload_param=cast(Offload, row["offload_param"]),
    )
    if row["engine"] != "deepspeed":
        sharding = cast(Fsdp, row["engine"])
        plan = layer_units_plan(plan, model, sharding) if fsdp else replace(plan, sharding="none")
    plan = replace(plan, **_settings(row["plan"]))
    cluster = _as_started(row["source"], row["row"], row["gpus"], row["interconnect"] or None)
    ranks = cluster.world_size // plan.sequence_parallel_size
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps * ranks
    tokens, value = samples * workload.seq_len, float(row["value"])
    measured = {
        "tokens/s/GPU": tokens / value / cluster.world_size,
        "tokens/s": tokens / value,
        "samples/s": samples / value,
        "TFLOP/s/GPU": float(row["tflop_per_sample"] or 0) * samples / value / cluster.world_size,
        "ms/step": value / 1e3,
        "s/step": value,
        "s/1024 samples": value * samples / 1024,
    }[row["unit"]]
    return TimedRun(
        source=row["source"],
        name=row["row"],
        group=row["group"],
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        asked=Asked(row["model"], row["gpus"], model, workload, cluster, plan),
        measured_s=measured,
        left_out_s=_left_out().get((row["source"], row["row"])),
        tolerance=float(row["tolerance"]),
        counted=row["counted"] == "yes",
        note=row["reason"],
    )


def _software(row: dict[str, str]) -> Software:
    """What ran: habits, and the versions that the row states because they matter."""
    versions = {name: tuple(map(int, row[name].split("."))) for name in ("transformers", "deepspeed") if row[name]}
    columns = {"reentrant": "reentrant", "fp32_adapters": "adapters_fp32", "padding_mask": "padding_mask"}
    habits: dict[str, Any] = {name: row[column] == "yes" for name, column in columns.items()}
    return Software(**habits, **cast(dict[str, Any], versions))


def _settings(text: str) -> dict[str, Any]:
    """Fields of the plan that a row sets apart from their defaults: `overlap_comm=no reduce_bucket_size=50000000`."""
    settings: dict[str, Any] = {}
    for word in text.split():
        name, value = word.split("=")
        settings[name] = value == "yes" if value in ("yes", "no") else int(value)
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that vary one thing on the same hardware, ranked by time per token.

    Both figures are of predictions that have not seen the runs' origin.

    regret: measured time per token of the run that the advice would take, the fastest predicted of those that pay for
            their costly features (`choice.drop_dominated`), over that of the fastest, less one.
    tau:    Kendall's, over the pairs that were measured further apart than TIE; 1 when there is none.
    """

    name: str
    runs: tuple[TimedRun, ...]

    @property
    def regret(self) -> float:
        chosen = max(drop_dominated(self.runs), key=lambda run: run.tokens_per_s)
        return chosen.measured_s / chosen.tokens / min(run.measured_s / run.tokens for run in self.runs) - 1

    @property
    def tau(self) -> float:
        agree = pairs = 0
        for index, one in enumerate(self.runs):
            for other in self.runs[:index]:
                measured = one.measured_s / one.tokens / (other.measured_s / other.tokens) - 1
                if abs(measured) > TIE:
                    pairs += 1
                    predicted = one.unseen_s / one.tokens - other.unseen_s / other.tokens
                    agree += (measured * predicted > 0) - (measured * predicted < 0)
        return agree / pairs if pairs else 1.0


def groups(runs: Iterable[TimedRun]) -> list[Group]:
    """Groups of at least two counted runs."""
    members: dict[str, list[TimedRun]] = {}
    for run in runs:
        if run.group and run.counted:
            members.setdefault(run.group, []).append(run)
    return [Group(name=name, runs=tuple(found)) for name, found in members.items() if len(found) > 1]


def recorded_schedules(runs: Iterable[TimedRun]) -> Iterator[tuple[TimedRun, Schedule]]:
    """The runs with a recorded schedule, and the schedule."""
    for run in runs:
        if (file := schedule_file(run)).exists():
            yield run, read_schedule(file)


def schedule_file(run: TimedRun) -> Path:
    """Where the schedule of a run is kept, if one is recorded."""
    name = f"{run.source.split('@')[0]} {run.name}".replace("/", "-").replace(" ", "-")
    return SCHEDULES / f"{name}.json.gz"
