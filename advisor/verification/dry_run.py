"""A dry run of a `Run`, put beside the closed form."""

from __future__ import annotations

import contextlib

from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.memory.plan_memory import estimate_memory
from ...estimators.time.step_time import estimate_time
from ...probes.dry_run import DryRunResult
from ...probes.dry_run.step_time import played_step
from ...probes.run import Run
from ..answer.evidence import DryRunAnswer
from .past_dry_runs import dry_run_once


def prove_by_dry_run(
    run: Run,
    *,
    rank: int | None = None,
    iterations: int = 4,
    expandable_segments: bool | None = None,
    fast: bool = False,
) -> DryRunAnswer:
    """Dry-run it, unless that was done before (`past_dry_runs`), and put the closed form beside it.

    expandable_segments: the allocator's setting; None: on where the printed start commands set it (NVIDIA GPUs).

    Raises DsAdviseError for what cannot be run.
    """
    world_size = run.cluster.world_size
    if rank is not None and rank >= world_size:
        raise no_such_rank(rank, world_size)
    if expandable_segments is None:
        expandable_segments = run.cluster.gpu.vendor == "NVIDIA"
    result, age_s = dry_run_once(
        run, rank=rank, iterations=iterations, expandable_segments=expandable_segments, fast=fast
    )
    return beside_closed_form(run, result, age_s)


def beside_closed_form(run: Run, result: DryRunResult, age_s: float | None = None) -> DryRunAnswer:
    """A result beside the closed form for the plan that its configuration, with `auto` filled, describes."""
    step = analytic = analytic_time = None
    with contextlib.suppress(ClusterError):  # no published speed of this GPU: its memory is known all the same
        step = played_step(result, run.cluster, seq_len=run.workload.seq_len)
    plan = run.plan(result.config)
    if plan is not None and run.shape is not None:
        analytic = estimate_memory(run.shape, run.workload, run.cluster, plan)
        with contextlib.suppress(ClusterError):
            analytic_time = estimate_time(run.shape, run.workload, run.cluster, plan)
    return DryRunAnswer(run=run, result=result, analytic=analytic, step=step, analytic_time=analytic_time, age_s=age_s)


def no_such_rank(rank: int, world_size: int) -> WorkloadError:
    return WorkloadError(
        f"there is no rank {rank} among {world_size}",
        why="ranks count from 0",
        fix=f"pass --rank {world_size - 1} or less",
    )
