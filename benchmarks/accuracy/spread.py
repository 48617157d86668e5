"""The 80 % intervals of predicted speeds, from predictions that have not seen the origin of the run they are for.

A residual is measured over predicted speed. Its tenth and ninetieth percentiles over the runs of a kind, weighted by
their origins as in the fit, are the interval (`estimators/time/step_time.py`); how well that holds is told by the
runs of each origin under the percentiles of all others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, combinations
from math import exp, log
from typing import NamedTuple

from ds_advise.estimators.time.step_time import DATA, Kind, speed_kind

from .report import Table
from .timed_runs import TimedRun, groups, weights

HEADER = ("kind", "low", "high", "runs", "origins")
SHARE = 0.8


class Residual(NamedTuple):
    origin: str
    log_ratio: float


def residuals(runs: Sequence[TimedRun]) -> dict[Kind, list[Residual]]:
    """Those of DeepSpeed's runs, and of one GPU, by kind."""
    kinds: dict[Kind, list[Residual]] = {}
    for run in runs:
        if run.plan.sharding == "zero" or run.cluster.world_size == 1:
            kind = speed_kind(run.cluster.world_size, run.plan)
            kinds.setdefault(kind, []).append(Residual(run.origin, log(run.unseen_s / run.measured_s)))
    for kind, belongs in _KIND_OF_PAIR.items():
        pairs = [Residual(one.origin, _of_pair(one, other)) for one, other in _pairs(runs) if belongs(one, other)]
        # Which of two comes first means nothing.
        kinds[kind] = [each for pair in pairs for each in (pair, pair._replace(log_ratio=-pair.log_ratio))]
    return kinds


def csv_text(kinds: dict[Kind, list[Residual]]) -> str:
    """`DATA` as it ought to be."""
    lines = [HEADER, *((kind, *_cells(found)) for kind, found in kinds.items())]
    return "".join(",".join(line) + "\n" for line in lines)


def table(kinds: dict[Kind, list[Residual]]) -> Table:
    return Table(
        title=f"The interval that is to hold {SHARE:.0%} of the true speeds, as a factor of the predicted one",
        header=(
            "kind",
            " low",
            " high",
            " runs, or pairs either way",
            " origins",
            " left-out runs in the interval of the others",
        ),
        rows=tuple((kind, *_cells(found), f"{coverage(found):.0%}") for kind, found in kinds.items()),
    )


def coverage(found: Sequence[Residual]) -> float:
    """Share of runs that lie in the interval of the runs of other origins."""
    inside = 0
    for origin in {residual.origin for residual in found}:
        low, high = _interval([residual for residual in found if residual.origin != origin])
        inside += sum(low <= residual.log_ratio <= high for residual in found if residual.origin == origin)
    return inside / len(found)


def write(kinds: dict[Kind, list[Residual]]) -> None:
    DATA.write_text(csv_text(kinds), encoding="utf-8")


def _cells(found: Sequence[Residual]) -> tuple[str, ...]:
    low, high = _interval(found)
    origins = len({residual.origin for residual in found})
    return f"{exp(low):.2f}", f"{exp(high):.2f}", str(len(found)), str(origins)


def _interval(found: Sequence[Residual]) -> tuple[float, float]:
    shares = weights([residual.origin for residual in found])
    ordered = sorted(zip((residual.log_ratio for residual in found), shares, strict=True))
    below = [*accumulate(share for _, share in ordered)]
    beyond = (1 - SHARE) / 2
    return ordered[bisect_right(below, beyond)][0], ordered[bisect_left(below, 1 - beyond)][0]


def _pairs(runs: Sequence[TimedRun]) -> Iterator[tuple[TimedRun, TimedRun]]:
    """Runs of one group of DeepSpeed's on several GPUs that differ in their rung."""
    for group in groups(runs):
        members = [run for run in group.runs if run.plan.sharding == "zero" and run.cluster.world_size > 1]
        yield from (pair for pair in combinations(members, 2) if pair[0].plan.rung != pair[1].plan.rung)


def _of_pair(one: TimedRun, other: TimedRun) -> float:
    """Log of the measured over the predicted ratio of their speeds."""
    predicted = (other.unseen_s / other.tokens) / (one.unseen_s / one.tokens)
    return log((other.measured_s / other.tokens) / (one.measured_s / one.tokens) / predicted)


def _either(one: TimedRun, other: TimedRun) -> bool:
    return one.plan.offloads or other.plan.offloads


def _neither(one: TimedRun, other: TimedRun) -> bool:
    return not _either(one, other)


_KIND_OF_PAIR: dict[Kind, Callable[[TimedRun, TimedRun], bool]] = {"ratio": _neither, "ratio with offload": _either}
