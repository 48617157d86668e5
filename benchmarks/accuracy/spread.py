"""The 80 % intervals of predicted speeds, from predictions that have not seen the origin of the run they are for.

An error is the log of measured over predicted speed. The interval of a kind is that of a run of an origin not among its
runs (`between_sources`); how well it holds is measured by the runs of each origin in the interval of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import exp, log

from ds_advise.estimators.time.step_time import DATA, Kind, speed_kind

from . import software
from .between_sources import (
    SHARE,
    Error,
    by_source,
    coverage,
    held,
    interval,
    mean_of_sources,
    percentile,
    spread_of,
)
from .report import Table
from .timed_runs import TimedRun, groups

HEADER = ("kind", "low", "high", "runs", "origins")


def errors(runs: Sequence[TimedRun]) -> dict[Kind, list[Error]]:
    """Those of DeepSpeed's runs, and of one GPU, by kind."""
    kinds = {kind: list(map(_error, members)) for kind, members in by_kind(runs).items()}
    for kind, belongs in _KIND_OF_PAIR.items():
        pairs = [Error(one.origin, _of_pair(one, other)) for one, other in _pairs(runs) if belongs(one, other)]
        # Which of two comes first means nothing.
        kinds[kind] = [each for pair in pairs for each in (pair, pair._replace(value=-pair.value))]
    return kinds


def by_kind(runs: Sequence[TimedRun]) -> dict[Kind, list[TimedRun]]:
    """The runs of DeepSpeed, and of one GPU."""
    kinds: dict[Kind, list[TimedRun]] = {}
    for run in runs:
        if run.plan.sharding == "zero" or run.cluster.world_size == 1:
            kinds.setdefault(speed_kind(run.cluster.world_size, run.plan), []).append(run)
    return kinds


def software_table(runs: Sequence[TimedRun]) -> Table:
    """Errors of runs whose origin no constant was fitted on, and how well the interval holds, by versions."""
    return Table(
        title="DeepSpeed, and one GPU, by versions: each source once",
        header=("kind", "versions", " runs", " sources", " median", " 90 %", f" in the interval of {SHARE:.0%}"),
        rows=tuple(
            (kind, name.strip("_").replace("_", " ") or "all", *stated)
            for kind, members in by_kind(runs).items()
            for name, belongs in software.SELECTIONS.items()
            if (stated := _stated(members, belongs))
        ),
    )


def _stated(runs: Sequence[TimedRun], belongs: Callable[[str], bool]) -> tuple[str, ...]:
    """Cells of `software_table` for the runs of one kind whose source belongs. The interval is that of all versions."""
    inside = zip(runs, held(list(map(_error, runs))), strict=True)
    chosen = [(run, is_held) for run, is_held in inside if belongs(run.source)]
    if not chosen:
        return ()
    sizes = [Error(run.origin, abs(run.unseen_error)) for run, _ in chosen]
    share = mean_of_sources([Error(run.origin, float(is_held)) for run, is_held in chosen])
    errors = (f"{percentile(sizes, part):.1%}" for part in (0.5, 0.9))
    return str(len(sizes)), str(len(by_source(sizes))), *errors, f"{share:.0%}"


def csv_text(kinds: dict[Kind, list[Error]]) -> str:
    """The text of `DATA`, made again."""
    lines = [HEADER, *((kind, *_cells(found)) for kind, found in kinds.items())]
    return "".join(",".join(line) + "\n" for line in lines)


def table(kinds: dict[Kind, list[Error]]) -> Table:
    return Table(
        title=f"The interval that is to hold {SHARE:.0%} of the true speeds, as a factor of the predicted one",
        header=(
            "kind",
            " low",
            " high",
            " runs, or pairs either way",
            " origins",
            " left-out runs in the interval of the others",
            " the same, each origin once",
        ),
        rows=tuple(
            (kind, *_cells(found), *(f"{share:.0%}" for share in coverage(found))) for kind, found in kinds.items()
        ),
    )


def write(kinds: dict[Kind, list[Error]]) -> None:
    DATA.write_text(csv_text(kinds), encoding="utf-8")


def _cells(found: Sequence[Error]) -> tuple[str, ...]:
    low, high = interval(spread_of(found))
    return f"{exp(low):.2f}", f"{exp(high):.2f}", str(len(found)), str(len(by_source(found)))


def _error(run: TimedRun) -> Error:
    return Error(run.origin, log(run.unseen_s / run.measured_s))


def _pairs(runs: Sequence[TimedRun]) -> Iterator[tuple[TimedRun, TimedRun]]:
    """Runs of one group of DeepSpeed's on several GPUs that differ in their strategy."""
    for group in groups(runs):
        members = [run for run in group.runs if run.plan.sharding == "zero" and run.cluster.world_size > 1]
        yield from (pair for pair in combinations(members, 2) if pair[0].plan.strategy != pair[1].plan.strategy)


def _of_pair(one: TimedRun, other: TimedRun) -> float:
    """Log of the measured over the predicted ratio of their speeds."""
    predicted = (other.unseen_s / other.tokens) / (one.unseen_s / one.tokens)
    return log((other.measured_s / other.tokens) / (one.measured_s / one.tokens) / predicted)


def _either(one: TimedRun, other: TimedRun) -> bool:
    return one.plan.offloads or other.plan.offloads


def _neither(one: TimedRun, other: TimedRun) -> bool:
    return not _either(one, other)


_KIND_OF_PAIR: dict[Kind, Callable[[TimedRun, TimedRun], bool]] = {"ratio": _neither, "ratio with offload": _either}
