"""A dry run with the closed form of the same plan, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...estimators.estimate import total_bytes
from ...estimators.json_form import from_attributes, to_json
from ...estimators.memory.host_memory import process_terms
from ..search.candidate import Fit, Verdict, dry_run_fit

if TYPE_CHECKING:
    from ...estimators.estimate import MemoryEstimate, TimeEstimate
    from ...estimators.schedule.simulate import SimulatedStep
    from ...probes.recording.result import DryRunResult
    from ...probes.run import Run

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
