"""Published trainings on preferences, of reward models and by reinforcement learning: fit, memory and step time."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from ds_advise.advisor.search.candidate import FIT_THRESHOLD
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import NEXT_TOKEN

from .predicted_memory import Result, results
from .report import Table, percent


def step_error(result: Result) -> float | None:
    """Of a printed step time, relative to it."""
    run = result.run
    if run.step_s is None:
        return None
    return estimate_time(run.model, run.workload, run.cluster, run.plan).step_s / run.step_s - 1


def counted() -> list[Result]:
    return [each for each in results() if each.run.workload.objective != NEXT_TOKEN and not each.run.not_met_because]


def table(probabilities: Mapping[int, float]) -> Table:
    """A line for each source, and one for all."""
    sources: dict[str, list[Result]] = {}
    for result in counted():
        sources.setdefault(result.run.origin, []).append(result)

    def line(name: str, found: list[Result]) -> tuple[str, ...]:
        ran = [each for each in found if each.run.fitted]
        died = [each for each in found if not each.run.fitted]
        errors = [each.error for each in found if each.error is not None]
        times = [error for each in found if (error := step_error(each)) is not None]
        objectives = sorted({each.run.workload.objective for each in found})
        return (
            name,
            ", ".join(objectives),
            str(len(ran)),
            str(sum(probabilities[each.run.row] < 1 - FIT_THRESHOLD for each in ran)),
            str(len(died)),
            str(sum(probabilities[each.run.row] >= FIT_THRESHOLD for each in died)),
            _errors(errors),
            _errors(times),
        )

    return Table(
        title="Preferences, reward models and reinforcement learning: who fits, device memory and step time",
        header=(
            "source",
            "objectives",
            " ended",
            " of these predicted not to fit",
            " ran out of memory",
            " of these predicted to fit",
            " device memory, errors",
            " step time, errors",
        ),
        rows=(*(line(name, found) for name, found in sources.items()), line(f"{len(sources)} sources", counted())),
    )


def false_fits(probabilities: Mapping[int, float]) -> Table:
    """The runs that ran out of memory and are predicted to fit."""
    wrong = [each for each in counted() if not each.run.fitted and probabilities[each.run.row] >= FIT_THRESHOLD]
    return Table(
        title="Of these, predicted to fit and out of memory",
        header=("row", "source", "run", " predicted GiB", "notes"),
        rows=tuple(
            (
                str(each.run.row),
                each.run.source,
                each.run.label,
                f"{each.memory.device_bytes_per_gpu / 2**30:.1f}",
                each.run.notes,
            )
            for each in wrong
        ),
    )


def _errors(errors: list[float]) -> str:
    if not errors:
        return ""
    each = ", ".join(map(percent, errors))
    return each if len(errors) < 4 else f"median size {median(map(abs, errors)):.0%}"
