"""How probable it is that a plan fits: the spread of published runs, and whether the verdicts keep what they say.

The spread is of X, measured over predicted bytes that come and go within a step
(`estimators/memory/fit_probability.py`), by quantiles: of n runs the i-th smallest has the share i / (n + 1) below it.
The verdicts are those on all published runs, the ones that ran out of memory too, each by the spread of the other
sources.

None of these runs used expandable segments. How much fixed segments waste is not printed by those that matter; that a
run ended, or did not, bounds it: `wasted_shares`. That distribution is taken from all runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from statistics import mean

from ds_advise.advisor.search.candidate import Verdict, verdict_of
from ds_advise.estimators.memory.fit_probability import DATA, STATES, WASTE, Kind, Quantiles, fit_probability, kind_of

from .predicted_memory import Result
from .report import Table

SHARES = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
"""The inner quantiles; the smallest and the largest run stand beside them."""


def ratios(found: Iterable[Result]) -> dict[Kind, list[float]]:
    """X of the exact runs of transformers' model code, in rising order."""
    kinds: dict[Kind, list[float]] = {}
    for result in found:
        run = result.run
        if result.kind == "exact" and run.measured_bytes and not run.own_model_code:
            states, transient = _states_and_transient(result)
            kinds.setdefault(kind_of(run.workload), []).append((run.measured_bytes - states) / transient)
    return {kind: sorted(values) for kind, values in kinds.items()}


def quantiles(values: Sequence[float]) -> Quantiles:
    """Of values in rising order: the smallest, those of `SHARES` that lie inside, and the largest."""
    count = len(values)
    inner = [share for share in SHARES if 1 < share * (count + 1) < count]
    shares = (1 / (count + 1), *inner, count / (count + 1))
    return Quantiles(tuple(_at(values, share * (count + 1) - 1) for share in shares), shares)


def _at(values: Sequence[float], position: float) -> float:
    """Between two values, in proportion."""
    below = min(int(position), len(values) - 2)
    return values[below] + (position - below) * (values[below + 1] - values[below])


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
    """What was free beside the live tensors, over what comes and goes."""
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
    """The probability that each run fits: X is that of the runs of other sources."""

    @cache
    def spread(without: str) -> dict[Kind, Quantiles]:
        others = ratios(result for result in found if result.run.source != without)
        return {kind: quantiles(values) for kind, values in others.items()}

    def probability(result: Result) -> float:
        run = result.run
        return fit_probability(result.memory, run.cluster, run.workload, spread(run.source)[kind_of(run.workload)])

    return [probability(result) for result in found]


def csv_text(found: Sequence[Result]) -> str:
    """`DATA` as it ought to be."""
    lines = ["kind,share,value"]
    for kind, values in sorted(ratios(found).items()):
        lines += [f"{kind},{share:.4f},{value:.4f}" for value, share in zip(*quantiles(values), strict=True)]
    lines += [f"{WASTE},{probability:.4f},{share:.4f}" for share, probability in wasted_shares(found)]
    return "\n".join(lines) + "\n"


def write(found: Sequence[Result]) -> None:
    DATA.write_text(csv_text(found), encoding="utf-8")


def verdict_table(found: Sequence[Result]) -> Table:
    """Of the runs with each verdict, how many ended, beside how many ought to have."""
    by_verdict: dict[Verdict, list[tuple[float, bool]]] = {
        verdict: [] for verdict in ("fits", "likely fits", "unlikely", "does not fit")
    }
    for result, probability in zip(found, probabilities(found), strict=True):
        by_verdict[verdict_of(probability)].append((probability, result.run.fitted))
    return Table(
        title="What became of the runs with each verdict (by the spread of the other sources' runs)",
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
