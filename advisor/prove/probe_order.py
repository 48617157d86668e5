"""The cheapest sequence of probes that settles which plan is the fastest that fits.

Every candidate has a predicted speed and a predicted need of memory. A probe corrects both, most for the plans that are
most like it. The next probe is always the candidate that could be the fastest; candidates that cannot beat the best
measured one by more than `SAME_SPEED`, or that cannot fit, are never run. So the climb starts where the prediction
points, not at the top of the ladder, and ends when nothing that is left could change the answer.

The bound: each failure strikes out its own series (rung, checkpointing) from that micro batch on, each success leaves
of its series only what is predicted to be faster; so a series is run at most once for each doubling of the micro batch
above the first, and `Climb.bound` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...estimators.estimate import TimeEstimate
from ..recommend.recommendation import Candidate
from ..recommend.search import SAME_SPEED
from .calibration import Calibration, uniform

UNKNOWN_MACHINE, OTHER_RUNG, SAME_SERIES = 0.5, 0.3, 0.1
"""How far a speed may be above its prediction: before anything ran on this machine; corrected by a probe of another
rung; by one of the same rung and checkpointing. Well above the median errors on the CPU (docs/probe.md: up to 31 %
without a probe, 6 to 9 % after one of another rung), for a plan that is struck out is never run; within a series
assumed."""

MEMORY_UNKNOWN, MEMORY_KNOWN = 0.15, 0.05
"""How far a need of memory may be below its prediction: before and after a probe of the same rung and checkpointing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a probe said of a candidate; `tokens_per_s` is None where it failed.

    need_bytes: the measured need, on the scale of the prediction; None where it was not measured.
    out_of_memory: it failed for want of memory, so whatever needs more fails too.
    calibration: what it teaches about the times of others; None: they are as much faster or slower than predicted.
    """

    tokens_per_s: float | None
    need_bytes: int | None = None
    out_of_memory: bool = False
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The candidate to probe next, and why."""

    candidate: Candidate
    reason: str


class Climb:
    """The state of a climb: ask `choose`, run it, tell `learn`, until `choose` answers None."""

    def __init__(self, candidates: Sequence[Candidate], memory_bytes: int) -> None:
        self.candidates, self.memory_bytes = list(candidates), memory_bytes
        self.outcomes: dict[int, Outcome] = {}
        """By the candidate's place in `candidates`."""
        self._known_before = 0

    @property
    def best(self) -> Candidate | None:
        """The fastest that was measured."""
        measured = {index: outcome.tokens_per_s for index, outcome in self.outcomes.items() if outcome.tokens_per_s}
        return self.candidates[max(measured, key=lambda index: measured[index])] if measured else None

    @property
    def bound(self) -> int:
        """No climb over these candidates takes more probes; what earlier ones said is not counted."""
        series = {_series(candidate) for candidate in self.candidates}
        sizes = {candidate.estimate.plan.micro_batch_size for candidate in self.candidates}
        return min(len(self.candidates), len(series) + len(sizes))

    def choose(self) -> Choice | None:
        """The candidate that could be fastest; of those that are predicted to fit first, then of those that might."""
        best = self._best_speed()
        open_ = [
            index for index in range(len(self.candidates)) if index not in self.outcomes and self._could_fit(index)
        ]
        rivals = [index for index in open_ if self._highest_speed(index) > best * (1 + SAME_SPEED)]
        if not rivals or len(self.outcomes) - self._known_before >= self.bound:
            return None
        safe = [index for index in rivals if self._expected_need(index) <= self.memory_bytes]
        chosen = max(safe or rivals, key=lambda index: (self._expected_speed(index), -index))
        return Choice(candidate=self.candidates[chosen], reason=self._reason(chosen, best, risky=not safe))

    def learn(self, candidate: Candidate, outcome: Outcome, *, from_before: bool = False) -> None:
        """What a probe said of a candidate; from_before: in an earlier climb, or asked for by itself."""
        self.outcomes[self.candidates.index(candidate)] = outcome
        self._known_before += from_before

    def too_large(self, candidate: Candidate) -> bool:
        """It needs more than what ran out of memory, or more than there is even if the prediction is as high as it can
        be."""
        return self._too_large(self.candidates.index(candidate))

    def expected_time(self, candidate: Candidate) -> TimeEstimate:
        """The candidate's time, corrected by the probe of the plan that is most like it."""
        nearest = self._nearest(self.candidates.index(candidate), measured="tokens_per_s")
        predicted = candidate.estimate.time
        if nearest is None:
            return predicted
        outcome, probed = self.outcomes[nearest[0]], self.candidates[nearest[0]]
        if outcome.calibration is not None:
            return outcome.calibration.apply(predicted)
        return uniform(probed.tokens_per_s / (outcome.tokens_per_s or 1.0)).apply(predicted)

    def left(self) -> int:
        """Candidates that could still win."""
        best = self._best_speed()
        return sum(
            index not in self.outcomes
            and self._could_fit(index)
            and self._highest_speed(index) > best * (1 + SAME_SPEED)
            for index in range(len(self.candidates))
        )

    def _reason(self, chosen: int, best: float, *, risky: bool) -> str:
        expected = self._expected_speed(chosen)
        if not best:
            return "predicted to be the fastest that fits" if not risky else "nothing else is predicted to fit"
        if risky:
            return f"might fit, and would run at {expected / best:.2f} x the best so far"
        if expected > best:
            return f"predicted at {expected / best:.2f} x the best so far"
        highest = self._highest_speed(chosen)
        return f"predicted at {expected / best:.2f} x the best so far, but up to {highest / best:.2f} x"

    def _best_speed(self) -> float:
        return max((outcome.tokens_per_s or 0.0 for outcome in self.outcomes.values()), default=0.0)

    def _nearest(self, index: int, *, measured: str) -> tuple[int, bool] | None:
        """(the probe most like this candidate whose figure was measured, whether it is of the same series)."""
        wanted = self.candidates[index]
        probes = [other for other, outcome in self.outcomes.items() if getattr(outcome, measured)]
        if not probes:
            return None

        def distance(other: int) -> tuple[bool, bool, float]:
            plan, probed = wanted.estimate.plan, self.candidates[other].estimate.plan
            sizes = sorted((plan.micro_batch_size, probed.micro_batch_size))
            return (
                _series(wanted) != _series(self.candidates[other]),
                plan.gradient_checkpointing != probed.gradient_checkpointing,
                sizes[1] / sizes[0],
            )

        nearest = min(probes, key=distance)
        return nearest, _series(wanted) == _series(self.candidates[nearest])

    def _expected_speed(self, index: int) -> float:
        return self.expected_time(self.candidates[index]).tokens_per_s

    def _highest_speed(self, index: int) -> float:
        nearest = self._nearest(index, measured="tokens_per_s")
        above = UNKNOWN_MACHINE if nearest is None else SAME_SERIES if nearest[1] else OTHER_RUNG
        return self._expected_speed(index) * (1 + above)

    def _expected_need(self, index: int) -> float:
        nearest = self._nearest(index, measured="need_bytes")
        predicted = _predicted_need(self.candidates[index])
        if nearest is None:
            return predicted
        return predicted * (self.outcomes[nearest[0]].need_bytes or 0) / _predicted_need(self.candidates[nearest[0]])

    def _could_fit(self, index: int) -> bool:
        return not self._fails(index) and not self._too_large(index)

    def _fails(self, index: int) -> bool:
        """Whether a plan of its series failed for another reason than memory."""
        return any(
            outcome.tokens_per_s is None
            and not outcome.out_of_memory
            and _series(self.candidates[other]) == _series(self.candidates[index])
            for other, outcome in self.outcomes.items()
        )

    def _too_large(self, index: int) -> bool:
        wanted = self.candidates[index]
        for other, outcome in self.outcomes.items():
            failed = self.candidates[other]
            above = 1 if _series(failed) == _series(wanted) else 1 + MEMORY_UNKNOWN
            if outcome.out_of_memory and _predicted_need(wanted) >= _predicted_need(failed) * above:
                return True
        nearest = self._nearest(index, measured="need_bytes")
        below = MEMORY_KNOWN if nearest is not None and nearest[1] else MEMORY_UNKNOWN
        return self._expected_need(index) * (1 - below) > self.memory_bytes


def _predicted_need(candidate: Candidate) -> int:
    """On the one scale on which all candidates can be compared."""
    return candidate.estimate.memory.device_bytes_per_gpu


def _series(candidate: Candidate) -> tuple[str, bool]:
    """Plans that differ in the batch only."""
    return candidate.rung, candidate.estimate.plan.gradient_checkpointing
