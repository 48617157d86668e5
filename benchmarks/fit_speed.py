"""The constants of the step-time model that no source gives, fitted on published runs, and how well they carry over.

    python -m benchmarks.fit_speed              # each constant: committed, and what the fit finds
    python -m benchmarks.fit_speed --write      # besides, for each source, its error under a fit on the others
                                                (minutes), # into benchmarks/data/speed_left_out.csv

The fit minimizes the mean of |log(predicted / measured)| over the runs of `accuracy.time`, where every source counts as
the square root of its runs, so that a hundred rows of one table do not outvote the rest, plus STIFFNESS log^2(constant
/ prior) for each constant: what the runs hardly feel stays where other knowledge puts it. One constant after the other
is moved by shrinking factors as long as that helps.

TILE_START and RAMP_S stand apart: they follow from published timings of single products (`products_error`).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log, sqrt
from statistics import mean, median
from types import ModuleType
from typing import Any

from ds_advise.estimators.hardware.gpus import find_gpu
from ds_advise.estimators.time import collective_time, compute_time, host_time, offload_time, roofline
from ds_advise.estimators.time import step_time as throughput

from .accuracy.time import DATA, LEFT_OUT, TimedRun, percentile_90, read_runs

STIFFNESS = 0.05
"""A tenth off its prior, a constant must improve the mean error by 0.05 percentage points."""

FACTORS = (1.25, 1.1, 1.04, 1.015)
"""Steps by which a constant is moved, up and down, coarse to fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted constant.

    modules: where it stands, and every module that holds a copy of it.
    prior:   what is known without these runs.
    largest: beyond it the constant has no meaning.
    """

    name: str
    modules: tuple[ModuleType, ...]
    prior: float
    key: str = ""
    largest: float = float("inf")

    @property
    def label(self) -> str:
        return f"{self.name}[{self.key!r}]" if self.key else self.name

    def read(self) -> float:
        value: Any = getattr(self.modules[0], self.name)
        return float(value[self.key] if self.key else value)

    def write(self, value: float) -> None:
        for module in self.modules:
            if self.key:
                getattr(module, self.name)[self.key] = value
            else:
                setattr(module, self.name, value)
        compute_time.compute_time.cache_clear()
        host_time.host_work.cache_clear()


CONSTANTS = (
    # Products of 10240 run at 0.9 of the best size on A100 and H100 (data/published_gemm.csv).
    Constant(name="SUSTAINED", modules=(roofline,), key="Ampere", prior=0.9, largest=1.0),
    Constant(name="SUSTAINED", modules=(roofline,), key="Ada", prior=0.9, largest=1.0),
    Constant(name="SUSTAINED", modules=(roofline,), key="Hopper", prior=0.9, largest=1.0),
    # mixbench reads and writes 1330 of an A100-40GB's 1555 GB/s (ekondis/mixbench #18).
    Constant(name="MEMORY_SHARE", modules=(roofline,), prior=0.85, largest=0.95),
    # arXiv:2307.08691: up to 73 % of an A100's peak, 335 TFLOP/s on H100.
    Constant(name="ATTENTION_OF_PEAK", modules=(roofline,), key="Ampere", prior=0.7, largest=0.73),
    Constant(name="ATTENTION_OF_PEAK", modules=(roofline,), key="Hopper", prior=0.34, largest=0.73),
    # Assumed.
    Constant(name="CONTENTION", modules=(collective_time, throughput), prior=0.3, largest=1.0),
    # See the constants' own comments.
    Constant(name="HOST_S_PER_OPERATION", modules=(host_time,), prior=21e-6),
    Constant(name="FSDP_VISIT_S", modules=(host_time,), prior=700e-6),
    Constant(name="ZERO3_VISIT_S", modules=(host_time,), prior=700e-6),
    Constant(name="DRAM_SHARE", modules=(offload_time,), prior=0.4, largest=1.0),
)


def products_error(tile_start: float, ramp_s: float) -> float:
    """Mean error of `product_s` on the products of 1024 to 4096 in data/published_gemm.csv, each GPU's rate its best
    there."""
    with (DATA / "published_gemm.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    best: dict[tuple[str, str, str], float] = {}
    for row in rows:
        key = (row["gpu"], row["precision"], row["source"])
        best[key] = max(best.get(key, 0.0), float(row["tflops"]) * 1e12)
    errors = []
    for row in rows:
        size = int(row["size"])
        if size <= 4096:
            measured = 2 * size**3 / (float(row["tflops"]) * 1e12)
            rate = best[row["gpu"], row["precision"], row["source"]]
            moved = 3 * 2 * size**2 / roofline.memory_rate(find_gpu(row["gpu"]))
            errors.append(abs((max(2 * size**2 * (size + tile_start) / rate, moved) + ramp_s) / measured - 1))
    return mean(errors)


def sources(runs: Sequence[TimedRun]) -> dict[str, list[TimedRun]]:
    found: dict[str, list[TimedRun]] = {}
    for run in runs:
        if run.counted:
            found.setdefault(run.source, []).append(run)
    return found


def objective(runs: Sequence[TimedRun]) -> float:
    """Weighted mean of |log(predicted / measured)|, and what leaving the priors costs."""
    groups = sources(runs)
    total = sum(sqrt(len(group)) for group in groups.values())
    misfit = sum(
        sum(abs(log(run.step_s / run.measured_s)) for run in group) / sqrt(len(group)) for group in groups.values()
    )
    return misfit / total + STIFFNESS * sum(log(constant.read() / constant.prior) ** 2 for constant in CONSTANTS)


def fit(runs: Sequence[TimedRun], factors: Sequence[float] = FACTORS) -> float:
    """Moves the constants to a minimum of the objective and returns it."""
    best = objective(runs)
    for factor in factors:
        moved = True
        while moved:
            moved = False
            for constant in CONSTANTS:
                best, better = _descend(constant, factor, runs, best)
                moved |= better
    return best


def _descend(constant: Constant, factor: float, runs: Sequence[TimedRun], best: float) -> tuple[float, bool]:
    better = False
    for step in (factor, 1 / factor):
        while True:
            before = constant.read()
            if before * step > constant.largest:
                break
            constant.write(before * step)
            found = objective(runs)
            if found >= best - 1e-5:
                constant.write(before)
                break
            best, better = found, True
        if better:
            break
    return best, better


@contextmanager
def restored() -> Iterator[None]:
    """Puts every constant back afterwards."""
    committed = [constant.read() for constant in CONSTANTS]
    try:
        yield
    finally:
        for constant, value in zip(CONSTANTS, committed, strict=True):
            constant.write(value)


def left_out(runs: Sequence[TimedRun]) -> dict[str, list[float]]:
    """Errors of every source's runs under a fit on the others."""
    errors: dict[str, list[float]] = {}
    for source, group in sources(runs).items():
        with restored():
            fit([run for run in runs if run.source != source])
            errors[source] = [run.error for run in group]
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"cross-validate by source and write {LEFT_OUT.name}")
    asked = parser.parse_args()
    runs = read_runs()
    committed = [constant.read() for constant in CONSTANTS]
    before = objective(runs)
    with restored():
        after = fit(runs)
        print(f"objective {before:.4f} as committed, {after:.4f} fitted")
        for constant, value in zip(CONSTANTS, committed, strict=True):
            print(f"  {constant.label:32}{value:12.4g}{constant.read():12.4g}")
    found = min((products_error(tile, ramp * 1e-6), tile, ramp) for tile in range(0, 520, 20) for ramp in range(16))
    print(
        f"products: error {products_error(roofline.TILE_START, roofline.RAMP_S):.1%} as committed; at best "
        f"{found[0]:.1%}, with TILE_START {found[1]} and RAMP_S {found[2]}e-6"
    )
    if asked.write:
        _write(left_out(runs))
    return 0


def _write(errors: dict[str, list[float]]) -> None:
    everywhere = [error for found in errors.values() for error in found]
    with LEFT_OUT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "runs", "median", "p90"))
        for source, found in {"all": everywhere, **errors}.items():
            sizes = [abs(error) for error in found]
            writer.writerow((source, len(sizes), f"{median(sizes):.4f}", f"{percentile_90(sizes):.4f}"))


if __name__ == "__main__":
    sys.exit(main())
