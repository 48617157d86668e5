"""A dry run as an answer: its result, the closed form beside it, and the verdict."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ...ds_configs.read import plan_from_ds_config
from ...estimators.errors import ClusterError
from ...estimators.estimate import MemoryEstimate, TimeEstimate
from ...estimators.hardware.cluster import Cluster
from ...estimators.memory.plan_memory import estimate_memory
from ...estimators.models.model_shape import ModelShape
from ...estimators.time.step_time import estimate_time
from ...estimators.workload import Workload
from ...probes.dry_run import DryRunResult
from ...probes.dry_run.step_time import step_time
from ..recommend.fit import MARGIN


@dataclass(frozen=True, kw_only=True)
class DryRunAnswer:
    """What a dry run says about a configuration on a cluster.

    analytic: the closed form for the same plan, None for a module of the user's own.
    time:     of a step, from the operations that the run recorded; None where it recorded none, or nothing is known of
              the GPU's speed. analytic_time: the closed form's.
    """

    result: DryRunResult
    cluster: Cluster
    analytic: MemoryEstimate | None
    time: TimeEstimate | None = None
    analytic_time: TimeEstimate | None = None

    @property
    def device_bytes_per_gpu(self) -> int:
        assert self.result.peak.device_bytes_per_gpu is not None, "a dry run on a cluster knows its GPU"
        return self.result.peak.device_bytes_per_gpu

    @property
    def required_device_bytes_per_gpu(self) -> int:
        """Device memory without which it cannot run: cached blocks that the allocator can return are left out."""
        peak = self.result.peak
        return self.device_bytes_per_gpu - peak.reserved_bytes_per_gpu + peak.required_bytes_per_gpu

    @property
    def fits(self) -> bool:
        """What it requires of the device, with the margin, is within what the GPU offers; and the host, where known,
        too."""
        host = self.cluster.host_memory_bytes_per_node
        return self.required_device_bytes_per_gpu * (1 + MARGIN["dry-run"]) <= self.cluster.gpu.memory_bytes and (
            host is None or self.result.peak.host_bytes_per_node <= host
        )

    def to_json(self) -> dict[str, Any]:
        """The result's JSON form without its timeline and operations, with the verdict, the step's time and the closed
        form's figure."""
        result = self.result.to_json()
        del result["timeline"], result["operations"]
        time = self.time
        return {
            **result,
            "fits": self.fits,
            "step_s": None if time is None else time.step_s,
            "tokens_per_s": None if time is None else time.tokens_per_s,
            "step_s_by_component": {} if time is None else time.components,
            "required_device_bytes_per_gpu": self.required_device_bytes_per_gpu,
            "analytic_allocated_bytes_per_gpu": None
            if self.analytic is None
            else self.analytic.allocated_bytes_per_gpu,
        }


def dry_run_answer(
    result: DryRunResult,
    cluster: Cluster,
    model: ModelShape | None,
    workload: Workload,
    *,
    gradient_checkpointing: bool,
) -> DryRunAnswer:
    """Put a result beside the closed form for the plan that its configuration (`auto` filled) describes."""
    time = analytic = analytic_time = None
    with contextlib.suppress(ClusterError):  # no published speed of this GPU: its memory is told all the same
        time = step_time(result, cluster, seq_len=workload.seq_len)
    if model is not None:
        plan = plan_from_ds_config(result.config, model, cluster, gradient_checkpointing=gradient_checkpointing)
        analytic = estimate_memory(model, workload, cluster, plan)
        with contextlib.suppress(ClusterError):
            analytic_time = estimate_time(model, workload, cluster, plan)
    return DryRunAnswer(result=result, cluster=cluster, analytic=analytic, time=time, analytic_time=analytic_time)
