"""The constants of the step-time model that no source gives, fitted on published runs, and how well they carry over.

    python -m benchmarks.accuracy --fit            # each constant: committed, and what the fit finds
    python -m benchmarks.accuracy --fit --write    # besides, for each origin of runs, its predictions under a fit on
                                                   # the others, into benchmarks/data/speed_left_out.csv

The fit minimizes the mean of |log(predicted / measured)| over the runs of `accuracy.timed_runs`, weighted by their
origins (`timed_runs.weights`), plus STIFFNESS log^2(constant / prior) for each constant: what the runs hardly feel
stays where other knowledge puts it. The logarithm of a prediction is nearly linear in those of the constants: each
round takes the slopes, finds the minimum of the linear model within a trust region, and keeps it if the true objective
agrees.

TILE_START and RAMP_S stand apart: they follow from published timings of single products (`products_error`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from statistics import mean
from types import ModuleType
from typing import Any

from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.time import collective_time, compute_time, host_time, offload_time, roofline

from .timed_runs import DATA, LEFT_OUT, TimedRun, weights

STIFFNESS = 0.05
"""A tenth off its prior, a constant must improve the mean error by 0.05 percentage points."""

STEPS = tuple(log(factor) for factor in (1.25, 1.1, 1.04, 1.015, 1.005))
"""Steps by which the linear model's constants are moved, up and down, coarse to fine."""

TRUST = tuple(log(factor) for factor in (1.5, 1.25, 1.1, 1.04))
"""How far a constant may move in a round, round by round."""

SLOPE_STEP = log(1.02)

Slopes = list[list[tuple[int, float]]]
"""By constant, (run, slope of its log prediction) where it is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted constant.

    module:  where it stands, and is read from whenever it is used.
    prior:   what is known without these runs.
    largest: beyond it the constant has no meaning.
    """

    name: str
    module: ModuleType
    prior: float
    key: str = ""
    largest: float = float("inf")

    @property
    def label(self) -> str:
        return f"{self.name}[{self.key!r}]" if self.key else self.name

    def read(self) -> float:
        value: Any = getattr(self.module, self.name)
        return float(value[self.key] if self.key else value)

    def write(self, value: float) -> None:
        if self.key:
            getattr(self.module, self.name)[self.key] = value
        else:
            setattr(self.module, self.name, value)
        compute_time.compute_time.cache_clear()


CONSTANTS = (
    # Products of 10240 run at 0.9 of the best size on A100 and H100, of 4096 and more at 0.97 on an L4
    # (data/published_gemm.csv).
    Constant(name="SUSTAINED", module=roofline, key="Ampere", prior=0.9, largest=1.0),
    Constant(name="SUSTAINED", module=roofline, key="Ada", prior=0.97, largest=1.0),
    Constant(name="SUSTAINED", module=roofline, key="Hopper", prior=0.9, largest=1.0),
    # mixbench reads and writes 1330 of an A100-40GB's 1555 GB/s (ekondis/mixbench #18).
    Constant(name="MEMORY_SHARE", module=roofline, prior=0.85, largest=0.95),
    # arXiv:2307.08691: up to 73 % of an A100's peak, 335 TFLOP/s on H100.
    Constant(name="ATTENTION_OF_PEAK", module=roofline, key="Ampere", prior=0.7, largest=0.73),
    Constant(name="ATTENTION_OF_PEAK", module=roofline, key="Hopper", prior=0.34, largest=0.73),
    # Assumed.
    Constant(name="CONTENTION", module=collective_time, prior=0.3, largest=1.0),
    Constant(name="PREFETCH_HIDDEN", module=collective_time, prior=0.5, largest=1.0),
    # See the constants' own comments.
    Constant(name="FSDP_VISIT_S", module=host_time, prior=700e-6),
    Constant(name="DRAM_SHARE", module=offload_time, prior=0.4, largest=1.0),
    Constant(name="CORE_BYTES_PER_S", module=offload_time, prior=10e9),
    # A core of a Xeon streams 7.7 GB/s (CORE_BYTES_PER_S).
    Constant(name="PAGEABLE_BYTES_PER_S", module=offload_time, prior=7.7e9),
    Constant(name="CONTENTION_EXPONENT", module=offload_time, prior=0.5, largest=1.0),
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


def objective(runs: Sequence[TimedRun]) -> float:
    """Weighted mean of |log(predicted / measured)| of the counted runs, and what leaving the priors costs."""
    counted = [run for run in runs if run.counted]
    return _objective(_log_errors(counted), weights([run.origin for run in counted]), _log_shifts())


def _objective(log_errors: Sequence[float], shares: Sequence[float], log_shifts: Sequence[float]) -> float:
    misfit = sum(weight * abs(error) for weight, error in zip(shares, log_errors, strict=True))
    return misfit + STIFFNESS * sum(shift * shift for shift in log_shifts)


def _log_errors(runs: Sequence[TimedRun]) -> list[float]:
    return [log(run.step_s / run.measured_s) for run in runs]


def _log_shifts() -> list[float]:
    """How far each constant is from its prior."""
    return [log(constant.read() / constant.prior) for constant in CONSTANTS]


def slopes(runs: Sequence[TimedRun], log_errors: Sequence[float]) -> Slopes:
    """Those of every constant, where it stands."""
    found = []
    for constant in CONSTANTS:
        before = constant.read()
        constant.write(before * exp(SLOPE_STEP))
        moved = _log_errors(runs)
        constant.write(before)
        pairs = enumerate(zip(moved, log_errors, strict=True))
        found.append([(run, (after - error) / SLOPE_STEP) for run, (after, error) in pairs if after != error])
    return found


def fit(runs: Sequence[TimedRun], *, trust: Sequence[float] = TRUST, first_slopes: Slopes | None = None) -> float:
    """Moves the constants to a minimum of the objective and returns it.

    first_slopes: those of the first round, where the caller has them already.
    """
    counted = [run for run in runs if run.counted]
    shares, errors = weights([run.origin for run in counted]), _log_errors(counted)
    best, known = _objective(errors, shares, _log_shifts()), first_slopes
    for largest in trust:
        known = known or slopes(counted, errors)
        before = [constant.read() for constant in CONSTANTS]
        moves = _linear_minimum(errors, known, shares, largest)
        if not any(moves):
            continue
        for constant, value, move in zip(CONSTANTS, before, moves, strict=True):
            constant.write(min(constant.largest, value * exp(move)))
        found = _log_errors(counted)
        better = _objective(found, shares, _log_shifts())
        if better < best - 1e-5:
            best, errors = better, found
            known = None if max(map(abs, moves)) > 2 * SLOPE_STEP else known
        else:
            for constant, value in zip(CONSTANTS, before, strict=True):
                constant.write(value)
    return best


def _linear_minimum(log_errors: Sequence[float], known: Slopes, shares: Sequence[float], largest: float) -> list[float]:
    """By how much each constant's logarithm moves, at most by `largest`, to the minimum of the linear model."""
    errors, shifts = list(log_errors), _log_shifts()
    room = [log(constant.largest / constant.read()) for constant in CONSTANTS]
    moves = [0.0] * len(CONSTANTS)

    def gain(index: int, step: float) -> float:
        """What moving a constant saves."""
        misfit = sum(shares[run] * (abs(errors[run]) - abs(errors[run] + step * slope)) for run, slope in known[index])
        return misfit + STIFFNESS * (shifts[index] ** 2 - (shifts[index] + step) ** 2)

    def moves_by(index: int, size: float) -> bool:
        for step in (size, -size):
            wanted = moves[index] + step
            if abs(wanted) <= largest and wanted <= room[index] and gain(index, step) > 1e-7:
                moves[index] += step
                shifts[index] += step
                for run, slope in known[index]:
                    errors[run] += step * slope
                return True
        return False

    for size in STEPS:
        while sum(moves_by(index, size) for index in range(len(CONSTANTS))):
            pass
    return moves


@contextmanager
def restored() -> Iterator[None]:
    """Puts every constant back afterwards."""
    committed = [constant.read() for constant in CONSTANTS]
    try:
        yield
    finally:
        for constant, value in zip(CONSTANTS, committed, strict=True):
            constant.write(value)


def left_out(runs: Sequence[TimedRun]) -> dict[tuple[str, str], float]:
    """By source and row, seconds of every counted run's step under a fit on the runs of other origins."""
    counted = [run for run in runs if run.counted]
    found = {}
    with restored():
        fit(counted)
        fitted = [constant.read() for constant in CONSTANTS]
        known = slopes(counted, _log_errors(counted))
        for origin in dict.fromkeys(run.origin for run in counted):
            for constant, value in zip(CONSTANTS, fitted, strict=True):
                constant.write(value)
            others = [run for run in counted if run.origin != origin]
            fit(others, first_slopes=_of(known, [run.origin != origin for run in counted]))
            found.update({(run.source, run.name): run.step_s for run in counted if run.origin == origin})
    return found


def _of(known: Slopes, kept: Sequence[bool]) -> Slopes:
    """The slopes of the runs that are kept, which are numbered anew."""
    numbers = list(accumulate(kept, initial=0))
    return [[(numbers[run], slope) for run, slope in pairs if kept[run]] for pairs in known]


def report(runs: Sequence[TimedRun]) -> Iterator[str]:
    """The objective and every constant, committed and fitted, a line each."""
    committed = [constant.read() for constant in CONSTANTS]
    before = objective(runs)
    with restored():
        yield f"objective {before:.4f} as committed, {fit(runs):.4f} fitted"
        for constant, value in zip(CONSTANTS, committed, strict=True):
            yield f"  {constant.label:32}{value:12.4g}{constant.read():12.4g}"
    found = min((products_error(tile, ramp * 1e-6), tile, ramp) for tile in range(0, 520, 20) for ramp in range(16))
    yield (
        f"products: error {products_error(roofline.TILE_START, roofline.RAMP_S):.1%} as committed; at best "
        f"{found[0]:.1%}, with TILE_START {found[1]} and RAMP_S {found[2]}e-6"
    )


def write(runs: Sequence[TimedRun]) -> None:
    """Cross-validate by source and write `LEFT_OUT`."""
    seconds = left_out(runs)
    with LEFT_OUT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "row", "committed_s", "left_out_s"))
        for run in runs:
            if run.counted:
                left_out_s = seconds[run.source, run.name]
                writer.writerow((run.source, run.name, f"{run.step_s:.5g}", f"{left_out_s:.5g}"))
