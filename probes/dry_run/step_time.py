"""The time of a step from a dry run's recorded schedule."""

from __future__ import annotations

from ...estimators.hardware.cluster import Cluster
from ...estimators.schedule.simulate import PlayedStep, play
from ..recording.result import DryRunResult


def played_step(result: DryRunResult, cluster: Cluster, *, seq_len: int) -> PlayedStep | None:
    """One optimizer step on `cluster` in time, None for a run that recorded no schedule (an extrapolated one).

    Assumes that all ranks take as long as the one that was run. Raises ClusterError for a GPU without any published
    rate.
    """
    if result.schedule is None:
        return None
    config = result.config
    samples = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * result.world_size
    return play(result.schedule, cluster, tokens_per_step=samples * seq_len)
