"""The time of a step from a dry run's recorded operations."""

from __future__ import annotations

from typing import Any

from ...estimators.estimate import TimeEstimate
from ...estimators.hardware.cluster import Cluster
from ...estimators.time.recorded_time import recorded_time
from .result import DryRunResult


def step_time(result: DryRunResult, cluster: Cluster, *, seq_len: int) -> TimeEstimate | None:
    """Seconds of one optimizer step on `cluster`, None for a run that recorded no operations (an extrapolated one).

    Assumes that all ranks take as long as the one that was run. Raises ClusterError for a GPU without any published
    rate.
    """
    if not result.operations:
        return None
    config, zero = result.config, result.config.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    offload: dict[str, Any] = {**(zero.get("offload_param") or {}), **(zero.get("offload_optimizer") or {})}
    overlaps = zero.get("overlap_comm")
    last = max(phase.iteration for phase in result.phases)
    step = [phase for phase in result.phases if phase.iteration == last]
    micro_batches = config["gradient_accumulation_steps"]
    return recorded_time(
        result.operations,
        cluster,
        zero_stage=stage,
        micro_batches=micro_batches,
        tokens_per_step=config["train_micro_batch_size_per_gpu"] * micro_batches * result.world_size * seq_len,
        # DeepSpeed 0.19.8 runtime/zero/config.py: on by default for stage 3 alone; offloads are pinned by default.
        overlap_comm=stage == 3 if overlaps is None else overlaps,
        pin_memory=offload.get("pin_memory", True),
        nvme_read_bytes=sum(phase.nvme_read_bytes for phase in step),
        nvme_written_bytes=sum(phase.nvme_written_bytes for phase in step),
    )
