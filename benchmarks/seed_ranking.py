"""The project's first measured runs against the prediction: step time, memory, and whether the fastest plan is found.

    python -m benchmarks.seed_ranking

Reads `data/seed_runs.csv`, whose rows name their source and what had to be assumed. In each group (one machine, one
model, one workload) the plan that the advice would take, the fastest predicted one that gains enough for its costly
features (`choice.drop_dominated`), should be the one that was measured fastest, or be within 5 % of it.
"""

from __future__ import annotations

import csv
import sys
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
    """One measured row with its prediction.

    tokens:       of one step; runs are ranked by time per token.
    measured_gib: as nvidia-smi shows it; None where the author gives none or the run is no DeepSpeed plan.
    ranked:       False for a run that stands in its group for comparison only.
    """

    group: str
    name: str
    label: str
    plan: Plan
    tokens: int
    measured_s: float
    predicted_s: float
    bottleneck: str
    measured_gib: float | None
    predicted_gib: float
    ranked: bool
    assumed: str
    notes: str

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a group came out.

    regret: measured time of the plan that the advice would take, over the fastest measured, less one.
    """

    group: str
    runs: tuple[Run, ...]
    regret: float
    concordance: float

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
        rows = tuple(run for run in members if run.ranked)
        if len(rows) < 2:
            continue
        chosen = max(drop_dominated(rows), key=lambda run: run.tokens_per_s)
        best_s = min(run.measured_s / run.tokens for run in rows)
        verdicts.append(
            Verdict(
                group=group,
                runs=rows,
                regret=chosen.measured_s / chosen.tokens / best_s - 1,
                concordance=_kendall(rows),
            )
        )
    return verdicts


def main() -> int:
    runs = read_runs()
    verdicts = {verdict.group: verdict for verdict in judge(runs)}
    for group, members in groupby(runs, key=lambda run: run.group):
        _print_group(group, tuple(members), verdicts.get(group))
    _print_memory([run for run in runs if run.measured_gib is not None])
    passed = sum(verdict.passes for verdict in verdicts.values())
    print(f"\n{passed} of {len(verdicts)} groups: fastest plan found within {REGRET:.0%}")
    return 0


def _print_group(group: str, runs: tuple[Run, ...], verdict: Verdict | None) -> None:
    print(f"\n{group}")
    print(f"  {'row':<8}{'plan':<34}{'measured':>9}{'predicted':>10}{'error':>7}  bottleneck")
    for run in runs:
        print(
            f"  {run.name:<8}{run.label:<34}{run.measured_s:8.2f}s{run.predicted_s:9.2f}s"
            f"{run.predicted_s / run.measured_s - 1:+7.0%}  {run.bottleneck}"
        )
    for text in dict.fromkeys(run.assumed for run in runs if run.assumed):
        print(f"  assumed: {text}")
    for run in runs:
        if run.notes:
            print(f"  {run.name}: {run.notes}")
    if verdict is not None:
        print(
            f"  {'ok' if verdict.passes else 'MISSED'}: the plan that the advice would take was measured "
            f"{verdict.regret:.0%} above the fastest; Kendall's tau {verdict.concordance:+.2f}"
        )


def _print_memory(runs: list[Run]) -> None:
    print("\ndevice memory of the fully described rows")
    for run in runs:
        assert run.measured_gib is not None
        error = run.predicted_gib / run.measured_gib - 1
        print(
            f"  {run.group[:3] + ' ' + run.name:<9}{run.label:<34}{run.measured_gib:6.1f} GiB"
            f"{run.predicted_gib:7.1f} GiB{error:+7.0%}  {'ok' if abs(error) <= MEMORY_ERROR else 'MISSED'}"
        )


def _run(row: dict[str, str]) -> Run:
    model, cluster, workload = find(row["model"]), cluster_of(row), workload_of(row)
    plan = plan_of(row, model.hidden_size)
    time = estimate_time(model, workload, cluster, plan)
    memory = estimate_memory(model, workload, cluster, plan)
    described = row["predict_memory"] == "yes"
    logits_copy = 4 * plan.micro_batch_size * workload.seq_len * model.vocab_size if row["logits_copy"] == "yes" else 0
    engine_steps = int(row["engine_steps"])
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.world_size * engine_steps
    return Run(
        group=row["group"],
        name=row["row"],
        label=_label(plan),
        bottleneck=time.bottleneck,
        plan=plan,
        tokens=samples * workload.seq_len,
        measured_s=float(row["step_s"]),
        predicted_s=time.step_s * engine_steps,
        measured_gib=float(row["gpu_gib"]) if described else None,
        predicted_gib=(memory.device_bytes_per_gpu + logits_copy) / _GIB,
        ranked=row["ranked"] == "yes",
        assumed=row["assumed"],
        notes=row["notes"],
    )


def workload_of(row: dict[str, str]) -> Workload:
    major, minor = map(int, (row["transformers"] or "5.0").split("."))
    return Workload(
        method=cast(Method, row["method"]),
        lora_rank=int(row["lora_rank"] or 8),
        seq_len=int(row["seq_len"]),
        precision=cast(Precision, row["precision"]),
        attention=cast(AttentionKernel, row["attention"]),
        software=Software(transformers=(major, minor)),
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


def _label(plan: Plan) -> str:
    offloads = [
        name
        for name, where in (("optimizer", plan.offload_optimizer), ("param", plan.offload_param))
        if where != "none"
    ]
    where = plan.offload_param if plan.offload_param != "none" else plan.offload_optimizer
    return (
        f"stage {plan.zero_stage}"
        + (f", {' + '.join(offloads)} on {where}" if offloads else "")
        + ("" if plan.pin_memory else ", pageable")
    )


def _kendall(runs: tuple[Run, ...]) -> float:
    """Kendall's tau: pairs in the measured order less pairs in the opposite one, over all pairs that differ."""
    agree = differ = 0
    for index, one in enumerate(runs):
        for other in runs[:index]:
            measured = one.measured_s / one.tokens - other.measured_s / other.tokens
            predicted = one.predicted_s / one.tokens - other.predicted_s / other.tokens
            if measured:
                differ += 1
                agree += (measured * predicted > 0) - (measured * predicted < 0)
    return agree / differ if differ else 1.0


if __name__ == "__main__":
    sys.exit(main())
