"""A plan that was predicted and judged, and the best of each rung."""

from __future__ import annotations

from dataclasses import dataclass

from ...estimators.estimate import Estimate, MemoryEstimate, TimeEstimate
from ...estimators.job.duration import JobDuration, job_duration
from ...estimators.plan import PlainPyTorch, Plan, Rung
from ..question.question import Question
from .fit import Fit


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan with its estimate and the verdict on it."""

    estimate: Estimate
    fit: Fit
    measured_bytes: int | None = None
    """Device memory that it needs by a probe's measurement; None where no probe measured it."""

    @property
    def plan(self) -> Plan:
        return self.estimate.plan

    @property
    def memory(self) -> MemoryEstimate:
        return self.estimate.memory

    @property
    def time(self) -> TimeEstimate:
        return self.estimate.time

    @property
    def rung(self) -> Rung | PlainPyTorch:
        return self.plan.rung

    @property
    def tokens_per_s(self) -> float:
        return self.time.tokens_per_s

    @property
    def device_bytes(self) -> int:
        """Device memory that it needs, measured or else predicted."""
        return self.memory.device_bytes_per_gpu if self.measured_bytes is None else self.measured_bytes


def duration_of(question: Question, candidate: Candidate) -> JobDuration | None:
    """How long the question's job takes under a plan; None where nobody said how much is trained."""
    if question.job is None:
        return None
    model, workload, cluster = question.model, question.workload, question.cluster
    return job_duration(model, workload, cluster, candidate.plan, candidate.time, question.job)


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
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
