"""The chapter "On a GPU" of docs/accuracy.md: predictions against what `python -m benchmarks.gpu` measured.

Measured and dry-run figures are read from benchmarks/data/gpu; closed forms are computed anew. A configuration of
several ranks ran as one of them alone: its memory is true but for NCCL, which is left out of the predictions, and its
time is not compared.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from ds_advise.advisor.question.this_machine import MeasuredHardware, measured_cluster
from ds_advise.advisor.search.candidate import judge_fit
from ds_advise.advisor.search.choice import fastest_that_fits
from ds_advise.advisor.search.search import predict_all
from ds_advise.estimators.estimate import Estimate
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.json_form import from_json
from ds_advise.estimators.time.step_time import estimate_plan
from ds_advise.probes.benchmark_result import BenchResult

from ..accuracy.report import Section, Table, percent
from .agenda.configurations import MEMORY
from .agenda.questions import QUESTIONS, Asked
from .configuration import Configuration, from_arguments
from .predicted import alone_outside_allocator, gpu_cluster

DATA = Path(__file__).parents[1] / "data" / "gpu"

MEMORY_TARGET, TIME_TARGET, REGRET_TARGET = 0.02, 0.12, 0.03
"""Allocated memory against the dry run at worst; step time after `bench` at the median; speed that the recommended plan
may lack."""

Column = tuple[str, str, Callable[["Trained"], float | None]]
"""What is predicted, the column of the measured figure, and the prediction."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A row of trainings.csv."""

    row: dict[str, str]
    bench: MeasuredHardware | None

    @cached_property
    def configuration(self) -> Configuration:
        return from_arguments(json.loads(self.row["arguments"]))

    @cached_property
    def cluster(self) -> Cluster:
        return gpu_cluster(self.row["gpu"], int(self.row["gpu_memory_bytes"]), self.configuration.world_size)

    @cached_property
    def estimate(self) -> Estimate:
        return self._estimate(self.cluster)

    @cached_property
    def step_after_bench_s(self) -> float | None:
        return None if self.bench is None else self._estimate(measured_cluster(self.cluster, self.bench)).time.step_s

    @property
    def device_bytes(self) -> int:
        """The closed form's, of a rank that is alone."""
        return self.estimate.memory.reserved_bytes_per_gpu + alone_outside_allocator(self.cluster)

    @property
    def tokens_per_s(self) -> float:
        return float(self.row["tokens_per_step"]) / float(self.row["total_s"])

    def measured(self, column: str) -> float | None:
        """A figure, None where the row has none."""
        return float(self.row[column]) if self.row[column] else None

    def _estimate(self, cluster: Cluster) -> Estimate:
        one = self.configuration
        return estimate_plan(one.shape, one.workload, cluster, one.plan(cluster))


def section(data: Path = DATA) -> Section | None:
    """The chapter, None without records."""
    rows = _rows(data / "trainings.csv")
    if not rows:
        return None
    bench = _bench(data / "bench.json")
    every = [Trained(row=row, bench=bench) for row in rows]
    names = {configuration.name for configuration in MEMORY}
    compared = [one for one in every if one.row["outcome"] == "measured" and one.row["name"] in names]
    alone = [one for one in compared if one.configuration.world_size == 1]
    first = rows[0]
    packages = ("driver", "torch", "deepspeed", "transformers")
    software = ", ".join(f"{name} {first[f'{name} version']}" for name in packages)
    return Section(
        title=f"On a GPU: {first['gpu']}",
        summary=(
            Table(
                title="Errors, predicted over measured less one",
                header=("what", " n", " median", " worst", " mean"),
                rows=tuple(_errors(compared, _MEMORY_COLUMNS) + _errors(alone, _TIME_COLUMNS)),
            ),
            Table(
                title="Memory of every configuration, GiB",
                header=_MEMORY_HEADER,
                rows=tuple(_memory_row(one) for one in compared),
            ),
            Table(
                title="Configurations that ran out of memory",
                header=("configuration", " closed form GiB", "verdict"),
                rows=tuple(_out_of_memory_row(one) for one in every if one.row["outcome"] == "out of memory"),
            ),
            Table(
                title="Steps on one GPU, ms",
                header=_TIME_HEADER,
                rows=tuple(_time_row(one) for one in alone),
            ),
            Table(
                title="Questions with every strategy measured",
                header=("question", " strategies", "recommended", "fastest", " recommended / fastest"),
                rows=tuple(_regrets(every)),
            ),
            _copied(data / "allocator.csv", "The replay of the allocator against torch's own segments, bytes"),
            _copied(data / "context.csv", "Bytes that a process holds in addition to its tensors"),
        ),
        details=Table(
            title="Every run", header=("name", "outcome"), rows=tuple((r["name"], r["outcome"]) for r in rows)
        ),
        notes=(
            f"Measured by `python -m benchmarks.gpu` on one {first['gpu']} ({software}): random weights, full samples. "
            f"Targets: allocated within {MEMORY_TARGET:.0%} of the dry run everywhere, steps within {TIME_TARGET:.0%} "
            f"after `bench` at the median, the recommended plan at most {REGRET_TARGET:.0%} slower than the fastest.",
        ),
        data={"trainings": rows},
    )


_MEMORY_HEADER = (
    "configuration",
    " allocated",
    " dry run",
    " closed form",
    " reserved",
    " dry run",
    " device",
    " dry run",
    " closed form",
)
_TIME_HEADER = (
    "configuration",
    " measured",
    " forward",
    " backward",
    " optimizer",
    " closed form",
    " after bench",
    " schedule",
)

_MEMORY_COLUMNS: tuple[Column, ...] = (
    ("allocated, dry run", "allocated_bytes", lambda one: one.measured("dry_run_allocated_bytes")),
    ("allocated, closed form", "allocated_bytes", lambda one: one.estimate.memory.allocated_bytes_per_gpu),
    ("reserved, dry run", "reserved_bytes", lambda one: one.measured("dry_run_reserved_bytes")),
    ("device, dry run", "device_bytes", lambda one: one.measured("dry_run_device_bytes")),
)
"""The closed form says what must be there; what the cache holds with memory to spare only the dry run says."""

_TIME_COLUMNS: tuple[Column, ...] = (
    ("step, closed form", "total_s", lambda one: one.estimate.time.step_s),
    ("step, closed form after bench", "total_s", lambda one: one.step_after_bench_s),
    ("step, schedule", "total_s", lambda one: one.measured("dry_run_step_s")),
)


def _errors(runs: Sequence[Trained], columns: Iterable[Column]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, column, predicted in columns:
        pairs = [(one.measured(column), predicted(one)) for one in runs]
        errors = [guess / truth - 1 for truth, guess in pairs if truth and guess]
        if errors:
            sizes = [abs(error) for error in errors]
            worst = max(errors, key=abs)
            rows.append(
                (name, str(len(errors)), f"{median(sizes):.1%}", percent(worst), percent(sum(errors) / len(errors)))
            )
    return rows


def _memory_row(one: Trained) -> tuple[str, ...]:
    memory = one.estimate.memory
    return (
        one.row["name"],
        _gib(one.measured("allocated_bytes")),
        _gib(one.measured("dry_run_allocated_bytes")),
        _gib(memory.allocated_bytes_per_gpu),
        _gib(one.measured("reserved_bytes")),
        _gib(one.measured("dry_run_reserved_bytes")),
        _gib(one.measured("device_bytes")),
        _gib(one.measured("dry_run_device_bytes")),
        _gib(one.device_bytes),
    )


def _out_of_memory_row(one: Trained) -> tuple[str, ...]:
    cluster = replace(one.cluster, host_memory_bytes_per_node=None)
    fit = judge_fit(one.estimate.memory, cluster)
    return one.row["name"], _gib(one.device_bytes), fit.reason


def _time_row(one: Trained) -> tuple[str, ...]:
    parts = ("total_s", "forward_s", "backward_s", "optimizer_s")
    return (
        one.row["name"],
        *(_ms(one.measured(part)) for part in parts),
        _ms(one.estimate.time.step_s),
        _ms(one.step_after_bench_s),
        _ms(one.measured("dry_run_step_s")),
    )


def _regrets(every: Sequence[Trained]) -> Iterable[tuple[str, ...]]:
    """Of every question whose recommended plan was run; the others' plans are those that the answer names today."""
    speeds = {one.row["name"]: one.tokens_per_s for one in every if one.row["outcome"] == "measured"}
    for asked in QUESTIONS:
        ran, recommended = _strategies(asked, every[0].cluster, speeds)
        if recommended in ran:
            fastest = max(ran, key=lambda strategy: ran[strategy])
            share = f"{ran[recommended] / ran[fastest]:.1%}"
            yield asked.name, str(len(ran)), recommended, fastest, share


def _strategies(asked: Asked, machines: Cluster, speeds: dict[str, float]) -> tuple[dict[str, float], str]:
    """Measured tokens per second by strategy, and the recommended strategy."""
    one = gpu_cluster(machines.gpu.name, machines.gpu.memory_bytes, 1)
    ladder, _ = predict_all(asked.question(one))
    recommended = fastest_that_fits(ladder)
    runs = {step.strategy: asked.of_step(step) for step in ladder}
    ran: dict[str, float] = {strategy: speeds[run.name] for strategy, run in runs.items() if run and run.name in speeds}
    return ran, "" if recommended is None else recommended.strategy


def _copied(file: Path, title: str) -> Table:
    rows = _rows(file)
    header = tuple(name if position == 0 else f" {name}" for position, name in enumerate(rows[0])) if rows else ()
    return Table(title=title, header=header, rows=tuple(tuple(row.values()) for row in rows))


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _bench(file: Path) -> MeasuredHardware | None:
    if not file.exists():
        return None
    return MeasuredHardware(result=from_json(BenchResult, json.loads(file.read_text(encoding="utf-8"))), age_s=0.0)


def _gib(size_bytes: float | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 2**30:.2f}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.0f}"
