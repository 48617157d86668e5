"""Memory: the printed quantity of every run against the prediction.

A run counts as *exact* when its figure is what the estimate is about, the peak of allocated memory. Reserved memory and
nvidia-smi hold blocks besides that PyTorch keeps cached and would return when asked; such runs are *cached*, and
reported apart. Runs that cannot be met for a reason that was found are *set aside*: listed with it, and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean, median
from typing import get_args

from ds_advise.advisor.search.candidate import FIT_THRESHOLD, Verdict, fit_verdict
from ds_advise.estimators.memory.device_overhead import EARLIER_BATCHES, FIXED_SEGMENTS_SHARE

from ..numbers import printed
from . import memory_spread, other_objectives, peer_runs, peers, questions, software
from .between_sources import Error, by_source, mean_of_sources
from .predicted_memory import Kind, Result, error_of, predict, results
from .report import Section, Table, percent
from .rows import Quantity, excluded

MEAN_TARGET, P90_TARGET = 0.05, 0.12
_GIB = 2**30


@cache
def fit_probabilities() -> dict[int, float]:
    """The probability that each run fits, by row. The spread is that of the runs of other sources."""
    found = results()
    return {result.run.row: each for result, each in zip(found, memory_spread.probabilities(found), strict=True)}


def false_fits() -> list[Result]:
    """Runs that are predicted to fit, and ran out of memory."""
    return [each for each in results() if fit_probabilities()[each.run.row] >= FIT_THRESHOLD and not each.run.fitted]


def false_misses() -> list[Result]:
    """Runs that are predicted not to fit, and ran."""
    return [each for each in results() if fit_probabilities()[each.run.row] < 1 - FIT_THRESHOLD and each.run.fitted]


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


def asked() -> list[dict[str, str]]:
    """The rows of `questions.FILE`."""
    return [
        {
            "half": "memory",
            "source": result.run.source,
            "row": str(result.run.row),
            "quantity": f"{result.run.quantity}_bytes_per_gpu"
            + " + cached_bytes_per_gpu" * (result.run.quantity != "allocated"),
            "measured": str(result.run.measured_bytes or ("ran" if result.run.fitted else "out of memory")),
            "predicted": str(result.predicted_bytes),
            "question": questions.command_of(result.run.asked),
        }
        for result in results()
    ]


def figures() -> dict[str, dict[str, str]]:
    """The groups of docs/numbers.json on published memory: of all runs, and of each group of software."""
    known = [result for result in results() if result.error is not None]
    fused = [result for result in known if result.run.workload.kernels == "unsloth"]
    engine = [result.run.quantity for result in results() if result.run.plan.sharding == "zero"]
    found = {
        "deepspeed_memory": {"runs": str(len(engine)), "allocated": str(engine.count("allocated"))},
        "saved_modules_runs": _errors_in_words([each for each in known if each.run.workload.modules_to_save], 0),
        "unsloth": _errors_in_words(fused, 1) | {"without": printed(mean(map(_error_with_torch_kernels, fused)), 1)},
    }
    for name, belongs in software.SELECTIONS.items():
        chosen = [result for result in results() if belongs(result.run.source)]
        exact = [result for result in chosen if result.kind == "exact" and result.error is not None]
        cached = [result for result in chosen if result.kind == "cached" and result.error is not None]
        found |= {
            f"allocated{name}": _errors_in_words(exact, 1) | _by_engine(exact),
            f"device{name}": _errors_in_words([each for each in cached if each.run.quantity == "device"], 0),
            f"reserved{name}": _errors_in_words([each for each in cached if each.run.quantity == "reserved"], 0),
            f"fits{name}": _fits(chosen),
        }
    return found


def _errors_in_words(found: Sequence[Result], digits: int) -> dict[str, str]:
    """Number, mean and worst error, and the mean of the sources' means; the number alone where there is no run."""
    if not found:
        return {"runs": "0"}
    sizes = _sizes(found)
    return {
        "runs": str(len(sizes)),
        "mean": printed(mean(size.value for size in sizes), digits),
        "worst": printed(max(size.value for size in sizes), digits),
        "sources": str(len(by_source(sizes))),
        "mean_by_source": printed(mean_of_sources(sizes), 1),
    }


def _error_with_torch_kernels(result: Result) -> float:
    run = result.run
    predicted = predict(replace(run, workload=replace(run.workload, kernels="torch")))
    return abs(error_of(predicted.allocated_bytes_per_gpu, run) or 0)


def _by_engine(found: Sequence[Result]) -> dict[str, str]:
    engine = sum(result.run.plan.sharding == "zero" for result in found)
    return {"deepspeed": str(engine), "torch": str(len(found) - engine)}


def _fits(found: Sequence[Result]) -> dict[str, str]:
    """How many runs ended, and how many ran out of memory, with the number of each verdict on them. "complete": those
    that ran out of memory and are not set aside."""
    words: dict[str, str] = {}
    for outcome, fitted in (("ended", True), ("died", False)):
        given = [fit_verdict(fit_probabilities()[result.run.row]) for result in found if result.run.fitted == fitted]
        words[outcome] = str(len(given))
        for verdict in get_args(Verdict):
            words[f"{outcome}_{verdict.replace(' ', '_')}"] = str(given.count(verdict))
    fits = {each.run.row: fit_probabilities()[each.run.row] >= FIT_THRESHOLD for each in found}
    fit, lost = (
        [Error(each.run.origin, float(fits[each.run.row])) for each in found if each.run.fitted == fitted]
        for fitted in (True, False)
    )
    complete = [each.run.row for each in found if not each.run.fitted and not each.run.not_met_because]
    words |= {"complete": str(len(complete)), "complete_fits": str(sum(fits[row] for row in complete))}
    if lost:
        words |= {"died_sources": str(len(by_source(lost))), "died_share_by_source": printed(mean_of_sources(lost))}
    return words | {
        "share": printed(mean(error.value for error in fit)),
        "sources": str(len(by_source(fit))),
        "share_by_source": printed(mean_of_sources(fit)),
    }


def section() -> Section:
    exact = subsets()
    return Section(
        title="Memory",
        summary=(
            _summary(exact),
            memory_spread.table(results()),
            memory_spread.verdict_table(results()),
            _fit_table(),
            other_objectives.table(fit_probabilities()),
            peers.peaks(),
            peers.fits(fit_probabilities()),
            peer_runs.table(),
            _cached("device", "Device memory as nvidia-smi shows it"),
            _cached("reserved", "Reserved memory"),
            _sources(),
            _misses(),
            _asides(),
            _excluded(),
        ),
        notes=_notes(),
    )


def _errors(found: Iterable[Result]) -> list[float]:
    return [result.error for result in found if result.error is not None]


def _sizes(found: Iterable[Result]) -> list[Error]:
    return [Error(result.run.origin, abs(result.error)) for result in found if result.error is not None]


def _summary(exact: dict[str, list[Result]]) -> Table:
    def row(name: str, found: list[Result]) -> tuple[str, ...]:
        errors = _errors(found)
        sizes = [abs(error) for error in errors]
        met = mean(sizes) <= MEAN_TARGET and percentile(sizes, 0.9) <= P90_TARGET
        return (
            name,
            str(len(found)),
            str(len({result.run.origin for result in found})),
            f"{mean(sizes):.1%}",
            f"{mean_of_sources(_sizes(found)):.1%}",
            percent(median(errors)),
            f"{percentile(sizes, 0.9):.1%}",
            percent(max(errors, key=abs)),
            "yes" if met else "**no**",
        )

    return Table(
        title=f"Error of the peak of allocated memory (targets: mean {MEAN_TARGET:.0%}, 90th percentile "
        f"{P90_TARGET:.0%})",
        header=(
            "subset",
            " n",
            " sources",
            " mean",
            " mean, each source once",
            " median, signed",
            " p90",
            " worst, signed",
            "met",
        ),
        rows=_with_all(exact, row),
    )


def _with_all(
    found: dict[str, list[Result]], row: Callable[[str, list[Result]], tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """One line per subset, and one over all of them."""
    return (
        *(row(name, members) for name, members in found.items()),
        row("**all**", [result for members in found.values() for result in members]),
    )


def _fit_table() -> Table:
    def row(name: str, found: list[Result], fits: Callable[[Result], bool]) -> tuple[str, ...]:
        ran, failed = (
            [result for result in found if result.run.fitted],
            [result for result in found if not result.run.fitted],
        )
        return (
            name,
            str(len(ran)),
            str(sum(not fits(result) for result in ran)),
            str(len(failed)),
            str(sum(fits(result) for result in failed)),
        )

    found, probability = list(results()), fit_probabilities()
    return Table(
        title="Does it fit?",
        header=(
            "estimator",
            " ran",
            " of these predicted not to fit",
            " ran out of memory",
            " of these predicted to fit (false fits)",
        ),
        rows=(
            row("ds-advise: it fits", found, lambda result: probability[result.run.row] >= FIT_THRESHOLD),
            row(
                "ds-advise: it is not excluded", found, lambda result: probability[result.run.row] >= 1 - FIT_THRESHOLD
            ),
        ),
    )


def _cached(quantity: Quantity, what: str) -> Table:
    def row(name: str, found: list[Result]) -> tuple[str, ...]:
        errors = _errors(found)
        return (
            name,
            str(len(found)),
            str(len({result.run.origin for result in found})),
            f"{mean(map(abs, errors)):.1%}",
            f"{mean_of_sources(_sizes(found)):.1%}",
            percent(median(errors)),
            percent(max(errors, key=abs)),
        )

    members = {
        name: [result for result in found if result.run.quantity == quantity]
        for name, found in subsets("cached").items()
    }
    return Table(
        title=f"{what}, with the allocator's cache",
        header=("subset", " n", " sources", " mean", " mean, each source once", " median, signed", " worst, signed"),
        rows=_with_all({name: found for name, found in members.items() if found}, row),
    )


def _sources() -> Table:
    by_source: dict[str, list[Result]] = {}
    for found in subsets().values():
        for result in found:
            by_source.setdefault(result.run.source, []).append(result)
    rows = tuple(
        (name, str(len(found)), f"{mean(map(abs, _errors(found))):.1%}", percent(max(_errors(found), key=abs)))
        for name, found in by_source.items()
    )
    return Table(title="By source", header=("source", " n", " mean", " worst, signed"), rows=rows)


def _line(result: Result) -> tuple[str, ...]:
    run = result.run
    unmeasured = "ran" if run.fitted else "out of memory"
    measured = unmeasured if run.measured_bytes is None else f"{run.measured_bytes / _GIB:.2f}"
    error = "" if result.error is None else percent(result.error)
    return (str(run.row), run.label, run.subset, run.quantity, measured, f"{result.predicted_bytes / _GIB:.2f}", error)


_HEADER = ("row", "run", "subset", "quantity", " measured GiB", " predicted GiB", " error")


def _misses() -> Table:
    rows = tuple(
        (*_line(result), result.run.notes)
        for result in results()
        if result in false_fits() or (result.kind == "exact" and abs(result.error or 0) > P90_TARGET)
    )
    return Table(
        title=f"Exact runs off by more than {P90_TARGET:.0%}, and runs out of memory that are predicted to fit",
        header=(*_HEADER, "notes"),
        rows=rows,
    )


def _asides() -> Table:
    rows = tuple((*_line(result), result.run.not_met_because) for result in results() if result.kind == "set aside")
    return Table(
        title="Runs set aside for a reason that was found: listed, not counted", header=(*_HEADER, "reason"), rows=rows
    )


def _excluded() -> Table:
    return Table(
        title="Published figures that are not predicted",
        header=("source", "what", " n", "why"),
        rows=tuple((row["source"], row["rows"], row["count"], row["reason"]) for row in excluded()),
    )


def _notes() -> tuple[str, ...]:
    return (
        "Every run is a question that the command line and `ds_advise.estimate` answer with these figures to the "
        "byte: `benchmarks/data/questions.csv` has the commands, and `benchmarks.accuracy.questions` holds each "
        "against what the row says. Plain PyTorch and FSDP are `--strategy torch` and `--strategy fsdp`; versions and "
        "settings of the software that differ from today's are stated by `--software`.",
        "The first table counts peaks of allocated memory.",
        peers.NOT_ASKED,
        "Each source once: a run's weight is 1 / the runs of its source in the subset, and a source is a repository or "
        "a page.",
        "Where a source leaves a setting open (a loop that keeps the model's output, a key-value cache that stays on, "
        "DeepSpeed-Chat's buckets), it was resolved by what the figures must contain. The `notes` of such rows say so; "
        "no byte of a prediction is fitted to them.",
        "**Without expandable segments**, as all these runs, the allocator wastes a share of what comes and goes: what "
        f"the runs that ended, and those that did not, allow has the median {FIXED_SEGMENTS_SHARE:.0%}, which is what "
        "the product says that a plan needs, and which with its spread decides the verdicts. What it caches besides, "
        "and returns before a request fails, is not fitted: every component keeps the segments of its own largest "
        "moment, as far as the GPU has room. Under ZeRO-3 the embedding and the head are cached apart from the "
        "layers' parameters, into which the blocks of earlier ones are cut, and a sub-group that is larger than those "
        "before it finds no block for its step. Where batches vary in length "
        f"(`varying-lengths`, by what the source says), the loss's tensors are there {EARLIER_BATCHES:g} times more, "
        "for the batches that were the longest before, less what other free blocks serve: Alpaca's lengths say so "
        "(`benchmarks/dry_run/varying_lengths.py`). Plans set `expandable_segments:True`, where a CUDA stream keeps "
        "its pages in that way; that is held against the dry run's replay of the allocator (docs/closed-form.md).",
    )
