"""A plan with its prediction and the verdict on whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from ...estimators.estimate import Estimate, MemoryEstimate, TimeEstimate
from ...estimators.hardware import Cluster, node_with_ram
from ...estimators.memory.fit_probability import FIT_THRESHOLD as FIT_THRESHOLD
from ...estimators.memory.fit_probability import (
    dry_run_fit_probability,
    fit_probability,
    host_bytes_to_fit,
    host_fit_probability,
)
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import PlainPyTorch, Plan, Strategy
from ...estimators.time.job import JobDuration, job_duration
from ...estimators.time.step_time import estimate_plan
from ...estimators.workload import Workload
from ..question.options import Risk
from ..question.question import Question
from ..text.labels import checkpointing_label
from ..text.units import gib, percent, size, times, whole_gib

Verdict = Literal["fits", "likely fits", "unlikely", "does not fit"]

LIKELY = 0.5
"""Least probability for the verdict "likely fits"; `FIT_THRESHOLD` is the least for "fits"."""

LEAST: dict[Risk, float] = {"safe": FIT_THRESHOLD, "balanced": 0.8, "bold": LIKELY}
"""Least probability of fitting of a recommended plan, by risk."""

_JUST_TOO_LARGE = 1.01
"""Utilization assigned to a plan that was predicted to fit and did not."""

RAN_OUT, NEEDS_MORE, FAILED = "ran out of memory", "needs even more", "failed"
"""Reasons from probes: the plan ran out of memory, needs more than one that did, or failed for another reason."""

IF_RAM_ALLOWS = "if RAM allows"
"""Reason for a plan that fits the GPU and needs more RAM than `usual_host_bytes_per_node` if the RAM is unknown."""

NEEDS_RAM = "needs --ram"
"""Reason for a plan that needs more than `MOST_HOST_BYTES` if no limit of the RAM is known."""


NEEDS_RAM_AND_NVME = "needs RAM, --nvme"
"""Reason for a plan that needs a drive, and more RAM than the known limit."""


class Fit(NamedTuple):
    """The verdict on one plan."""

    probability: float
    """Probability from 0 to 1 that every bounded requirement is met."""
    gpu_probability: float
    """Probability that the GPU's memory suffices, regardless of host and NVMe."""
    reason: str
    """A short phrase for a table ("needs 1.2 x VRAM", "likely fits, 84 %", "fits")."""
    utilization: float
    """Largest ratio of need to available amount over GPU, host and NVMe."""
    limit: str
    """The first of "gpu", "host", "nvme" that is or may be exceeded; "" if the plan fits."""
    assumed_host_bytes: int = 0
    """RAM per node that the verdict assumes: the plan's need and its error (`host_bytes_to_fit`), if the RAM is unknown
    and this exceeds `usual_host_bytes_per_node`; else 0."""

    @property
    def fits(self) -> bool:
        return self.probability >= FIT_THRESHOLD

    @property
    def gpu_suffices(self) -> bool:
        """Whether the plan fits the GPU, regardless of host and NVMe."""
        return self.gpu_probability >= FIT_THRESHOLD

    @property
    def gpu_likely_suffices(self) -> bool:
        """Whether the plan likely fits the GPU, regardless of host and NVMe."""
        return self.gpu_probability >= LIKELY

    @property
    def verdict(self) -> Verdict:
        return fit_verdict(self.probability)


def fit_verdict(probability: float) -> Verdict:
    """Return the verdict for a probability of fitting: "does not fit" below 1 - `FIT_THRESHOLD`."""
    if probability >= LIKELY:
        return "fits" if probability >= FIT_THRESHOLD else "likely fits"
    return "unlikely" if probability >= 1 - FIT_THRESHOLD else "does not fit"


def judge_fit(memory: MemoryEstimate, cluster: Cluster, plan: Plan | None = None) -> Fit:
    """Compare a plan's predicted needs with the cluster. plan: one that swaps to NVMe needs a folder even if all of its
    tensors are too small to be swapped; None for a configuration, which names its own.

    The GPU is judged on device memory (never on allocated or reserved memory). The probability is the smaller of those
    of GPU and host memory. Unknown host memory counts as `most_host_bytes_per_node`. NVMe is compared without an error
    margin, and must be named by the user, since DeepSpeed cannot be configured without its path.
    """
    nvme = cluster.nvme_bytes_per_node
    disk = _share(memory.nvme_bytes_per_node, nvme or None)
    host_bytes = memory.host_bytes_per_node
    on_gpu = _on_gpu(fit_probability(memory, cluster), memory.device_bytes_per_gpu, host_bytes, disk, cluster)
    # The GPU is named first: more RAM or NVMe would not help such a plan.
    if on_gpu.probability < LIKELY:
        return on_gpu
    swaps = bool(memory.nvme_bytes_per_node) or (plan is not None and plan.swaps)
    fit, is_unnamed = _on_host(on_gpu, host_bytes, cluster), swaps and not nvme
    if not fit.probability:
        lacks = f"{NEEDS_RAM}, --nvme" if cluster.ram_limit_bytes is None else NEEDS_RAM_AND_NVME
        return fit._replace(reason=lacks) if is_unnamed else fit
    refused = on_gpu._replace(probability=0.0, limit="nvme")
    if is_unnamed:
        return refused._replace(reason="needs --nvme", utilization=max(on_gpu.utilization, 1.0))
    if disk > 1:
        return refused._replace(reason=f"needs {times(disk)} NVMe")
    return fit


def dry_run_fit(*, device_bytes: int, transient_bytes: int, host_bytes: int, cluster: Cluster) -> Fit:
    """Compare the needs measured by a dry run with the cluster, as `judge_fit` does with predicted ones. A dry run sees
    the tensors in host memory; the processes around them are predicted. transient_bytes: the part of device_bytes that
    is not held for the whole training."""
    probability = dry_run_fit_probability(device_bytes, transient_bytes, cluster)
    on_gpu = _on_gpu(probability, device_bytes, host_bytes, 0.0, cluster)
    return on_gpu if on_gpu.probability < LIKELY else _on_host(on_gpu, host_bytes, cluster)


def _on_gpu(probability: float, need_bytes: int, host_bytes: int, disk: float, cluster: Cluster) -> Fit:
    """Return the verdict on the GPU alone. disk: utilization of NVMe."""
    share, host = need_bytes / cluster.gpu.memory_bytes, _share(host_bytes, cluster.most_host_bytes_per_node)
    is_counted = cluster.host_memory_bytes_per_node or host > 1
    utilization = max(share, host if is_counted else 0.0, disk)
    if probability >= FIT_THRESHOLD:
        return Fit(probability, probability, reason="fits", utilization=utilization, limit="")
    reason = f"{fit_verdict(probability)}, {chance(probability)}"
    if probability < LIKELY and share > 1:
        reason = _lacking(need_bytes, cluster.gpu.memory_bytes, "limit" if cluster.gpu.is_cpu else "VRAM")
    return Fit(probability, probability, reason=reason, utilization=utilization, limit="gpu")


def _on_host(on_gpu: Fit, need_bytes: int, cluster: Cluster) -> Fit:
    """Return the verdict on the host's RAM too, for a plan that may fit the GPU: 0 without room for the need, a
    condition on a RAM that is unknown and above the usual one, or the probability that it suffices."""
    limit = cluster.ram_limit_bytes
    if need_bytes > cluster.most_host_bytes_per_node:
        reason = NEEDS_RAM if limit is None else _lacking(need_bytes, limit, "RAM")
        return on_gpu._replace(probability=0.0, reason=reason, limit="host")
    needed = host_bytes_to_fit(need_bytes)
    if cluster.host_memory_bytes_per_node is None and cluster.usual_host_bytes_per_node < needed <= (limit or needed):
        conditional = on_gpu._replace(assumed_host_bytes=needed)
        return conditional._replace(reason=IF_RAM_ALLOWS) if on_gpu.fits else conditional
    # On the CPU, the ranks' memory is that of the host: the probability on the GPU has its error.
    if limit is None or needed <= limit or cluster.gpu.is_cpu:
        return on_gpu
    probability = min(on_gpu.probability, host_fit_probability(need_bytes, limit))
    reason = f"{fit_verdict(probability)}, {chance(probability)}"
    return on_gpu._replace(probability=probability, reason=reason, limit=on_gpu.limit or "host")


def _lacking(need_bytes: int, have_bytes: int, title: str) -> str:
    """Return `needs 1.34 x RAM`; for a ratio that is shown as 1, what is missing."""
    ratio = times(need_bytes / have_bytes)
    missing = need_bytes - have_bytes
    return f"needs {ratio} {title}" if ratio != times(1.0) else f"needs {size(missing)} more {title}"


def _share(need: int, offer: int | None) -> float:
    return need / offer if offer else 0.0


def lacking(limits: Collection[str]) -> str:
    """Return `more RAM or NVMe`: what plans with these limits lack besides GPU memory; "" for nothing."""
    return " or ".join(title for limit, title in (("host", "more RAM"), ("nvme", "NVMe")) if limit in limits)


def chance(probability: float) -> str:
    """Return `84 %`, never rounded to 0 or 100 %."""
    if probability <= 0.005:
        return "under 1 %"
    return "over 99 %" if probability >= 0.995 else percent(probability)


def fits_sentence(plan: str, fit: Fit) -> str:
    """Return `ZeRO-3 fits.`, `ZeRO-3 probably fits (84 %).`, `ZeRO-3 is unlikely to fit (3 %).` or `ZeRO-3 does not
    fit.`

    A condition is added: `ZeRO-3 fits if the host has 353 GiB of RAM.`
    """
    text = {
        "fits": f"{plan} fits",
        "likely fits": f"{plan} probably fits ({chance(fit.probability)})",
        "unlikely": f"{plan} is unlikely to fit ({chance(fit.probability)})",
        "does not fit": f"{plan} does not fit",
    }[fit.verdict]
    return f"{text}{ram_condition(fit)}."


def ram_condition(fit: Fit) -> str:
    """Return ` if the host has 353 GiB of RAM`; "" for a verdict without a condition."""
    return f" if the host has {whole_gib(fit.assumed_host_bytes):,} GiB of RAM" if fit.assumed_host_bytes else ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Candidate:
    """One plan with its estimate and verdict."""

    plan: Plan
    memory: MemoryEstimate
    fit: Fit
    make_estimate: Callable[[], Estimate] = field(repr=False, compare=False)
    """Function called on first use of `estimate`: most plans that do not fit never need their time."""
    measured_bytes: int | None = None
    """Device memory measured by a probe, or by a dry run of a command or of keys that are not predicted; None without
    one."""
    measured_host_bytes: int | None = None
    """Host memory per node measured by a dry run of a command; None without one."""

    def __repr__(self) -> str:
        return f"<Candidate: {plan_words(self.plan)}: {gib(self.device_bytes)} GiB per GPU, {self.fit.reason}>"

    @classmethod
    def from_estimate(cls, estimate: Estimate, fit: Fit, *, measured_bytes: int | None = None) -> Candidate:
        """Return the candidate of a complete estimate."""
        return cls(
            plan=estimate.plan,
            memory=estimate.memory,
            fit=fit,
            make_estimate=lambda: estimate,
            measured_bytes=measured_bytes,
        )

    def replace_estimate(self, estimate: Estimate) -> Candidate:
        """Return the candidate with another estimate and the same verdict."""
        return replace(self, memory=estimate.memory, make_estimate=lambda: estimate)

    def refused(self, reason: str) -> Candidate:
        """Return the candidate as one that does not fit, for a reason of its run."""
        utilization = max(self.fit.utilization, _JUST_TOO_LARGE)
        fit = Fit(probability=0.0, gpu_probability=0.0, reason=reason, limit="gpu", utilization=utilization)
        return replace(self, fit=fit)

    @cached_property
    def estimate(self) -> Estimate:
        return self.make_estimate()

    @property
    def time(self) -> TimeEstimate:
        return self.estimate.time

    @property
    def strategy(self) -> Strategy | PlainPyTorch:
        return self.plan.strategy

    @cached_property
    def tokens_per_s(self) -> float:
        return self.time.tokens_per_s

    def node(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the host that is assumed for the plan's RAM."""
        return node_with_ram(cluster, self.ram_to_fit)

    @property
    def ram_to_fit(self) -> int:
        """RAM of a node in bytes with which the plan fits."""
        return host_bytes_to_fit(self.memory.host_bytes_per_node)

    @property
    def device_bytes(self) -> int:
        """Required device memory: measured, or else predicted."""
        return self.memory.device_bytes_per_gpu if self.measured_bytes is None else self.measured_bytes

    @property
    def host_bytes(self) -> int:
        """Required host memory per node: measured, or else predicted."""
        return self.memory.host_bytes_per_node if self.measured_host_bytes is None else self.measured_host_bytes


def plan_words(plan: Plan) -> str:
    """Return `zero2, micro batch 4 x 8, checkpointing on`."""
    batch = f"micro batch {plan.micro_batch_size} x {plan.gradient_accumulation_steps}"
    return f"{plan.strategy}, {batch}, checkpointing {checkpointing_label(plan)}"


def predict(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Candidate:
    """Return the candidate of one plan."""
    estimate = estimate_plan(model, workload, cluster, plan)
    return Candidate.from_estimate(estimate, judge_fit(estimate.memory, cluster, plan))


def candidate_duration(question: Question, candidate: Candidate) -> JobDuration | None:
    """Return the duration of the question's job under a plan; None for a question without a job."""
    if question.job is None:
        return None
    model, workload, cluster = question.model, question.workload, question.cluster
    return job_duration(model, workload, cluster, candidate.plan, candidate.time, question.job)


class LadderStep(NamedTuple):
    """A strategy with its best candidate, or the obstacle to running it (`candidate` is None)."""

    strategy: Strategy
    candidate: Candidate | None
    taken: bool
    """Whether the candidate fits with the probability that the question's risk requires."""
    reason: str

    def __repr__(self) -> str:
        return (
            f"<LadderStep {self.strategy}: {self.reason}>"
            if self.candidate is None
            else f"<LadderStep {self.candidate!r}>"
        )

    @classmethod
    def from_candidate(cls, strategy: Strategy, candidate: Candidate, least: float) -> LadderStep:
        """Return the step of a strategy. least: the probability of fitting required for `taken`."""
        return cls(strategy, candidate, candidate.fit.probability >= least, candidate.fit.reason)

    @property
    def fits(self) -> bool:
        return self.candidate is not None and self.candidate.fit.fits
