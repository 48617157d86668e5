"""What one probe teaches about the other plans of the same model on the same machine.

The closed form knows the proportions of the work, a probe the machine. Three factors carry over, each the measured
seconds over the predicted ones: of forward and backward passes on the device, of the optimizer, and of collectives.
Where the device does not tell waiting apart (CUDA) one factor stands for all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Literal

from ...estimators.estimate import Estimate, Spread, TimeEstimate, TimeTerm
from ...estimators.phrase import phrase
from ...estimators.plan import Plan
from ...probes.real_run.result import ProbeResult
from ...probes.real_run.run import STEPS
from ..search.candidate import Candidate
from ..search.choice import SAME_SPEED

_LINKS = frozenset(("gpu links", "network"))
_OPTIMIZER = frozenset(("optimizer", "optimizer on the host"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured over predicted seconds, by kind of work."""

    device: float = 1.0
    optimizer: float = 1.0
    links: float = 1.0

    def apply(self, time: TimeEstimate) -> TimeEstimate:
        """The estimate with each term scaled by its kind's factor."""
        return TimeEstimate(
            tokens_per_step=time.tokens_per_step,
            spread=time.spread,
            terms=tuple(
                term._replace(seconds=term.seconds * factor, hidden_s=term.hidden_s * factor)
                for term in time.terms
                for factor in (getattr(self, _kind(term)),)
            ),
        )


def uniform(ratio: float) -> Calibration:
    """One factor for all kinds."""
    return Calibration(device=ratio, optimizer=ratio, links=ratio)


def calibration(result: ProbeResult, predicted: TimeEstimate) -> Calibration:
    """The factors that make the prediction of a plan equal to its probe."""
    slowest = max(result.ranks, key=lambda report: report.step_s)
    whole = result.step_s / predicted.step_s
    if slowest.steps[0].waiting_s is None:
        return uniform(whole)

    def measured(name: str) -> float:
        return float(median(getattr(step, name) for step in slowest.steps))

    waiting, in_optimizer = measured("waiting_s"), measured("optimizer_waiting_s")
    optimizer = measured("optimizer_s") - in_optimizer
    parts = {"device": result.step_s - optimizer - waiting, "optimizer": optimizer, "links": waiting}
    expected = {kind: sum(term.seconds for term in predicted.terms if _kind(term) == kind) for kind in parts}
    # A kind that this plan does not have says nothing about the others' share of it: it gets the factor of the whole.
    return Calibration(**{kind: parts[kind] / expected[kind] if expected[kind] else whole for kind in parts})


def as_measured(estimate: Estimate, result: ProbeResult) -> Estimate:
    """A plan's estimate with the time that its probe measured, term by term."""
    time = calibration(result, estimate.time).apply(estimate.time)
    return replace(estimate, time=replace(time, spread=_of_steps(result)), evidence="probe")


def _of_steps(result: ProbeResult) -> Spread:
    """The middle 80 % of the slowest rank's steps, as speeds over that of its step time."""
    slowest = max(result.ranks, key=lambda report: report.step_s)
    steps = sorted(step.total_s for step in slowest.steps)
    beyond = int(len(steps) / 10)
    return Spread(low=slowest.step_s / steps[-1 - beyond], high=slowest.step_s / steps[beyond])


def _kind(term: TimeTerm) -> str:
    if term.name in _OPTIMIZER:
        return "optimizer"
    return "links" if term.resource in _LINKS else "device"


UNKNOWN_MACHINE, OTHER_RUNG, SAME_SERIES = 0.5, 0.3, 0.1
"""How far a speed may be above its prediction: before anything ran on this machine; corrected by a probe of another
rung; by one of the same rung and checkpointing. Well above the median errors on the CPU (docs/probe.md: up to 31 %
without a probe, 6 to 9 % after one of another rung), for a plan that is struck out is never run; within a series
assumed."""

MEMORY_UNKNOWN, MEMORY_KNOWN = 0.15, 0.05
"""How far a need of memory may be below its prediction: before and after a probe of the same rung and checkpointing."""


START_S = 25.0
"""Seconds of a probe besides its steps, until one has run here: processes, libraries, model and engine. 7 s on two idle
cores, 24 s where twice as many processes wanted them (docs/probe.md); the extensions that DeepSpeed compiles at their
first use come on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeVerdict:
    """What a probe says of a candidate."""

    tokens_per_s: float | None
    """None where it failed."""
    need_bytes: int | None = None
    """The measured need, on the scale of the prediction; None where it was not measured."""
    out_of_memory: bool = False
    """It failed because memory ran out, so whatever needs more fails too."""
    calibration: Calibration | None = None
    """What it teaches about the times of others; None: they are as much faster or slower than predicted."""
    start_s: float | None = None
    """Seconds of the probe besides its steps; None where they were not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextProbe:
    """The candidate to probe next, and why."""

    candidate: Candidate
    reason: str


class ProbeOrder:
    """The state of a series of probes: ask `choose`, run it, tell `learn`, until `choose` answers None."""

    def __init__(self, candidates: Sequence[Candidate], memory_bytes: int) -> None:
        self.candidates, self.memory_bytes = list(candidates), memory_bytes
        self.verdicts: dict[Plan, ProbeVerdict] = {}
        self._probed: dict[Plan, Candidate] = {}
        self._cut_off: list[Candidate] = []
        self._known_before = 0

    @property
    def bound(self) -> int:
        """No series over these candidates takes more probes; earlier ones do not count."""
        series = {_series(candidate) for candidate in self.candidates}
        sizes = {candidate.plan.micro_batch_size for candidate in self.candidates}
        return min(len(self.candidates), len(series) + len(sizes))

    def choose(self, within_s: float = inf) -> NextProbe | None:
        """The candidate that could be fastest; of those that are predicted to fit first, then of those that might.

        within_s: the time that is left; a probe that could take longer is not chosen.
        """
        rivals = self._rivals()
        if within_s < inf:
            rivals = [candidate for candidate in rivals if self.probe_s(candidate) <= within_s]
        if not rivals or len(self.verdicts) - self._known_before >= self.bound:
            return None
        safe = [candidate for candidate in rivals if self._expected_need(candidate) <= self.memory_bytes]
        expected = [(self.expected_time(candidate), candidate) for candidate in safe or rivals]
        enough = max(time.tokens_per_s for time, _ in expected) * (1 - SAME_SPEED)
        _, chosen = min((pair for pair in expected if pair[0].tokens_per_s >= enough), key=lambda pair: pair[0].step_s)
        return NextProbe(candidate=chosen, reason=self._reason(chosen, risky=not safe))

    def quickest_s(self) -> float | None:
        """The least seconds that a probe of any candidate that could win may take; None where none could."""
        return min((self.probe_s(candidate) for candidate in self._rivals()), default=None)

    def probe_s(self, candidate: Candidate) -> float:
        """The seconds within which nine of ten probes of it end: the start of the slowest probe so far, and steps at
        the lower end of the speed's 80 % interval."""
        starts = [verdict.start_s for verdict in self.verdicts.values() if verdict.start_s is not None]
        time = self.expected_time(candidate)
        return max(starts, default=START_S) + STEPS * time.step_s / (time.spread.low if time.spread else 1.0)

    def cut_off(self, candidate: Candidate) -> None:
        """Take in that its probe was ended before it said anything: nothing of longer steps is chosen any more."""
        self._cut_off.append(candidate)

    @property
    def was_cut_off(self) -> bool:
        return bool(self._cut_off)

    @property
    def anything_ran(self) -> bool:
        return self._best_speed() > 0

    def learn(self, candidate: Candidate, verdict: ProbeVerdict, *, from_before: bool = False) -> None:
        """Take in what a probe says of a candidate; from_before: one of an earlier time, which the bound leaves out."""
        self.verdicts[candidate.plan], self._probed[candidate.plan] = verdict, candidate
        self._known_before += from_before

    def too_large(self, candidate: Candidate) -> bool:
        """It needs more than what ran out of memory, or more than there is even if the prediction is as high as it can
        be."""
        for plan, verdict in self.verdicts.items():
            failed = self._probed[plan]
            above = 1 if _series(failed) == _series(candidate) else 1 + MEMORY_UNKNOWN
            if verdict.out_of_memory and _predicted_need(candidate) >= _predicted_need(failed) * above:
                return True
        nearest = self._nearest(candidate, measured="need_bytes")
        known = nearest is not None and _series(nearest) == _series(candidate)
        return self._expected_need(candidate) * (1 - (MEMORY_KNOWN if known else MEMORY_UNKNOWN)) > self.memory_bytes

    def expected_time(self, candidate: Candidate) -> TimeEstimate:
        """The candidate's time, corrected by the probe of the plan that is most like it."""
        nearest, predicted = self._nearest(candidate, measured="tokens_per_s"), candidate.time
        if nearest is None:
            return predicted
        verdict = self.verdicts[nearest.plan]
        correction = verdict.calibration or uniform(nearest.tokens_per_s / (verdict.tokens_per_s or 1.0))
        return correction.apply(predicted)

    def left(self) -> int:
        """How many candidates could still win."""
        return len(self._rivals())

    def _rivals(self) -> list[Candidate]:
        enough = self._best_speed() * (1 + SAME_SPEED)
        return [
            candidate
            for candidate in self.candidates
            if candidate.plan not in self.verdicts
            and not self._fails(candidate)
            and not self.too_large(candidate)
            and not self._too_long(candidate)
            and self._highest_speed(candidate) > enough
        ]

    def _reason(self, chosen: Candidate, *, risky: bool) -> str:
        best, expected, highest = self._best_speed(), self._expected_speed(chosen), self._highest_speed(chosen)
        if not best:
            if risky:
                return phrase("nothing else is predicted to fit")
            return phrase("predicted to be the fastest that fits")
        ratio = f"{expected / best:.2f}"
        if risky:
            return phrase("might fit, and would run at {ratio} x the best so far", ratio=ratio)
        predicted = phrase("predicted at {ratio} x the best so far", ratio=ratio)
        if expected > best:
            return predicted
        return phrase("{predicted}, but up to {ratio} x", predicted=predicted, ratio=f"{highest / best:.2f}")

    def _best_speed(self) -> float:
        return max((verdict.tokens_per_s or 0.0 for verdict in self.verdicts.values()), default=0.0)

    def _nearest(self, candidate: Candidate, *, measured: Literal["tokens_per_s", "need_bytes"]) -> Candidate | None:
        """The probed candidate most like this one whose figure was measured."""
        probed = [self._probed[plan] for plan, verdict in self.verdicts.items() if getattr(verdict, measured)]

        def distance(other: Candidate) -> tuple[bool, bool, float]:
            sizes = sorted((candidate.plan.micro_batch_size, other.plan.micro_batch_size))
            return (
                _series(candidate) != _series(other),
                candidate.plan.gradient_checkpointing != other.plan.gradient_checkpointing,
                sizes[1] / sizes[0],
            )

        return min(probed, key=distance, default=None)

    def _expected_speed(self, candidate: Candidate) -> float:
        return self.expected_time(candidate).tokens_per_s

    def _highest_speed(self, candidate: Candidate) -> float:
        nearest = self._nearest(candidate, measured="tokens_per_s")
        same_series = nearest is not None and _series(nearest) == _series(candidate)
        above = UNKNOWN_MACHINE if nearest is None else SAME_SERIES if same_series else OTHER_RUNG
        return self._expected_speed(candidate) * (1 + above)

    def _expected_need(self, candidate: Candidate) -> float:
        nearest, predicted = self._nearest(candidate, measured="need_bytes"), _predicted_need(candidate)
        if nearest is None:
            return predicted
        return predicted * (self.verdicts[nearest.plan].need_bytes or 0) / _predicted_need(nearest)

    def _fails(self, candidate: Candidate) -> bool:
        """Whether a plan of its series failed for another reason than memory."""
        return any(
            verdict.tokens_per_s is None
            and not verdict.out_of_memory
            and _series(self._probed[plan]) == _series(candidate)
            for plan, verdict in self.verdicts.items()
        )

    def _too_long(self, candidate: Candidate) -> bool:
        """Whether its steps take as long as those of one whose probe was cut off."""
        return any(candidate.time.step_s >= other.time.step_s for other in self._cut_off)


def _predicted_need(candidate: Candidate) -> int:
    """On the one scale on which all candidates can be compared."""
    return candidate.memory.device_bytes_per_gpu


def _series(candidate: Candidate) -> tuple[str, bool]:
    """What plans share that differ in the batch only."""
    return candidate.rung, candidate.plan.gradient_checkpointing
