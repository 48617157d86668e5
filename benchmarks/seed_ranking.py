"""The project's first measured runs against the prediction: step time, memory, and whether the fastest plan is found.

    python -m benchmarks.seed_ranking

Reads `data/seed_runs.csv`, whose rows name their source and what had to be assumed. In each group (one machine, one
model, one workload) the plan that the advice would take, the fastest predicted one that gains enough for its costly
features (`choice.drop_dominated`), should be the one that was measured fastest, or be within 5 % of it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, cast

from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.search.choice import drop_dominated
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Offload, Plan
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import AttentionKernel, Method, Precision, Software, Workload

DATA = Path(__file__).parent / "data" / "seed_runs.csv"
REGRET, MEMORY_ERROR = 0.05, 0.15
INTERCONNECT = "4x100Gb/s"
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured row with its prediction."""

    group: str
    name: str
    plan: Plan
    tokens: int
    """Of one step; runs are ranked by time per token."""
    measured_s: float
    predicted_s: float
    measured_gib: float | None
    """As nvidia-smi shows it; None if the author gives none or the run is no DeepSpeed plan."""
    predicted_gib: float
    ranked: bool
    """False for a run that is in its group for comparison only."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.predicted_s

    @property
    def memory_error(self) -> float | None:
        return self.predicted_gib / self.measured_gib - 1 if self.measured_gib else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a group."""

    group: str
    chosen: Run
    """The plan that the advice would take."""
    regret: float
    """Its measured time over that of the fastest, minus 1."""

    @property
    def passes(self) -> bool:
        return self.regret <= REGRET


def read_runs() -> list[Run]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return [_run(row) for row in csv.DictReader(file)]


def judge(runs: list[Run]) -> list[Verdict]:
    """One verdict per group of at least two runs."""
    verdicts = []
    for group, members in groupby(runs, key=lambda run: run.group):
        rows = [run for run in members if run.ranked]
        if len(rows) >= 2:
            chosen = max(drop_dominated(rows), key=lambda run: run.tokens_per_s)
            fastest = min(run.measured_s / run.tokens for run in rows)
            regret = chosen.measured_s / chosen.tokens / fastest - 1
            verdicts.append(Verdict(group=group, chosen=chosen, regret=regret))
    return verdicts


def main() -> None:
    runs = read_runs()
    for run in runs:
        memory = "" if run.memory_error is None else f", memory {run.memory_error:+.0%}"
        print(f"{run.group}, row {run.name}: step {run.predicted_s / run.measured_s - 1:+.0%}{memory}")
    verdicts = judge(runs)
    for verdict in verdicts:
        print(f"{verdict.group}: row {verdict.chosen.name} is chosen, {verdict.regret:.0%} above the fastest")
    passed = sum(verdict.passes for verdict in verdicts)
    print(f"{passed} of {len(verdicts)} groups: fastest plan found within {REGRET:.0%}")


def _run(row: dict[str, str]) -> Run:
    model, cluster, workload = find(row["model"]), cluster_of(row), workload_of(row)
    plan = plan_of(row, model.hidden_size)
    memory = estimate_memory(model, workload, cluster, plan)
    logits_copy = 4 * plan.micro_batch_size * workload.seq_len * model.vocab_size if row["logits_copy"] == "yes" else 0
    engine_steps = int(row["engine_steps"])
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.world_size * engine_steps
    return Run(
        group=row["group"],
        name=row["row"],
        plan=plan,
        tokens=samples * workload.seq_len,
        measured_s=float(row["step_s"]),
        predicted_s=estimate_time(model, workload, cluster, plan).step_s * engine_steps,
        measured_gib=float(row["gpu_gib"]) if row["predict_memory"] == "yes" else None,
        predicted_gib=(memory.device_bytes_per_gpu + logits_copy) / _GIB,
        ranked=row["ranked"] == "yes",
    )


def workload_of(row: dict[str, str]) -> Workload:
    major, minor = map(int, (row["transformers"] or "5.0").split("."))
    deepspeed = tuple(map(int, row["deepspeed"].split(".")))
    return Workload(
        method=cast(Method, row["method"]),
        lora_rank=int(row["lora_rank"] or 8),
        seq_len=int(row["seq_len"]),
        precision=cast(Precision, row["precision"]),
        attention=cast(AttentionKernel, row["attention"]),
        software=Software(transformers=(major, minor), deepspeed=deepspeed),
    )


def cluster_of(row: dict[str, str]) -> Cluster:
    return parse_cluster(row["gpus"], interconnect=interconnect_of(row) or None)


def interconnect_of(row: dict[str, str]) -> str:
    return INTERCONNECT if row["gpus"].count("x") == 2 else ""


def plan_of(row: dict[str, str], hidden: int) -> Plan:
    """The row's plan; `z3_auto` takes the sizes that "auto" stands for in transformers."""
    auto = row["z3_auto"] == "yes"
    return Plan(
        zero_stage=cast(Literal[0, 1, 2, 3], int(row["zero_stage"])),
        micro_batch_size=int(row["micro_batch"]),
        gradient_accumulation_steps=int(row["grad_accum"]),
        gradient_checkpointing=row["checkpointing"] == "on",
        offload_optimizer=cast(Offload, row["offload_optimizer"]),
        offload_param=cast(Offload, row["offload_param"]),
        overlap_comm=row["overlap_comm"] == "yes",
        pin_memory=row["pin_memory"] == "yes",
        reduce_bucket_size=int(row["reduce_bucket"] or 500_000_000),
        stage3_prefetch_bucket_size=int(0.9 * hidden * hidden) if auto else 50_000_000,
        stage3_param_persistence_threshold=10 * hidden if auto else 100_000,
    )


if __name__ == "__main__":
    main()
