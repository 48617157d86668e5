"""The cheapest sequence of probes that settles which plan is the fastest that fits.

Every candidate has a predicted speed and a predicted need of memory. A probe corrects both, most for the plans most
like it. The next probe is the candidate with the highest expected speed; among those as fast within `SAME_SPEED`, the
one with the shortest steps. A candidate is eliminated if it cannot beat the best measured one by more than
`SAME_SPEED`, cannot fit, or has a probe that may exceed the time left. The series ends when none is left.

Each failure eliminates its own series (strategy, checkpointing) from that micro batch on; each success leaves of its
series only candidates that are predicted to be faster. So a series is run at most once for each doubling of the micro
batch above the first (`ProbeOrder.bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Literal, NamedTuple

from ...estimators.estimate import Estimate, MeasuredMemory, Spread, TimeEstimate, TimeTerm
from ...estimators.plan import Plan
from ...probes.real_run.command import STEPS
from ...probes.real_run.result import ProbeResult
from ..search.candidate import Candidate
from ..search.choice import SAME_SPEED

UNKNOWN_MACHINE, OTHER_STRATEGY, SAME_SERIES = 0.5, 0.3, 0.1
"""Relative margin of a speed above its prediction: before a probe on this machine; after one of another strategy; after
one of the same strategy and checkpointing. The first two are well above the median errors on the CPU (docs/probe.md: up
to 31 % without a probe, 6 to 9 % after one of another strategy), since an eliminated plan is never run; the last is
assumed."""

MEMORY_UNKNOWN, MEMORY_KNOWN = 0.15, 0.05
"""Relative margin of a memory need below its prediction: before and after a probe of the same strategy and
checkpointing."""

START_S = 25.0
"""Seconds of a first probe apart from its steps: processes, libraries, model and engine. 7 s on two idle cores, 24 s
with twice as many processes as cores (docs/probe.md), without DeepSpeed's extensions, which are compiled at first
use."""

_LINKS = frozenset(("gpu links", "network"))
_OPTIMIZER = frozenset(("optimizer", "optimizer on the host"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Ratios of measured to predicted seconds, by kind of work.

    The closed form supplies the proportions of the work, a probe the speed of the machine. If the device does not
    report waiting separately (CUDA), all factors are equal.
    """

    device: float = 1.0
    """Forward and backward passes."""
    optimizer: float = 1.0
    links: float = 1.0
    """Collectives."""

    def apply(self, time: TimeEstimate) -> TimeEstimate:
        """Return the estimate with each term scaled by the factor of its kind."""
        factors = [getattr(self, _kind(term)) for term in time.terms]
        terms = (
            term._replace(seconds=term.seconds * factor, hidden_s=term.hidden_s * factor)
            for term, factor in zip(time.terms, factors, strict=True)
        )
        return replace(time, terms=tuple(terms))


def uniform(ratio: float) -> Calibration:
    return Calibration(device=ratio, optimizer=ratio, links=ratio)


def calibration(result: ProbeResult, predicted: TimeEstimate) -> Calibration:
    """Return the factors that make the prediction of a plan equal to its probe."""
    slowest = max(result.ranks, key=lambda report: report.step_s)
    whole = result.step_s / predicted.step_s
    if slowest.steps[0].waiting_s is None:
        return uniform(whole)

    def measured(name: str) -> float:
        return float(median(getattr(step, name) for step in slowest.steps))

    waiting = measured("waiting_s")
    optimizer = measured("optimizer_s") - measured("optimizer_waiting_s")
    parts = {"device": result.step_s - optimizer - waiting, "optimizer": optimizer, "links": waiting}
    expected = {kind: sum(term.seconds for term in predicted.terms if _kind(term) == kind) for kind in parts}
    # A kind of work that this plan does not have gets the factor of the whole step.
    return Calibration(**{kind: parts[kind] / expected[kind] if expected[kind] else whole for kind in parts})


def measured_estimate(estimate: Estimate, result: ProbeResult) -> Estimate:
    """Return a plan's estimate with the time that its probe measured, term by term, and the memory that it took. The
    spread is the middle 80 % of the slowest rank's steps."""
    slowest = max(result.ranks, key=lambda report: report.step_s)
    steps = sorted(step.total_s for step in slowest.steps)
    beyond = int(len(steps) / 10)
    # Speed is the inverse of time: the longest steps give the low end.
    spread = Spread(low=slowest.step_s / steps[-1 - beyond], high=slowest.step_s / steps[beyond])
    time = replace(calibration(result, estimate.time).apply(estimate.time), spread=spread)
    measured = MeasuredMemory(
        allocated_bytes=result.highest("allocated_bytes"),
        reserved_bytes=result.highest("reserved_bytes"),
        device_bytes=result.device_peak_bytes,
        host_bytes=result.host_peak_bytes,
    )
    return replace(estimate, time=time, evidence="probe", measured=measured)


def _kind(term: TimeTerm) -> str:
    if term.name in _OPTIMIZER:
        return "optimizer"
    return "links" if term.resource in _LINKS else "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeVerdict:
    """The result of a candidate's probe."""

    tokens_per_s: float | None
    """None after a failure."""
    need_bytes: int | None = None
    """Measured need, on the scale of the prediction; None if it was not measured."""
    out_of_memory: bool = False
    calibration: Calibration | None = None
    """Factors for the times of other candidates; None selects the ratio of the speeds."""
    start_s: float | None = None
    """Seconds of the probe apart from its steps; None if unknown."""


class NextProbe(NamedTuple):
    """The candidate to probe next."""

    candidate: Candidate
    reason: str


class ProbeOrder:
    """The state of a series of probes: call `choose`, run the candidate, call `learn`, until `choose` returns None."""

    def __init__(self, candidates: Sequence[Candidate], memory_bytes: int) -> None:
        self.candidates = list(candidates)
        self.memory_bytes = memory_bytes
        self.verdicts: dict[Plan, ProbeVerdict] = {}
        self._probed: dict[Plan, Candidate] = {}
        self._shortest_cut_off_s = inf
        self._known_before = 0

    @property
    def bound(self) -> int:
        """Largest number of probes of a series over these candidates, without earlier ones."""
        series = {_series(candidate) for candidate in self.candidates}
        sizes = {candidate.plan.micro_batch_size for candidate in self.candidates}
        return min(len(self.candidates), len(series) + len(sizes))

    def choose(self, within_s: float = inf) -> NextProbe | None:
        """Return the candidate to probe next; candidates that are predicted to fit come before those that might fit.
        within_s: the time left; a probe that may take longer is not chosen."""
        rivals = self.rivals()
        if within_s < inf:
            rivals = [candidate for candidate in rivals if self.probe_s(candidate) <= within_s]
        if not rivals or len(self.verdicts) - self._known_before >= self.bound:
            return None
        safe = [candidate for candidate in rivals if self._expected_need(candidate) <= self.memory_bytes]
        expected = [(self.expected_time(candidate), candidate) for candidate in safe or rivals]
        enough = max(time.tokens_per_s for time, _ in expected) * (1 - SAME_SPEED)
        _, chosen = min((pair for pair in expected if pair[0].tokens_per_s >= enough), key=lambda pair: pair[0].step_s)
        return NextProbe(chosen, self._reason(chosen, risky=not safe))

    def quickest_s(self) -> float | None:
        """Return the least seconds that a probe of a rival may take; None without rivals."""
        return min(map(self.probe_s, self.rivals()), default=None)

    def probe_s(self, candidate: Candidate) -> float:
        """Return the seconds within which nine of ten probes end: the slowest start so far, and steps at the lower end
        of the speed's 80 % interval."""
        starts = [verdict.start_s for verdict in self.verdicts.values() if verdict.start_s is not None]
        time = self.expected_time(candidate)
        return max(starts, default=START_S) + STEPS * time.step_s / (time.spread.low if time.spread else 1.0)

    def learn(self, candidate: Candidate, verdict: ProbeVerdict, *, from_before: bool = False) -> None:
        """Record a probe. from_before: whether it is an earlier one, which does not count towards the bound."""
        self.verdicts[candidate.plan] = verdict
        self._probed[candidate.plan] = candidate
        self._known_before += from_before

    def cut_off(self, candidate: Candidate) -> None:
        """Record that a probe was ended without a result: no candidate with longer steps is chosen from then on."""
        self._shortest_cut_off_s = min(self._shortest_cut_off_s, candidate.time.step_s)

    @property
    def best_speed(self) -> float:
        """Highest measured speed; 0 if nothing ran."""
        return max((verdict.tokens_per_s or 0.0 for verdict in self.verdicts.values()), default=0.0)

    def rivals(self) -> list[Candidate]:
        """Return the candidates that could still win."""
        enough = self.best_speed * (1 + SAME_SPEED)
        return [
            candidate
            for candidate in self.candidates
            if candidate.plan not in self.verdicts
            and not self._fails(candidate)
            and not self.too_large(candidate)
            and candidate.time.step_s < self._shortest_cut_off_s
            and self._highest_speed(candidate) > enough
        ]

    def too_large(self, candidate: Candidate) -> bool:
        """Whether a candidate needs more than a plan that ran out of memory, or more than the available memory even at
        the lower margin of its prediction."""
        for plan, verdict in self.verdicts.items():
            failed = self._probed[plan]
            above = 1 if _series(failed) == _series(candidate) else 1 + MEMORY_UNKNOWN
            if verdict.out_of_memory and _predicted_need(candidate) >= _predicted_need(failed) * above:
                return True
        nearest = self._nearest(candidate, "need_bytes")
        known = nearest is not None and _series(nearest) == _series(candidate)
        return self._expected_need(candidate) * (1 - (MEMORY_KNOWN if known else MEMORY_UNKNOWN)) > self.memory_bytes

    def expected_time(self, candidate: Candidate) -> TimeEstimate:
        """Return the candidate's time, corrected by the probe of the plan most like it."""
        nearest = self._nearest(candidate, "tokens_per_s")
        if nearest is None:
            return candidate.time
        verdict = self.verdicts[nearest.plan]
        correction = verdict.calibration or uniform(nearest.tokens_per_s / (verdict.tokens_per_s or 1.0))
        return correction.apply(candidate.time)

    def _reason(self, chosen: Candidate, *, risky: bool) -> str:
        best, expected = self.best_speed, self.expected_time(chosen).tokens_per_s
        if not best:
            if risky:
                return "nothing else is predicted to fit"
            return "predicted to be the fastest that fits"
        ratio = f"{expected / best:.2f}"
        if risky:
            return f"might fit, and would run at {ratio} x the best so far"
        predicted = f"predicted at {ratio} x the best so far"
        if expected > best:
            return predicted
        highest = f"{self._highest_speed(chosen) / best:.2f}"
        return f"{predicted}, but up to {highest} x"

    def _nearest(self, candidate: Candidate, measured: Literal["tokens_per_s", "need_bytes"]) -> Candidate | None:
        """Return the probed candidate most like this one, among those with the quantity measured."""
        probed = [self._probed[plan] for plan, verdict in self.verdicts.items() if getattr(verdict, measured)]

        def distance(other: Candidate) -> tuple[bool, bool, float]:
            sizes = sorted((candidate.plan.micro_batch_size, other.plan.micro_batch_size))
            return (
                _series(candidate) != _series(other),
                candidate.plan.gradient_checkpointing != other.plan.gradient_checkpointing,
                sizes[1] / sizes[0],
            )

        return min(probed, key=distance, default=None)

    def _highest_speed(self, candidate: Candidate) -> float:
        nearest = self._nearest(candidate, "tokens_per_s")
        same_series = nearest is not None and _series(nearest) == _series(candidate)
        # The less alike the probed plan, the more a candidate may exceed its prediction.
        above = UNKNOWN_MACHINE if nearest is None else SAME_SERIES if same_series else OTHER_STRATEGY
        return self.expected_time(candidate).tokens_per_s * (1 + above)

    def _expected_need(self, candidate: Candidate) -> float:
        nearest, predicted = self._nearest(candidate, "need_bytes"), _predicted_need(candidate)
        if nearest is None:
            return predicted
        return predicted * (self.verdicts[nearest.plan].need_bytes or 0) / _predicted_need(nearest)

    def _fails(self, candidate: Candidate) -> bool:
        return any(
            verdict.tokens_per_s is None
            and not verdict.out_of_memory
            and _series(self._probed[plan]) == _series(candidate)
            for plan, verdict in self.verdicts.items()
        )


def _predicted_need(candidate: Candidate) -> int:
    """Return the predicted need, also for measured candidates, so that all needs have one scale."""
    return candidate.memory.device_bytes_per_gpu


def _series(candidate: Candidate) -> tuple[str, bool]:
    return candidate.strategy, candidate.plan.gradient_checkpointing
