"""The answer: every rung's best plan, the fastest that fits, and its evidence: dry runs and probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...estimators.estimate import total_bytes
from ...estimators.json_form import from_attributes, to_json
from ...estimators.memory.host_memory import process_terms
from ..question.question import Question
from ..search.candidate import Candidate, Fit, LadderStep, Verdict, dry_run_fit

if TYPE_CHECKING:
    from ...ds_configs.jobs.files import JobFile
    from ...estimators.estimate import MemoryEstimate, TimeEstimate
    from ...estimators.schedule.simulate import SimulatedStep
    from ...probes.dry_run import DryRunResult
    from ...probes.real_run.result import ProbeResult
    from ...probes.run import Run
    from ..search.rollouts import RolloutOutcome

STATE_CATEGORIES = ("parameters", "master weights", "optimizer states", "library workspace")
"""What stays on the GPU for the whole training, among the categories of a dry run's memory."""


@dataclass(frozen=True, kw_only=True)
class DryRunFigures:
    """What an answer adds to a dry run's own result."""

    age_s: float | None
    """How long ago it was run; null: for this answer."""
    fits: bool
    fit_probability: float
    verdict: Verdict
    step_s: float | None = None
    """By the recorded schedule; null where the GPU's speed is unknown."""
    tokens_per_s: float | None = None
    step_s_by_component: dict[str, float]
    """Parts of the critical path, which add up to step_s."""
    gpu_busy_s: float | None = None
    links_busy_s: float | None = None
    overlapped_s: float | None = None
    required_device_bytes_per_gpu: int
    required_host_bytes_per_node: int
    analytic_allocated_bytes_per_gpu: int | None
    """The closed form's figure for the same plan."""


@dataclass(frozen=True, kw_only=True)
class DryRunAnswer:
    """A dry run of a `Run`, with the closed form of the same plan, and the verdict."""

    run: Run
    result: DryRunResult
    analytic: MemoryEstimate | None
    """The closed form for the same plan; None for a model or an optimizer that it does not know."""
    step: SimulatedStep | None = None
    """The recorded step in time; None where nothing is known of the GPU's speed."""
    analytic_time: TimeEstimate | None = None
    age_s: float | None = None
    """How long ago it was run; None where it ran for this answer."""
    generation_bytes: int = 0
    """Device bytes of a GPU while completions are generated, by the closed form: a dry run generates none."""

    @property
    def device_bytes_per_gpu(self) -> int:
        assert self.result.peak.device_bytes_per_gpu is not None, "a dry run of a Run knows its GPU"
        return self.result.peak.device_bytes_per_gpu

    @property
    def required_device_bytes_per_gpu(self) -> int:
        """Device memory without which it cannot run: cached blocks that the allocator can return are left out."""
        peak = self.result.peak
        trained = self.device_bytes_per_gpu - peak.reserved_bytes_per_gpu + peak.required_bytes_per_gpu
        return max(trained, self.generation_bytes)

    @property
    def required_host_bytes_per_node(self) -> int:
        """Host memory of a node: the tensors of the dry run and, as in the closed form, each rank's own process."""
        cluster, peak = self.run.cluster, self.result.peak
        own_bytes = cluster.gpus_per_node * self.device_bytes_per_gpu if cluster.gpu.is_cpu else 0
        return peak.host_bytes_per_node + total_bytes(process_terms(cluster)) + own_bytes

    @cached_property
    def fit(self) -> Fit:
        """The verdict on what is required."""
        peak = self.result.peak
        states = sum(peak.by_category.get(category, 0) for category in STATE_CATEGORIES)
        return dry_run_fit(
            device_bytes=self.required_device_bytes_per_gpu,
            transient_bytes=peak.allocated_bytes_per_gpu - states,
            host_bytes=self.required_host_bytes_per_node,
            cluster=self.run.cluster,
        )

    def to_json(self) -> dict[str, Any]:
        """The result without its timeline and schedule, with the verdict, the step's time and the closed form."""
        result = replace(self.result, schedule=None, timeline=()).to_json()
        del result["timeline"], result["schedule"]
        step = self.step
        figures = from_attributes(
            DryRunFigures,
            self,
            self.fit,
            step,
            None if step is None else step.time,
            fit_probability=self.fit.probability,
            step_s_by_component={} if step is None else step.time.components,
            analytic_allocated_bytes_per_gpu=self.analytic and self.analytic.allocated_bytes_per_gpu,
        )
        return {**result, **to_json(figures)}


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A candidate and the dry run of its configuration."""

    candidate: Candidate
    dry_run: DryRunAnswer


@dataclass(frozen=True, kw_only=True)
class ProbedPlan:
    """A candidate that was probed on this machine: why it was chosen, and what happened."""

    candidate: Candidate
    reason: str
    result: ProbeResult
    age_s: float | None = None
    """How long ago it ran; None where it ran for this answer."""


SeriesEnd = Literal["settled", "budget", "interrupted"]
"""Why a series of probes ended: nothing that is left could be faster by more than the search resolves; the time was
over; Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class ProbeSeries:
    """All probes of one answer in their order; those of earlier times come first."""

    probes: tuple[ProbedPlan, ...]
    ended: SeriesEnd
    bound: int
    """No series over these candidates takes more probes of its own."""
    candidates: int

    @property
    def runs(self) -> int:
        """How many were run for this answer."""
        return sum(probe.age_s is None for probe in self.probes)

    @property
    def best(self) -> ProbedPlan | None:
        """The fastest that ran."""
        ran = [probe for probe in self.probes if probe.result.failure is None]
        return max(ran, key=lambda probe: probe.result.tokens_per_s, default=None)


if TYPE_CHECKING:
    from ...validate.deepspeed_estimate import DeepSpeedEstimate


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that would change the answer."""

    flags: str
    """The arguments to add or replace (`--method lora`)."""
    outcome: str
    """What the answer would then be."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer to a question."""

    question: Question
    candidates: tuple[Candidate, ...]
    """All that were predicted; the ladder holds the best of each rung."""
    ladder: tuple[LadderStep, ...]
    recommended: Candidate | None
    """The fastest that fits as surely as the question's risk asks, or None."""
    reasons: tuple[str, ...]
    """Sentences that say why."""
    doubts: tuple[str, ...]
    """Sentences on what might make another plan the fastest."""
    assumptions: tuple[str, ...]
    """Assumptions of the figures, a phrase each."""
    without_loss: Candidate | None = None
    """The best plan, or the closest, with the training backend's own loss, where the search turned another on."""
    other_rollouts: tuple[RolloutOutcome, ...] = ()
    """What else could generate the completions, where the search chose."""
    changes: tuple[Change, ...] = ()
    """What would change the answer."""
    pytorch_baseline: Candidate | None = None
    """Plain PyTorch's best plan, for comparison; it is no DeepSpeed configuration, and never the recommended one."""
    try_first: Candidate | None = None
    """A plan that is only likely to fit, and much faster; None where there is none."""
    deepspeed_estimate: DeepSpeedEstimate | None = None
    """DeepSpeed's own estimate for the same plan; None where it was not asked for."""
    verifications: tuple[Verification, ...] = ()
    """The dry runs; the last one decided."""
    past_probes: tuple[ProbedPlan, ...] = ()
    """Probes of some candidates that were made before on this machine; the candidates are corrected by them."""
    probe_series: ProbeSeries | None = None
    """The probes that settled the recommendation; None where none were asked for."""
    files: tuple[str, ...] = ()
    """The files that were written for it."""
    job_files: tuple[JobFile, ...] = ()
    """Those among them that start it."""


def try_first_path(destination: Path) -> Path:
    """The file for the configuration of the plan to try first, next to the other one."""
    return destination.with_stem(f"{destination.stem}_try_first")


def closest(ladder: Sequence[LadderStep]) -> Candidate | None:
    """The candidate that misses by least, None where no rung has any."""
    return min(
        (step.candidate for step in ladder if step.candidate is not None),
        key=lambda candidate: candidate.fit.utilization,
        default=None,
    )
