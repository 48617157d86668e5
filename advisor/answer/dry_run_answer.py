"""A dry run compared with the closed form of the same plan, with the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...ds_configs.read import zero_stage_in
from ...estimators.estimate import total_bytes
from ...estimators.json_form import from_attributes, to_json
from ...estimators.memory.batch_independent import INITIALIZE_SHARE
from ...estimators.memory.host_memory import process_terms
from ...estimators.plan import PlainPyTorch, Strategy
from ..search.candidate import Fit, Verdict, dry_run_fit

if TYPE_CHECKING:
    from ...estimators.estimate import MemoryEstimate, TimeEstimate
    from ...estimators.schedule.simulate import SimulatedStep
    from ...probes.recording.result import DryRunResult
    from ...probes.run import Run

STATE_CATEGORIES = ("parameters", "master weights", "optimizer states", "library workspace")
"""Categories of a dry run's memory that stay on the GPU for the whole training."""


@dataclass(frozen=True, kw_only=True)
class DryRunFigures:
    """Figures that an answer adds to the result of a dry run."""

    age_s: float | None
    """Seconds since the dry run; null if it ran for this answer."""
    fits: bool
    fit_probability: float
    assumed_host_bytes: int
    """RAM per node that the verdict assumes, if the RAM is unknown and more than usual is needed; else 0."""
    verdict: Verdict
    step_s: float | None = None
    """Step time simulated from the recorded schedule; null if the GPU's speed is unknown."""
    tokens_per_s: float | None = None
    step_s_by_component: dict[str, float]
    """Parts of the critical path in seconds; the sum is step_s."""
    gpu_busy_s: float | None = None
    links_busy_s: float | None = None
    overlapped_s: float | None = None
    required_device_bytes_per_gpu: int
    required_host_bytes_per_node: int
    analytic_allocated_bytes_per_gpu: int | None
    """Allocated bytes by the closed form for the same plan."""


@dataclass(frozen=True, kw_only=True)
class DryRunAnswer:
    """A dry run of a `Run`, compared with the closed form of the same plan, with the verdict."""

    run: Run
    result: DryRunResult
    analytic: MemoryEstimate | None
    """The closed form for the same plan; None if it does not know the model or the optimizer."""
    step: SimulatedStep | None = None
    """Simulated time of the recorded step; None if the GPU's speed is unknown."""
    analytic_time: TimeEstimate | None = None
    age_s: float | None = None
    """Seconds since the dry run; None if it ran for this answer."""
    generation_bytes: int = 0
    """Device bytes per GPU during generation, by the closed form: a dry run does not generate completions."""

    @property
    def strategy(self) -> Strategy | PlainPyTorch | None:
        """The kind of plan; None for a model or an optimizer without closed form."""
        plan = self.run.plan(self.result.config)
        return None if plan is None else plan.strategy

    @property
    def unit(self) -> str:
        """What a step's rate counts; "" for a module, whose batch is not known in tokens."""
        return "" if self.run.shape is None else self.run.shape.unit

    @property
    def device_bytes_per_gpu(self) -> int:
        assert self.result.peak.device_bytes_per_gpu is not None, "a dry run of a Run knows its GPU"
        return self.result.peak.device_bytes_per_gpu

    @property
    def required_device_bytes_per_gpu(self) -> int:
        """Device memory that the run requires, without cached blocks that the allocator can return."""
        peak = self.result.peak
        trained = self.device_bytes_per_gpu - peak.reserved_bytes_per_gpu + peak.required_bytes_per_gpu
        return max(trained, self.generation_bytes, self.loading_device_bytes_per_gpu)

    @property
    def loading_device_bytes_per_gpu(self) -> int:
        """Device memory before the first iteration. Stages 1 and 2 flatten the weights on the host if the GPU has no
        room for a second copy, so a peak of theirs near the limit is not counted (`INITIALIZE_SHARE`)."""
        result, limit = self.result, INITIALIZE_SHARE * self.run.cluster.gpu.memory_bytes
        peaks = [
            phase.gpu_live_bytes
            if self.flattens and phase.phase == "initialize" and phase.gpu_peak_bytes > limit
            else phase.gpu_peak_bytes
            for phase in result.phases
            if not phase.iteration
        ]
        outside = self.device_bytes_per_gpu - result.peak.reserved_bytes_per_gpu
        return max(peaks, default=0) + result.library_workspace_bytes + outside

    @property
    def flattens(self) -> bool:
        """Whether the peak before the first iteration is the second copy of the weights of stages 1 and 2."""
        phases = {phase.phase: phase.gpu_peak_bytes for phase in self.result.phases if not phase.iteration}
        is_flat = zero_stage_in(self.result.config) in (1, 2)
        return is_flat and phases.get("initialize", 0) > phases.get("load", 0)

    @property
    def required_host_bytes_per_node(self) -> int:
        """Host memory per node: the tensors of the dry run and, as in the closed form, the process of each rank."""
        cluster, tensors = self.run.cluster, self.result.peak.host_bytes_per_node
        if cluster.gpu.is_cpu:
            tensors = cluster.gpus_per_node * self.result.cpu_rank_bytes(loading=True)
        return tensors + total_bytes(process_terms(cluster))

    @cached_property
    def fit(self) -> Fit:
        """The verdict on the required memory."""
        peak = self.result.peak
        states = sum(peak.by_category.get(category, 0) for category in STATE_CATEGORIES)
        return dry_run_fit(
            device_bytes=self.required_device_bytes_per_gpu,
            transient_bytes=peak.allocated_bytes_per_gpu - states,
            host_bytes=self.required_host_bytes_per_node,
            cluster=self.run.cluster,
        )

    def stored_figures(self) -> dict[str, Any]:
        """Return the figures of the verdict, which the store keeps with the result."""
        time = None if self.step is None else self.step.time
        return {
            "device": "cpu" if self.run.cluster.gpu.is_cpu else "cuda",
            "required_device_bytes_per_gpu": self.required_device_bytes_per_gpu,
            "required_host_bytes_per_node": self.required_host_bytes_per_node,
            "gpu_memory_bytes": self.run.cluster.gpu.memory_bytes,
            "step_s": time and time.step_s,
            "tokens_per_s": time and time.tokens_per_s,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the result without timeline and schedule, with the verdict, the step's time and the closed form."""
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
