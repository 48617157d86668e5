"""The distribution of the error of a run from a source that was not seen.

A source shares its host, its versions and its habits, so its rows err alike, and errors are counted by source. The
error of a run is m + b + w: b is common to the source, w is the run's own.

    m   = mean of the k sources' means
    W   = mean of the sources' variances, the variance of w
    V   = variance of the sources' means
    B   = max(0, V - W x mean(1 / runs of a source)), the variance of b
    s^2 = B + W + V / k, the last for the uncertainty of m

The error of one run of a new source is distributed as Student's t with k - 1 degrees of freedom about m, in units of s
(random effects, each source once; Searle, Casella, McCulloch, Variance Components, 1992, chapter 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, variance
from typing import NamedTuple

from ds_advise.estimators.memory.fit_probability import SourceSpread

SHARE = 0.8
"""Share of the runs of unseen sources that an interval is to hold."""


class Error(NamedTuple):
    """One run's, in whatever unit."""

    source: str
    value: float


def origin_of(source: str) -> str:
    """Who measured it: the repository where the source names one, else the source."""
    repository = source.split()[0]
    return repository.partition("@")[0] if "/" in repository else source


class Coverage(NamedTuple):
    """Share of left-out runs in the interval of the others: every row once, and every source once."""

    by_row: float
    by_source: float


def by_source(found: Sequence[Error]) -> dict[str, list[float]]:
    sources: dict[str, list[float]] = {}
    for error in found:
        sources.setdefault(error.source, []).append(error.value)
    return sources


def percentile(found: Sequence[Error], share: float) -> float:
    """The smallest value that at least this share of the weight does not exceed. Each source weighs 1, a row 1 / rows
    of its source."""
    sources = by_source(found)
    total = 0.0
    for source, value in sorted(found, key=lambda error: error.value):
        total += 1 / len(sources[source]) / len(sources)
        if total >= share - 1e-12:
            return value
    raise ValueError("no errors")


def mean_of_sources(found: Sequence[Error]) -> float:
    """Mean of the sources' means."""
    return mean(mean(values) for values in by_source(found).values())


def spread_of(found: Sequence[Error]) -> SourceSpread:
    """Of a run from a source not among these. Raises ValueError for fewer than two sources."""
    sources = by_source(found).values()
    if len(sources) < 2:
        raise ValueError("errors between sources need two sources")
    means = [mean(values) for values in sources]
    within = mean([variance(values) for values in sources if len(values) > 1] or [0.0])
    of_means = variance(means)
    between = max(0.0, of_means - within * mean(1 / len(values) for values in sources))
    scale = (between + within + of_means / len(means)) ** 0.5
    return SourceSpread(mean(means), scale, len(means))


def interval(spread: SourceSpread) -> tuple[float, float]:
    """The central one of `SHARE`."""
    return quantile(spread, (1 - SHARE) / 2), quantile(spread, (1 + SHARE) / 2)


def quantile(spread: SourceSpread, share: float) -> float:
    """The value below which this share lies, by bisection to 2^-60 of the range."""
    low, high = spread.location - 1e3 * spread.scale, spread.location + 1e3 * spread.scale
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spread.share_below(middle) < share else (low, middle)
    return (low + high) / 2


def left_out(found: Sequence[Error]) -> Iterator[tuple[str, SourceSpread]]:
    """Every source with the spread of all others."""
    for source in by_source(found):
        yield source, spread_of([error for error in found if error.source != source])


def held(found: Sequence[Error]) -> list[bool]:
    """Whether each error lies in the interval of the other sources."""
    intervals = {source: interval(spread) for source, spread in left_out(found)}
    return [intervals[error.source][0] <= error.value <= intervals[error.source][1] for error in found]


def coverage(found: Sequence[Error]) -> Coverage:
    inside = [Error(error.source, float(is_held)) for error, is_held in zip(found, held(found), strict=True)]
    return Coverage(mean(error.value for error in inside), mean_of_sources(inside))
