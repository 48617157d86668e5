"""How probable it is that a plan fits: the spread of published runs, and whether the verdicts keep what they say.

The spread is of E, measured over predicted allocated bytes less one (`estimators/memory/fit_probability.py`), of a run
from a source not seen (`between_sources`). The verdicts are those on all published runs, also the ones that ran out of
memory, each by the spread of the other sources.

E is a share of all allocated bytes. As a share of what comes and goes within a step, the errors of the sources are less
alike: `likelihood` of the left-out sources is lower.

None of these runs used expandable segments. How much fixed segments waste is not printed by those that matter; that a
run ended, or did not, bounds it: `wasted_shares`. That distribution is taken from all runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import lgamma, log, pi
from statistics import mean

from ds_advise.advisor.search.candidate import Verdict, fit_verdict
from ds_advise.estimators.memory.fit_probability import DATA, STATES, WASTE, SourceSpread, fit_probability

from .between_sources import SHARE, Error, by_source, coverage, interval, left_out, spread_of
from .predicted_memory import Result
from .report import Table


def errors(found: Iterable[Result]) -> list[Error]:
    """E of the exact runs."""
    return [
        Error(result.run.origin, result.run.measured_bytes / result.memory.allocated_bytes_per_gpu - 1)
        for result in found
        if result.kind == "exact" and result.run.measured_bytes
    ]


def likelihood(found: Sequence[Result], states_share: float) -> float:
    """Log density of the left-out sources' measured bytes over predicted ones, each source once, where the unit of the
    error is what comes and goes and states_share of what stays."""

    def unit(result: Result) -> float:
        """Over allocated bytes."""
        states, transient = _states_and_transient(result)
        return (transient + states_share * states) / result.memory.allocated_bytes_per_gpu

    exact = [result for result in found if result.kind == "exact" and result.run.measured_bytes]
    units = [unit(result) for result in exact]
    scaled = [Error(error.source, error.value / size) for error, size in zip(errors(exact), units, strict=True)]
    densities: dict[str, list[float]] = {source: [] for source in by_source(scaled)}
    spreads = dict(left_out(scaled))
    for (source, value), size in zip(scaled, units, strict=True):
        densities[source].append(_log_density(spreads[source], value) - log(size))
    return sum(mean(each) for each in densities.values())


def _log_density(spread: SourceSpread, value: float) -> float:
    degrees, distance = spread.sources - 1, (value - spread.location) / spread.scale
    constant = lgamma((degrees + 1) / 2) - lgamma(degrees / 2) - log(degrees * pi) / 2 - log(spread.scale)
    return constant - (degrees + 1) / 2 * log(1 + distance**2 / degrees)


def wasted_shares(found: Iterable[Result]) -> list[tuple[float, float]]:
    """Shares of what comes and goes that fixed segments waste, each with its probability, as far as runs bound them.

    A run that ended wasted at most what was free, one that ran out of memory more. The isotonic regression of the ended
    ones on what was free is the likeliest distribution function (pooled adjacent violators).
    """
    bounds = sorted((_free_share(result), result.run.fitted) for result in found if not result.run.not_met_because)
    blocks: list[list[float]] = []  # the smallest free share, runs, of them ended
    for share, ended in bounds:
        blocks.append([share, 1, ended])
        while len(blocks) > 1 and blocks[-2][2] / blocks[-2][1] >= blocks[-1][2] / blocks[-1][1]:
            _, runs, ended_runs = blocks.pop()
            blocks[-1][1] += runs
            blocks[-1][2] += ended_runs
    found_shares, below = [], 0.0
    for share, runs, ended_runs in blocks:
        found_shares.append((share, ended_runs / runs - below))
        below = ended_runs / runs
    return [(share, mass) for share, mass in found_shares if mass > 0]


def _free_share(result: Result) -> float:
    """Free bytes in addition to the live tensors, divided by the transient bytes."""
    run, memory = result.run, result.memory
    allocated = memory.allocated_bytes_per_gpu
    if result.kind == "exact" and run.measured_bytes is not None:
        allocated = run.measured_bytes
    states, _ = _states_and_transient(result)
    outside = sum(term.size_bytes for term in memory.device_terms)
    return (run.cluster.gpu.memory_bytes - outside - allocated) / max(1, allocated - states)


def _states_and_transient(result: Result) -> tuple[int, int]:
    states = sum(term.size_bytes for term in result.memory.peak.terms if term.name in STATES)
    return states, max(1, result.memory.allocated_bytes_per_gpu - states)


def probabilities(found: Sequence[Result]) -> list[float]:
    """The probability that each run fits: E is that of the runs of other sources."""

    @cache
    def spread(without: str) -> SourceSpread:
        return spread_of([error for error in errors(found) if error.source != without])

    return [fit_probability(each.memory, each.run.cluster, spread(each.run.origin)) for each in found]


def csv_text(found: Sequence[Result]) -> str:
    """The text of `DATA`, made again."""
    spread = spread_of(errors(found))
    lines = [f"location,{spread.location:.4f},1", f"scale,{spread.scale:.4f},1", f"sources,{spread.sources},1"]
    lines += [f"{WASTE},{share:.4f},{probability:.4f}" for share, probability in wasted_shares(found)]
    return "\n".join(["name,value,share", *lines]) + "\n"


def write(found: Sequence[Result]) -> None:
    DATA.write_text(csv_text(found), encoding="utf-8")


def table(found: Sequence[Result]) -> Table:
    """How well the interval of measured over predicted bytes holds."""
    spread, held = spread_of(errors(found)), coverage(errors(found))
    low, high = (f"{1 + bound:.2f}" for bound in interval(spread))
    return Table(
        title=f"The interval that is to hold {SHARE:.0%} of the true peaks, as a factor of the predicted one",
        header=(
            " exact runs",
            " low",
            " high",
            " sources",
            " left-out runs in the interval of the others",
            " the same, each source once",
        ),
        rows=((str(len(errors(found))), low, high, str(spread.sources), *(f"{share:.0%}" for share in held)),),
    )


def verdict_table(found: Sequence[Result]) -> Table:
    """For each verdict, how many runs ended, and how many are expected to."""
    by_verdict: dict[Verdict, list[tuple[float, bool]]] = {
        verdict: [] for verdict in ("fits", "likely fits", "unlikely", "does not fit")
    }
    for result, probability in zip(found, probabilities(found), strict=True):
        by_verdict[fit_verdict(probability)].append((probability, result.run.fitted))
    return Table(
        title="Outcome of the runs by verdict (spread of the other sources' runs)",
        header=("verdict", " n", " ran to the end", " share", " predicted share"),
        rows=tuple(
            (
                verdict,
                str(len(runs)),
                str(sum(ended for _, ended in runs)),
                f"{mean(ended for _, ended in runs):.0%}" if runs else "",
                f"{mean(probability for probability, _ in runs):.0%}" if runs else "",
            )
            for verdict, runs in by_verdict.items()
        ),
    )
