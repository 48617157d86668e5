"""Memory: the printed quantity of every run against the estimators', DeepSpeed's own estimators and the rule of four.

A run counts as *exact* when its figure is what the estimate is about: peak allocated, or reserved or device memory of a
GPU that was (nearly) full. With memory to spare, PyTorch keeps blocks cached that it would return when asked: reserved and
nvidia-smi then bound the need from above. Such runs are *bounds*: only a prediction above them would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, median
from typing import Literal

from ds_advise.advisor.fit import MARGIN, judge
from ds_advise.estimators.estimate import MemoryEstimate
from ds_advise.estimators.memory import estimate_memory

from . import deepspeed_loop, rivals, torch_loop
from .report import Section, Table, percent
from .rows import Run, excluded, runs

FULL = 0.85
"""Share of the GPU's memory from which on reserved and device memory are taken for the need."""

MEAN_TARGET, P90_TARGET = 0.05, 0.12
_GIB = 2**30

Kind = Literal["exact", "bound", "set aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run with its prediction; `error` is signed, relative to the measurement, None for a run that did not fit."""

    run: Run
    kind: Kind
    predicted_bytes: int
    fits: bool
    deepspeed_bytes: int
    rule_bytes: int

    @property
    def error(self) -> float | None:
        return _error(self.predicted_bytes, self.run)

    @property
    def false_fit(self) -> bool:
        return self.fits and not self.run.fitted

    @property
    def false_miss(self) -> bool:
        return self.run.fitted and not self.fits


@cache
def results() -> tuple[Result, ...]:
    return tuple(_result(run) for run in runs())


def predict(run: Run) -> MemoryEstimate:
    """The estimate of the run's own software: DeepSpeed's engine, or torch's optimizer alone or under FSDP."""
    if run.loop != "deepspeed":
        return torch_loop.estimate(run)
    return deepspeed_loop.as_run(run, estimate_memory(run.model, run.workload, run.cluster, run.plan))


def _result(run: Run) -> Result:
    memory = predict(run)
    predicted = {"allocated": memory.allocated_bytes_per_gpu, "reserved": memory.reserved_bytes_per_gpu,
                 "device": memory.device_bytes_per_gpu}[run.quantity]
    sharded = run.loop == "fsdp" or run.plan.zero_stage == 3
    return Result(
        run=run, kind=_kind(run), predicted_bytes=predicted, fits=judge(memory, run.cluster).fits,
        deepspeed_bytes=rivals.deepspeed_bytes(run.model, run.cluster, run.plan, stage3=sharded),
        rule_bytes=rivals.rule_bytes(run.model, run.workload, run.cluster, sharded=sharded))


def _kind(run: Run) -> Kind:
    if run.not_met_because:
        return "set aside"
    measured = run.measured_bytes or run.cluster.gpu.memory_bytes
    full = measured >= FULL * run.cluster.gpu.memory_bytes
    return "exact" if run.quantity == "allocated" or full else "bound"


def _error(predicted: int, run: Run) -> float | None:
    return None if run.measured_bytes is None else predicted / run.measured_bytes - 1


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def subsets(kind: Kind = "exact") -> dict[str, list[Result]]:
    """The results of one kind by subset, in alphabetical order."""
    found: dict[str, list[Result]] = {}
    for result in results():
        if result.kind == kind and result.error is not None:
            found.setdefault(result.run.subset, []).append(result)
    return dict(sorted(found.items()))


def section() -> Section:
    exact = subsets()
    return Section(
        title="Memory",
        summary=(_summary(exact), _fit_table(), _rivals(exact), _bounds(), _sources(), _misses(), _asides(), _excluded()),
        details=_details(), notes=_notes(), data=_data(exact))


def _errors(found: Iterable[Result]) -> list[float]:
    return [result.error for result in found if result.error is not None]


def _summary(exact: dict[str, list[Result]]) -> Table:
    def row(name: str, found: list[Result]) -> tuple[str, ...]:
        errors = _errors(found)
        sizes = [abs(error) for error in errors]
        met = mean(sizes) <= MEAN_TARGET and percentile(sizes, 0.9) <= P90_TARGET
        return (name, str(len(found)), str(len({result.run.source for result in found})), f"{mean(sizes):.1%}",
                percent(median(errors)), f"{percentile(sizes, 0.9):.1%}", percent(max(errors, key=abs)), "yes" if met else "**no**")

    rows = [row(name, found) for name, found in exact.items()]
    rows.append(row("**all**", [result for found in exact.values() for result in found]))
    return Table(
        title=f"Error of the predicted figure (target: mean at most {MEAN_TARGET:.0%}, 90th percentile at most {P90_TARGET:.0%})",
        header=("subset", " n", " sources", " mean", " median, signed", " p90", " worst, signed", "met"), rows=tuple(rows))


def _fit_table() -> Table:
    def row(name: str, found: list[Result], fits: Callable[[Result], bool]) -> tuple[str, ...]:
        ran, failed = [result for result in found if result.run.fitted], [result for result in found if not result.run.fitted]
        return (name, str(len(ran)), str(sum(not fits(result) for result in ran)), str(len(failed)),
                str(sum(fits(result) for result in failed)))

    found = list(results())
    return Table(
        title=f"Does it fit? (margin {MARGIN['analytic']:.0%} of the prediction, decided on device memory)",
        header=("who says it", " ran", " of these said not to fit", " ran out of memory", " of these said to fit (false fits)"),
        rows=(row("ds-advise", found, lambda result: result.fits),
              row("DeepSpeed's estimators", found, lambda result: result.deepspeed_bytes <= result.run.cluster.gpu.memory_bytes),
              row("4 x weights", found, lambda result: result.rule_bytes <= result.run.cluster.gpu.memory_bytes)))


def _rivals(exact: dict[str, list[Result]]) -> Table:
    def row(name: str, found: list[Result]) -> tuple[str, ...]:
        cells = [name, str(len(found)), f"{mean(abs(error) for error in _errors(found)):.1%}"]
        for guess in ([result.deepspeed_bytes for result in found], [result.rule_bytes for result in found]):
            errors = [_error(size, result.run) or 0.0 for size, result in zip(guess, found, strict=True)]
            low = sum(error < -0.1 for error in errors) / len(errors)
            cells += [f"{mean(map(abs, errors)):.0%}", f"{low:.0%}"]
        return tuple(cells)

    rows = [row(name, found) for name, found in exact.items()]
    rows.append(row("**all**", [result for found in exact.values() for result in found]))
    return Table(title="The same runs, beside DeepSpeed's estimators and the rule of four times the weights", rows=tuple(rows),
                 header=("subset", " n", " ours, mean", " DeepSpeed's, mean", " more than 10 % low", " 4 x weights, mean",
                         " more than 10 % low"))


def _bounds() -> Table:
    rows = []
    for name, found in subsets("bound").items():
        errors = _errors(found)
        rows.append((name, str(len(found)), percent(median(errors)), percent(max(errors)), str(sum(error > 0.05 for error in errors))))
    return Table(title="Runs with memory to spare, whose figure holds PyTorch's cache: an upper bound of the need", rows=tuple(rows),
                 header=("subset", " n", " median, signed", " highest, signed", " predicted more than 5 % above"))


def _sources() -> Table:
    by_source: dict[str, list[Result]] = {}
    for found in subsets().values():
        for result in found:
            by_source.setdefault(result.run.source, []).append(result)
    rows = tuple((name, str(len(found)), f"{mean(map(abs, _errors(found))):.1%}", percent(max(_errors(found), key=abs)))
                 for name, found in by_source.items())
    return Table(title="By source", header=("source", " n", " mean", " worst, signed"), rows=rows)


def _line(result: Result) -> tuple[str, ...]:
    run = result.run
    measured = "out of memory" if run.measured_bytes is None else f"{run.measured_bytes / _GIB:.2f}"
    error = "" if result.error is None else percent(result.error)
    return (str(run.row), run.label, run.subset, run.quantity, measured, f"{result.predicted_bytes / _GIB:.2f}", error)


_HEADER = ("row", "run", "subset", "quantity", " measured GiB", " predicted GiB", " error")


def _misses() -> Table:
    rows = tuple((*_line(result), result.run.notes) for result in results()
                 if result.kind == "exact" and (result.false_fit or abs(result.error or 0) > P90_TARGET))
    return Table(title=f"Runs that are off by more than {P90_TARGET:.0%}, and false fits", header=(*_HEADER, "notes"), rows=rows)


def _asides() -> Table:
    rows = tuple((*_line(result), result.run.not_met_because) for result in results() if result.kind == "set aside")
    return Table(title="Runs whose figure is not what the estimate is about, listed and not counted", header=(*_HEADER, "reason"),
                 rows=rows)


def _excluded() -> Table:
    return Table(title="Published figures that are not predicted", header=("source", "what", " n", "why"),
                 rows=tuple((row["source"], row["rows"], row["count"], row["reason"]) for row in excluded()))


def _details() -> Table:
    return Table(title="Every run", header=(*_HEADER, "kind"), rows=tuple((*_line(result), result.kind) for result in results()))


def _notes() -> tuple[str, ...]:
    return (
        "Exact: peak allocated, or reserved or nvidia-smi of a GPU that was at least "
        f"{FULL:.0%} full. \"4 x weights\" is weights, gradients and Adam's two states in the weights' own type, over the "
        "ranks where parameters are sharded.",)


def _data(exact: dict[str, list[Result]]) -> dict[str, object]:
    return {
        "subsets": {name: {"n": len(found), "mean": mean(map(abs, _errors(found))), "median": median(_errors(found)),
                           "p90": percentile([abs(error) for error in _errors(found)], 0.9),
                           "worst": max(_errors(found), key=abs)} for name, found in exact.items()},
        "false_fits": [result.run.row for result in results() if result.false_fit],
        "false_misses": [result.run.row for result in results() if result.false_miss],
        "runs": [{"row": result.run.row, "run": result.run.label, "subset": result.run.subset, "kind": result.kind,
                  "quantity": result.run.quantity, "measured_bytes": result.run.measured_bytes,
                  "predicted_bytes": result.predicted_bytes} for result in results()]}
