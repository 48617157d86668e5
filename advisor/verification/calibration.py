"""What one probe teaches about the other plans of the same model on the same machine.

The closed form knows the proportions of the work, a probe the machine. Three factors carry over, each the measured
seconds over the predicted ones: of forward and backward passes on the device, of the optimizer, and of collectives.
Where the device does not tell waiting apart (CUDA) one factor stands for all three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from ...estimators.estimate import Estimate, Spread, TimeEstimate, TimeTerm
from ...probes.real_run import ProbeResult

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
