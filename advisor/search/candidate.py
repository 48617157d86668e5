"""Does a plan fit? Device memory, host memory and NVMe against what the cluster has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from ...estimators.estimate import Estimate, MemoryEstimate, TimeEstimate
from ...estimators.hardware.cluster import Cluster
from ...estimators.memory.fit_probability import dry_run_fit_probability, fit_probability
from ...estimators.phrase import Phrase, phrase
from ...estimators.plan import PlainPyTorch, Plan, Rung
from ...estimators.time.duration import JobDuration, job_duration
from ...estimators.workload import Workload
from ..question.question import Question, Risk
from ..text.units import percent, times

Verdict = Literal["fits", "likely fits", "unlikely", "does not fit"]

SURE, LIKELY = 0.975, 0.5
"""The least probabilities of a plan that "fits" and of one that "likely fits". What fails once in forty times is called
sure: the published runs do not resolve more."""

LEAST: dict[Risk, float] = {"safe": SURE, "balanced": 0.8, "bold": LIKELY}
"""The least probability of fitting that a plan must have to be recommended."""

MOST_HOST_BYTES = 8 * 2**40
"""The most RAM that a node is taken to have where nobody says how much: two sockets with 16 modules of 256 GB each
(servethehome.com's review of Supermicro's AS-1024US-TRT; newer servers of two sockets have as many slots)."""

RAN_OUT, NEEDS_MORE, FAILED = phrase("ran out of memory"), phrase("needs more yet"), phrase("failed")
"""The reasons against a plan that ran out of memory in a probe, against one that needs more than it, and against one
whose probe failed for another reason."""


class Fit(NamedTuple):
    """The verdict on one plan."""

    probability: float
    """That every requirement which is known to be bounded is met, from 0 to 1."""
    reason: str
    """A short phrase for a table ("1.2 x the GPU", "likely fits, 84 %", "fits")."""
    utilization: float
    """The largest of need / offer over GPU, host and NVMe."""
    limit: str
    """What is, or may be, exceeded: "gpu", "host", "nvme" (the first of them), or "" where it fits."""

    @property
    def fits(self) -> bool:
        return self.probability >= SURE

    @property
    def gpu_likely_suffices(self) -> bool:
        """Whether the plan likely fits the GPU, whatever it lacks besides."""
        return self.limit != "gpu" or self.probability >= LIKELY

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.probability)


_VERDICTS = {
    "likely fits": phrase("likely fits"),
    "unlikely": phrase("unlikely"),
    "does not fit": phrase("does not fit"),
}


def verdict_of(probability: float) -> Verdict:
    """The word for a probability of fitting; what is as improbable as a sure plan's failure "does not fit"."""
    if probability >= LIKELY:
        return "fits" if probability >= SURE else "likely fits"
    return "unlikely" if probability >= 1 - SURE else "does not fit"


def fit_of(memory: MemoryEstimate, cluster: Cluster, workload: Workload) -> Fit:
    """Compare a plan's needs, by the closed form, with the cluster.

    The GPU is judged on device memory (never on allocated or reserved). Host memory and NVMe are taken as predicted;
    where they are not known they are requirements of the plan, not reasons against it, except that NVMe that nobody
    named cannot be configured, and that no host has more than `MOST_HOST_BYTES`.
    """
    known = cluster.host_memory_bytes_per_node
    host = _share(memory.host_bytes_per_node, known)
    reason = phrase("{ratio} the RAM", ratio=times(host))
    if known is None and memory.host_bytes_per_node > MOST_HOST_BYTES:
        host = memory.host_bytes_per_node / MOST_HOST_BYTES
        reason = phrase("{ratio} any RAM", ratio=times(host))
    disk = _share(memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node or None)
    probability = fit_probability(memory, cluster, workload)
    on_gpu = _on_gpu(probability, memory.device_bytes_per_gpu, cluster, max(host, disk))
    utilization = on_gpu.utilization
    if on_gpu.probability < LIKELY:
        return on_gpu
    if host > 1:
        return Fit(probability=0.0, reason=reason, utilization=utilization, limit="host")
    if memory.nvme_bytes_per_node and not cluster.nvme_bytes_per_node:
        return Fit(probability=0.0, reason=phrase("needs --nvme"), utilization=max(utilization, 1.0), limit="nvme")
    if disk > 1:
        return Fit(
            probability=0.0, reason=phrase("{ratio} the NVMe", ratio=times(disk)), utilization=utilization, limit="nvme"
        )
    return on_gpu


def dry_run_fit(*, device_bytes: int, transient_bytes: int, host_bytes: int, cluster: Cluster) -> Fit:
    """Compare what a dry run needs of each GPU, of which some comes and goes, and of the host with the cluster."""
    host = _share(host_bytes, cluster.host_memory_bytes_per_node)
    if host > 1:
        return Fit(probability=0.0, reason=phrase("{ratio} the RAM", ratio=times(host)), utilization=host, limit="host")
    return _on_gpu(dry_run_fit_probability(device_bytes, transient_bytes, cluster), device_bytes, cluster, host)


def _on_gpu(probability: float, need_bytes: int, cluster: Cluster, others: float) -> Fit:
    """The verdict on the GPU alone; `others` is the utilization of what else is bounded."""
    share = need_bytes / cluster.gpu.memory_bytes
    utilization = max(share, others)
    if probability >= SURE:
        return Fit(probability=probability, reason=phrase("fits"), utilization=utilization, limit="")
    reason = _VERDICTS[verdict_of(probability)]
    reason = phrase("{verdict}, {chance}", verdict=reason, chance=chance(probability))
    if probability < LIKELY and share > 1:
        ratio = times(share)
        reason = (
            phrase("{ratio} the limit", ratio=ratio) if cluster.gpu.is_cpu else phrase("{ratio} the GPU", ratio=ratio)
        )
    return Fit(probability=probability, reason=reason, utilization=utilization, limit="gpu")


def chance(probability: float) -> str:
    """`84 %`; what rounds to none or all of it stays below or above."""
    if probability <= 0.005:
        return phrase("under 1 %")
    return phrase("over 99 %") if probability >= 0.995 else percent(probability)


def fits_sentence(plan: str, fit: Fit) -> Phrase:
    """`ZeRO-3 fits.`, or `ZeRO-3 probably fits (84 %).` of a plan that is to be taken."""
    if fit.fits:
        return phrase("{plan} fits.", plan=plan)
    return phrase("{plan} probably fits ({chance}).", plan=plan, chance=chance(fit.probability))


def _share(need: int, offer: int | None) -> float:
    return need / offer if offer else 0.0


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
