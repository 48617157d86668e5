"""The search: every rung, with and without checkpointing, at every batch shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...estimators.estimate import TimeEstimate
from ...estimators.estimate_plan import estimate_plan
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import RUNGS, Plan, Rung
from ...estimators.workload import Workload
from ..gc_pause import collector_paused
from ..question.question import Question
from .batch_sweep import Series
from .candidate import LEAST, Candidate, LadderStep, fit_of
from .choice import COMFORTABLE, LEAST_GAIN, SAME_SPEED, best_of_rung, fastest_that_fits, wants_more, wants_more_than
from .search_space import candidates_of, ways_of, worth_going_on


@collector_paused()
def predict_all(question: Question) -> tuple[tuple[LadderStep, ...], tuple[Candidate, ...]]:
    """Predict every candidate; return the ladder (each rung's best) and all candidates."""
    least = LEAST[question.risk]
    ladder, everything = [], []
    for rung in RUNGS:
        candidates, obstacle = candidates_of(rung, question)
        everything += candidates
        best = best_of_rung(candidates, least)
        if best is None:
            ladder.append(LadderStep(rung=rung, candidate=None, taken=False, reason=obstacle))
        else:
            ladder.append(LadderStep.of(rung, best, least))
    return tuple(ladder), tuple(everything)


def predict(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Candidate:
    """A plan with what it needs and takes, judged."""
    estimate = estimate_plan(model, workload, cluster, plan)
    return Candidate.of(estimate, fit_of(estimate.memory, cluster, workload))


def fastest(question: Question, slopes: Slopes | None = None, *, enough: float = 0.0) -> Candidate | None:
    """`fastest_that_fits` of the ladder, with a fraction of the work.

    Memory rises with the micro batch, and so does the speed of a rung. Hence the speed of a series at a batch that is
    too large is a bound on it; series are looked at by falling bound until it is below what may be taken, and of a
    series the largest batch that fits and those below that are as fast. Where speed does not rise with the batch the
    plan may differ from that of the ladder, by a speed that is called the same.

    slopes: what questions about the same training share.
    enough: tokens per second below which no plan is of use. Where none reaches it the answer is None, or a slower one.
    """
    slopes = slopes or Slopes()
    rungs = [_RungSearch(rung, ways_of(rung, question)) for rung in RUNGS]
    active, number = [each for each in rungs if each.can_run()], 0
    enough *= (1 - max(LEAST_GAIN, SAME_SPEED)) * (1 - SAME_SPEED)
    while active:
        bounded = [one for rung in active for one in _bounded(rung, number, slopes)]
        for one in sorted(bounded, key=lambda one: -one.bound):
            least = max(enough, _least_speed(rungs))
            if one.bound < least:
                break
            if not _is_needless(one, fastest_that_fits(_steps(rungs))):
                one.rung.found += _largest_that_fit(one.series, one.may_fit, least)
        least = max(enough, _least_speed(rungs))
        active = [rung for rung in active if rung.goes_on(number, least)]
        number += 1
    return fastest_that_fits(_steps(rungs))


def any_fits(question: Question) -> bool:
    """Whether some rung has a plan that fits as surely as the question's risk asks.

    Memory rises with the micro batch, so the smallest decide. The last rungs need least of the GPU and are asked first.
    """
    return any(_rung_fits(rung, question) for rung in reversed(RUNGS))


def _rung_fits(rung: Rung, question: Question) -> bool:
    ways = ways_of(rung, question)
    if not _RungSearch(rung, ways).can_run():
        return False
    for number, way in enumerate(ways):
        fits = [fit for series in way if not series.is_hopeless for fit in series.smallest()]
        if any(fit.probability >= LEAST[question.risk] for fit in fits):
            return True
        if any(fit.limit != "gpu" for fit in fits) or not worth_going_on(ways, number):
            return False
    return False


@dataclass(slots=True)
class _RungSearch:
    """What is known of a rung while it is searched."""

    rung: Rung
    ways: list[list[Series]]
    found: list[Candidate] = field(default_factory=list)
    """Those that may be taken."""
    too_large: set[Series] = field(default_factory=set)
    """Those of which not even the smallest batch fits."""

    def can_run(self) -> bool:
        """Whether it runs at all, and needs no NVMe that nobody named."""
        first = self.ways[0][0]
        return not first.lacks_nvme and first.obstacle() is None

    def goes_on(self, number: int, least_speed: float) -> bool:
        """Whether the way after that of this number is to be tried: nothing of this one surely fits on the GPU, and
        what follows may fit and is fast enough with the largest batch there is."""
        if any(candidate.fit.fits for candidate in self.found):
            return False
        for series in reversed(self.ways[number]):
            if series in self.too_large or series.is_hopeless:
                continue
            if any(fit.fits or fit.limit != "gpu" for fit in series.smallest()):
                return False
        after = (series for way in self.ways[number + 1 :] for series in way)
        return worth_going_on(self.ways, number) and any(
            series.time(*series.shapes[-1]).tokens_per_s >= least_speed for series in after
        )


class Slopes:
    """Bytes of a GPU that one more sample in the micro batch takes, where batches are large."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, series: Series) -> float:
        """The slope of a series' memory, which those share that differ in what is sharded or offloaded alone."""
        question, stage3 = series.question, series.first_plan.zero_stage == 3
        sharing = series.sequence_parallel_size, series.autotp_size, series.autoep_size
        capability = question.cluster.gpu.compute_capability
        key = series.checkpointing, *sharing, stage3, question.workload, capability
        if key not in self._known:
            (less, _), (most, _) = series.shapes[-2:]
            low, high = (series.memory(*shape)[1].device_bytes_per_gpu for shape in series.shapes[-2:])
            self._known[key] = max(1.0, (high - low) / (most - less))
        return self._known[key]


class _Bounded(NamedTuple):
    """A series with a bound on its speed."""

    bound: float
    """Tokens per second that none of its plans that fit exceeds."""
    may_fit: float
    """The micro batch above which none fits."""
    rung: _RungSearch
    series: Series


def _bounded(rung: _RungSearch, number: int, slopes: Slopes) -> Iterator[_Bounded]:
    """The series of a rung's way of this number, but for those of which not even the smallest batch fits.

    A batch needs what stays on the GPU, and for each sample the slope at large batches. The bound is the speed of a
    batch that is just too large by that.
    """
    for series in rung.ways[number]:
        most = series.shapes[-1]
        if series.is_hopeless:
            continue
        if not _is_free(series):
            yield _Bounded(series.time(*most).tokens_per_s, most[0], rung, series)
            continue
        may_fit = (series.question.cluster.gpu.memory_bytes - series.resident_bytes) / slopes.of(series)
        if may_fit < 1:
            rung.too_large.add(series)
            continue
        above = series.time(min(most[0], int(may_fit) + 1), 1)
        yield _Bounded(_bound(series, above), may_fit, rung, series)


def _bound(series: Series, time: TimeEstimate) -> float:
    """A batch's speed, were all of an optimizer that the host can give back free."""
    return time.tokens_per_s / (1 - series.hosted_share(time))


def _is_needless(one: _Bounded, taken: Candidate | None) -> bool:
    """Whether nothing of a series can displace the plan that is taken of those found so far: that one is lower on the
    ladder, fits comfortably, and is as fast as the series can be; or wants more than the series, and pays."""
    if taken is None or taken.fit.utilization > COMFORTABLE or RUNGS.index(one.rung.rung) <= _place(taken):
        return False
    plan = one.series.first_plan
    if wants_more_than(taken.plan, plan):
        return taken.tokens_per_s * (1 - LEAST_GAIN) > one.bound
    return taken.tokens_per_s >= one.bound * (1 - (LEAST_GAIN if wants_more_than(plan, taken.plan) else SAME_SPEED))


def _place(candidate: Candidate) -> int:
    """How high on the ladder its rung is."""
    return [str(rung) for rung in RUNGS].index(candidate.rung)


def _least_speed(rungs: Iterable[_RungSearch]) -> float:
    """Tokens per second below which a plan can neither be taken nor keep another from it: one is within `SAME_SPEED` of
    the best of its rung, and matters within `SAME_SPEED` of the fastest, or `LEAST_GAIN` where that `wants_more`."""
    found = [candidate for rung in rungs for candidate in rung.found]
    if not found:
        return 0.0
    fastest_found = max(found, key=lambda candidate: candidate.tokens_per_s)
    gain = LEAST_GAIN if wants_more(fastest_found.plan) else SAME_SPEED
    return fastest_found.tokens_per_s * (1 - gain) * (1 - SAME_SPEED)


def _is_free(series: Series) -> bool:
    """Whether its batches go up by doubling, without accumulation."""
    return series.question.is_batch_free and len(series.shapes) > 1


def _largest_that_fit(series: Series, may_fit: float, least_speed: float) -> list[Candidate]:
    """The candidates that may be taken, with a free batch only the largest and those below that are as fast.

    may_fit: about the largest micro batch that may fit, where the search for it begins.
    least_speed: tokens per second below which none is taken.
    """
    shapes, least = series.shapes, series.least
    if not _is_free(series):
        return [series.timed(judged) for judged in series.rising() if judged.fit.probability >= least]

    def fits(index: int) -> bool:
        return series.judged(*shapes[index]).fit.probability >= least

    index = max((index for index, (micro, _) in enumerate(shapes) if micro <= may_fit), default=0)
    while index >= 0 and not fits(index):
        index -= 1
    if index < 0:
        return []
    while index + 1 < len(shapes) and fits(index + 1):
        index += 1
    candidates = [series.timed(series.judged(*shapes[index]))]
    if index + 1 < len(shapes):
        between = series.between(candidates[0], series.timed(series.judged(*shapes[index + 1])), least_speed)
        candidates += [series.timed(judged) for judged in between if judged.fit.probability >= least]
    best = max(candidate.tokens_per_s for candidate in candidates)
    for shape in reversed(shapes[:index]):
        time = series.time(*shape)
        if time.tokens_per_s < (1 - SAME_SPEED) * best:
            break
        candidates.append(series.timed(series.judged(*shape)))
        best = max(best, time.tokens_per_s)
    return [*candidates, *series.taking_back(max(candidates, key=lambda candidate: candidate.tokens_per_s))]


def _steps(rungs: Iterable[_RungSearch]) -> Iterator[LadderStep]:
    for rung in rungs:
        least = LEAST[rung.ways[0][0].question.risk]
        best = best_of_rung(rung.found, least)
        if best is not None:
            yield LadderStep.of(rung.rung, best, least)
