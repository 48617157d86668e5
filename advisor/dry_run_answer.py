"""A dry run as an answer: its result, the closed form beside it, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ds_configs.read import plan_from_ds_config
from ..estimators.cluster import Cluster
from ..estimators.errors import ConfigFileError
from ..estimators.estimate import MemoryEstimate
from ..estimators.memory import estimate_memory
from ..estimators.model_shape import ModelShape
from ..estimators.workload import Workload
from ..probes.dry_run import DryRunResult
from .fit import MARGIN
from .json_file import read_json_object


@dataclass(frozen=True, kw_only=True)
class DryRunAnswer:
    """What a dry run says about a configuration on a cluster.

    analytic: the closed form for the same plan, None for a module of the user's own.
    """

    result: DryRunResult
    cluster: Cluster
    analytic: MemoryEstimate | None

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
        """What it requires of the device, with the margin, is within what the GPU offers; and the host, where known, too."""
        host = self.cluster.host_memory_bytes_per_node
        return (self.required_device_bytes_per_gpu * (1 + MARGIN["dry-run"]) <= self.cluster.gpu.memory_bytes
                and (host is None or self.result.peak.host_bytes_per_node <= host))

    def to_json(self) -> dict[str, Any]:
        """The result's JSON form without its timeline, with the verdict and the closed form's figure."""
        result = self.result.to_json()
        del result["timeline"]
        return {**result, "fits": self.fits,
                "required_device_bytes_per_gpu": self.required_device_bytes_per_gpu, "analytic_allocated_bytes_per_gpu":
                None if self.analytic is None else self.analytic.allocated_bytes_per_gpu}


def dry_run_answer(result: DryRunResult, cluster: Cluster, model: ModelShape | None, workload: Workload, *,
                   gradient_checkpointing: bool) -> DryRunAnswer:
    """Put a result beside the closed form for the plan that its configuration (`auto` filled) describes."""
    analytic = None
    if model is not None:
        plan = plan_from_ds_config(result.config, model, cluster, gradient_checkpointing=gradient_checkpointing)
        analytic = estimate_memory(model, workload, cluster, plan)
    return DryRunAnswer(result=result, cluster=cluster, analytic=analytic)


def read_ds_config(path: Path) -> dict[str, Any]:
    """A ds_config.json as a dict. Raises ConfigFileError where it cannot be read or holds no JSON object."""
    return read_json_object(path, error=ConfigFileError, what="a ds_config.json",
                            fix="pass a ds_config.json, such as the one that ds-advise MODEL --gpus SPEC writes")
