"""Memory: the printed quantity of every run against the estimators', DeepSpeed's own estimators and the rule of four.

A run counts as *exact* when its figure is what the estimate is about, the peak of allocated memory. Reserved memory and
nvidia-smi hold blocks besides that PyTorch keeps cached and would return when asked; such runs are *cached*, and
reported apart. Runs that cannot be met for a reason that was found are *set aside*: listed with it, and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import mean, median
from typing import get_args

from ds_advise.advisor.search.candidate import FIT_THRESHOLD, Verdict, fit_verdict
from ds_advise.estimators.memory.device_overhead import EARLIER_BATCHES, FIXED_SEGMENTS_SHARE

from . import memory_spread, other_objectives, peer_runs, peers, questions
from .between_sources import Error, by_source, mean_of_sources
from .predicted_memory import Kind, Result, error_of, results
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


def table_rows() -> dict[str, str]:
    """The rows of docs/how-true.md on published memory, by how they start."""
    exact = [result for found in subsets().values() for result in found]
    sizes = [abs(error) for error in _errors(exact)]
    theirs = mean(abs(error_of(result.deepspeed_bytes, result.run) or 0) for result in exact)
    engine = sum(result.run.plan.sharding == "zero" for result in exact)
    ran = [result for result in results() if result.run.fitted]
    died = [result for result in results() if not result.run.fitted]
    their_missed = sum(result.deepspeed_bytes > _offered(result) for result in ran)
    their_false = sum(result.deepspeed_bytes <= _offered(result) for result in died)
    page = "[published runs](accuracy.md)"
    return {
        "| allocated GPU memory |": f"| allocated GPU memory | {len(exact)} published runs whose peak is known: "
        f"{engine} of DeepSpeed, {len(exact) - engine} of plain PyTorch (one GPU, FSDP); full, LoRA, QLoRA, fused "
        f"loss | mean error {100 * mean(sizes):.1f} %, worst {100 * max(sizes):.1f} %; {_once(exact)} "
        "(DeepSpeed's estimators: mean "
        f"error {100 * theirs:.0f} %) | {page}; `benchmarks/data/questions.csv` has each run's command |",
        "| does it fit |": f"| does it fit | {len(ran)} of these and other runs that ended, {len(died)} that ran out "
        f"of memory | of those that died {_verdicts(died)}; of those that ended {_verdicts(ran)}; "
        f"{_fits_once(ran)} (DeepSpeed's "
        f"estimators: {their_false} that died predicted to fit, {their_missed} that ended predicted not to) | {page} |",
        "| device memory |": f"| device memory | {_cached_errors('device')} that print `nvidia-smi`; "
        f"{_cached_errors('reserved')} that print PyTorch's reserved memory | the figure is what a run needs and the "
        f"cache that PyTorch keeps without `expandable_segments` | {page}, `benchmarks/seed_ranking.py` |",
    }


def headlines() -> dict[str, str]:
    """README's lines on published memory, by how they start."""
    exact = [result for found in subsets().values() for result in found]
    sizes = [abs(error) for error in _errors(exact)]
    ran = [result for result in results() if result.run.fitted]
    died = [result for result in results() if not result.run.fitted]
    verdicts = fit_probabilities()
    false_fits = sum(fit_verdict(verdicts[result.run.row]) == "fits" for result in died)
    refused = sum(fit_verdict(verdicts[result.run.row]) == "does not fit" for result in ran)
    return {
        "- Allocated GPU memory:": f"- Allocated GPU memory: mean error {100 * mean(sizes):.1f} %, worst "
        f"{100 * max(sizes):.1f} %, over {len(sizes)} published runs whose peak is known ({_once(exact)}).",
        "- Device memory:": f"- Device memory: {_cached_errors('device')} that print `nvidia-smi`, its cache included; "
        f"{_cached_errors('reserved')} that print PyTorch's reserved memory.",
        "- Does it fit:": f"- Does it fit: of {len(died)} published runs that ran out of memory {false_fits} are "
        f"predicted to fit; of {len(ran)} that ended {refused} are predicted not to, and {_fits_once(ran)}.",
    }


def _fits_once(ran: list[Result]) -> str:
    """Share of the ended runs that are predicted to fit, each row once and each source once."""
    found = [
        Error(result.run.origin, float(fit_verdict(fit_probabilities()[result.run.row]) == "fits")) for result in ran
    ]
    by_row = mean(error.value for error in found)
    return (
        f"{100 * by_row:.0f} % are predicted to fit, each of {len(by_source(found))} sources once: "
        f"{100 * mean_of_sources(found):.0f} %"
    )


def _verdicts(found: list[Result]) -> str:
    """How many of the runs were given each verdict: `0 "fits", 4 "likely fits", ...`."""
    given = [fit_verdict(fit_probabilities()[result.run.row]) for result in found]
    return ", ".join(f'{given.count(verdict)} "{verdict}"' for verdict in get_args(Verdict))


def _cached_errors(quantity: Quantity) -> str:
    """`54 published runs (mean error 9 %, worst 35 %)` of those that print a figure which PyTorch's cache is in."""
    found = [result for members in subsets("cached").values() for result in members]
    found = [result for result in found if result.run.quantity == quantity]
    sizes = [abs(error) for error in _errors(found)]
    return (
        f"{len(sizes)} published runs (mean error {100 * mean(sizes):.0f} %, worst {100 * max(sizes):.0f} %; "
        f"{_once(found)})"
    )


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
            other_objectives.false_fits(fit_probabilities()),
            _rivals(exact),
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
        details=_details(),
        notes=_notes(),
        data=_data(exact),
    )


def _errors(found: Iterable[Result]) -> list[float]:
    return [result.error for result in found if result.error is not None]


def _sizes(found: Iterable[Result]) -> list[Error]:
    return [Error(result.run.origin, abs(result.error)) for result in found if result.error is not None]


def _once(found: Iterable[Result]) -> str:
    """`each of 9 sources once: 2.9 %`, of a mean error."""
    sizes = _sizes(found)
    return f"each of {len(by_source(sizes))} sources once: {100 * mean_of_sources(sizes):.1f} %"


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
            row("DeepSpeed's estimators", found, lambda result: result.deepspeed_bytes <= _offered(result)),
            row("4 x weights", found, lambda result: result.rule_bytes <= _offered(result)),
        ),
    )


def _offered(result: Result) -> int:
    return result.run.cluster.gpu.memory_bytes


def _rivals(exact: dict[str, list[Result]]) -> Table:
    def row(name: str, found: list[Result]) -> tuple[str, ...]:
        cells = [name, str(len(found)), f"{mean(abs(error) for error in _errors(found)):.1%}"]
        for guess in ([result.deepspeed_bytes for result in found], [result.rule_bytes for result in found]):
            errors = [error_of(size, result.run) or 0.0 for size, result in zip(guess, found, strict=True)]
            low = sum(error < -0.1 for error in errors) / len(errors)
            cells += [f"{mean(map(abs, errors)):.0%}", f"{low:.0%}"]
        return tuple(cells)

    return Table(
        title="The same runs, by DeepSpeed's estimators and by the rule of four times the weights",
        header=(
            "subset",
            " n",
            " ours, mean",
            " DeepSpeed's, mean",
            " more than 10 % low",
            " 4 x weights, mean",
            " more than 10 % low",
        ),
        rows=_with_all(exact, row),
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
        if result.kind == "exact" and (result in false_fits() or abs(result.error or 0) > P90_TARGET)
    )
    return Table(
        title=f"Exact runs that are off by more than {P90_TARGET:.0%}, and false fits",
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


def _details() -> Table:
    return Table(
        title="Every run", header=(*_HEADER, "kind"), rows=tuple((*_line(result), result.kind) for result in results())
    )


def _notes() -> tuple[str, ...]:
    return (
        "Every run is a question that the command line and `ds_advise.estimate` answer with these figures to the "
        "byte: `benchmarks/data/questions.csv` has the commands, and `benchmarks.accuracy.questions` holds each "
        "against what the row says. Plain PyTorch and FSDP are `--strategy torch` and `--strategy fsdp`; versions and "
        "settings of the software that differ from today's are stated by `--software`.",
        'The first table counts peaks of allocated memory. "4 x weights" is weights, gradients and Adam\'s two states '
        "in the "
        "weights' own type, over the ranks where parameters are sharded. DeepSpeed's estimators leave out activations "
        "and "
        "logits and count every weight as trained: too high for adapters, too low for full training.",
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
        "for the batches that were the longest before, less what other free blocks serve: Alpaca's lengths say so, "
        "and steps of random lengths replayed through the allocator's rules "
        "(`benchmarks/dry_run/varying_lengths.py`). Plans set `expandable_segments:True`, where a CUDA stream keeps "
        "its pages in that way; that is held against the dry run's replay of the allocator (docs/closed-form.md).",
    )


def _data(exact: dict[str, list[Result]]) -> dict[str, object]:
    return {
        "subsets": {
            name: {
                "n": len(found),
                "mean": mean(map(abs, _errors(found))),
                "median": median(_errors(found)),
                "p90": percentile([abs(error) for error in _errors(found)], 0.9),
                "worst": max(_errors(found), key=abs),
            }
            for name, found in exact.items()
        },
        "false_fits": [result.run.row for result in false_fits()],
        "false_misses": [result.run.row for result in false_misses()],
        "runs": [
            {
                "row": result.run.row,
                "run": result.run.label,
                "subset": result.run.subset,
                "kind": result.kind,
                "quantity": result.run.quantity,
                "measured_bytes": result.run.measured_bytes,
                "predicted_bytes": result.predicted_bytes,
            }
            for result in results()
        ],
    }
