"""A plan that was predicted and judged, and the best of each rung."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ...estimators.estimate import Estimate, MemoryEstimate, TimeEstimate
from ...estimators.plan import PlainPyTorch, Plan, Rung
from ...estimators.time.duration import JobDuration, job_duration
from ..question.question import Question
from .fit import Fit


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan with its estimate and the verdict on it."""

    plan: Plan
    memory: MemoryEstimate
    fit: Fit
    estimated: Callable[[], Estimate] = field(repr=False, compare=False)
    """Its estimate, which is asked for where the time is: of most plans that do not fit nobody wants to know it."""
    measured_bytes: int | None = None
    """Device memory that it needs by a probe's measurement; None where no probe measured it."""

    @classmethod
    def of(cls, estimate: Estimate, fit: Fit, *, measured_bytes: int | None = None) -> Candidate:
        """That of an estimate which is known."""
        known = _Known(estimate)
        return cls(plan=estimate.plan, memory=estimate.memory, fit=fit, estimated=known, measured_bytes=measured_bytes)

    def with_estimate(self, estimate: Estimate) -> Candidate:
        """The same verdict on another estimate of the plan."""
        return replace(self, memory=estimate.memory, estimated=_Known(estimate))

    @cached_property
    def estimate(self) -> Estimate:
        return self.estimated()

    @property
    def time(self) -> TimeEstimate:
        return self.estimate.time

    @property
    def rung(self) -> Rung | PlainPyTorch:
        return self.plan.rung

    @cached_property
    def tokens_per_s(self) -> float:
        return self.time.tokens_per_s

    @property
    def device_bytes(self) -> int:
        """Device memory that it needs, measured or else predicted."""
        return self.memory.device_bytes_per_gpu if self.measured_bytes is None else self.measured_bytes


@dataclass(frozen=True, slots=True)
class _Known:
    """An estimate that was made before it is asked for."""

    estimate: Estimate

    def __call__(self) -> Estimate:
        return self.estimate


def duration_of(question: Question, candidate: Candidate) -> JobDuration | None:
    """How long the question's job takes under a plan; None where nobody said how much is trained."""
    if question.job is None:
        return None
    model, workload, cluster = question.model, question.workload, question.cluster
    return job_duration(model, workload, cluster, candidate.plan, candidate.time, question.job)


class LadderStep(NamedTuple):
    """A rung's verdict: its best candidate, or why it cannot run at all (`candidate` is None then)."""

    rung: Rung
    candidate: Candidate | None
    taken: bool
    """Whether the candidate may be recommended: it fits as surely as the question's risk asks."""
    reason: str

    @classmethod
    def of(cls, rung: Rung, candidate: Candidate, least: float) -> LadderStep:
        """The verdict on a rung's best candidate, which must fit with the probability `least` to be taken."""
        taken = candidate.fit.probability >= least
        return cls(rung=rung, candidate=candidate, taken=taken, reason=candidate.fit.reason)

    @property
    def fits(self) -> bool:
        return self.candidate is not None and self.candidate.fit.fits
