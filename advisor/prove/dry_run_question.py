"""From what a user says on the command line to a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...estimators.errors import WorkloadError
from ...probes.dry_run import dry_run
from ..question.cluster_spec import parse_cluster
from ..question.run import run_question
from .dry_run_answer import DryRunAnswer, dry_run_answer


def ask_dry_run(
    config_file: Path,
    model: str,
    *,
    gpus: str,
    ram: str | None,
    rank: int | None,
    iterations: int,
    expandable_segments: bool,
    fast: bool,
    **settings: Any,
) -> DryRunAnswer:
    """Run it and put the closed form beside it; `settings` are those of `run_question`.

    Raises DsAdviseError for what cannot be run.
    """
    cluster = parse_cluster(gpus, ram=ram)
    if rank is not None and rank >= cluster.world_size:
        raise WorkloadError(
            f"there is no rank {rank} among {cluster.world_size} GPUs",
            why="ranks count from 0",
            fix=f"pass --rank {cluster.world_size - 1} or less",
        )
    asked = run_question(config_file, model, cluster, **settings)
    result = dry_run(
        asked.config,
        asked.description,
        cluster=cluster,
        rank=rank,
        workload=asked.workload,
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        iterations=iterations,
        expandable_segments=expandable_segments,
        input_shape=asked.input_shape,
        fast=fast,
    )
    return dry_run_answer(
        result, cluster, asked.shape, asked.workload, gradient_checkpointing=asked.gradient_checkpointing
    )
