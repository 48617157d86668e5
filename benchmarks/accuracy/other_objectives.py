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


def figures() -> dict[str, dict[str, str]]:
    """The group of docs/numbers.json on step times of these trainings."""
    errors = sorted(error for each in counted() if (error := step_error(each)) is not None)
    ends = {name: f"{100 * error:+.0f} %" for name, error in (("lowest", errors[0]), ("highest", errors[-1]))}
    return {"grpo_steps": {"runs": str(len(errors)), **ends}}


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


def _errors(errors: list[float]) -> str:
    if not errors:
        return ""
    each = ", ".join(map(percent, errors))
    return each if len(errors) < 4 else f"median size {median(map(abs, errors)):.0%}"
