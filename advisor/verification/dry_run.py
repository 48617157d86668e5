"""A dry run of a `Run`, compared with the closed form; and its timeline, memory and the lanes of one step, for a trace
viewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.estimate import MemoryEstimate
from ...estimators.memory.plan_memory import estimate_memory
from ...estimators.schedule.simulate import SimulatedStep
from ...estimators.time.step_time import estimate_time
from ...probes.dry_run.run import simulated_step
from ...probes.recording.result import DryRunResult, TimelinePoint
from ...probes.run import Run
from ...probes.worker_process import OnProgress
from ..answer.dry_run_answer import DryRunAnswer
from .past_results import dry_run_once


def compared_dry_run(
    run: Run,
    *,
    rank: int | None = None,
    iterations: int = 4,
    expandable_segments: bool | None = None,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _phase: None,
) -> DryRunAnswer:
    """Return a dry run, or its earlier result (`past_results`), with the closed form.

    expandable_segments: the allocator's setting; None enables it for NVIDIA GPUs, like the printed start commands.
    Raises DsAdviseError for a run that is impossible.
    """
    world_size = run.cluster.world_size
    if rank is not None and rank >= world_size:
        raise no_such_rank(rank, world_size)
    if expandable_segments is None:
        expandable_segments = run.cluster.gpu.vendor == "NVIDIA"
    result, age_s = dry_run_once(
        run,
        figures=lambda result: compare_with_closed_form(run, result).stored_figures(),
        rank=rank,
        iterations=iterations,
        expandable_segments=expandable_segments,
        timeout_s=timeout_s,
        on_progress=on_progress,
    )
    return compare_with_closed_form(run, result, age_s)


def compare_with_closed_form(run: Run, result: DryRunResult, age_s: float | None = None) -> DryRunAnswer:
    """Return a result with the closed form for the plan of its configuration, with `auto` filled."""
    step = analytic = analytic_time = None
    generation_bytes = 0
    with suppress(ClusterError):  # memory is known even if the GPU's speed is not
        step = simulated_step(result, run.cluster, seq_len=run.workload.seq_len)
    plan = run.plan(result.config)
    if plan is not None and run.shape is not None:
        analytic = estimate_memory(run.shape, run.workload, run.cluster, plan)
        if run.workload.rollouts is not None:
            analytic, generation_bytes = _without_generation(analytic)
        with suppress(ClusterError):
            analytic_time = estimate_time(run.shape, run.workload, run.cluster, plan)
    return DryRunAnswer(
        run=run,
        result=result,
        analytic=analytic,
        step=step,
        analytic_time=analytic_time,
        age_s=age_s,
        generation_bytes=generation_bytes,
    )


def _without_generation(memory: MemoryEstimate) -> tuple[MemoryEstimate, int]:
    """Return (the estimate without rollout phases, device bytes of the largest rollout): a dry run does not
    generate."""
    rollouts = [phase for phase in memory.phases if phase.name.startswith("rollout")]
    others = tuple(phase for phase in memory.phases if phase not in rollouts)
    # Overheads outside the allocated bytes are the same in every phase.
    beyond = memory.device_bytes_per_gpu - memory.allocated_bytes_per_gpu
    largest = max((phase.allocated_bytes for phase in rollouts), default=0)
    return replace(memory, phases=others), largest + beyond if rollouts else 0


def no_such_rank(rank: int, world_size: int) -> WorkloadError:
    what = f"rank {rank} does not exist among {world_size} ranks"
    return WorkloadError(what, why="ranks start at 0", fix=f"pass --rank {world_size - 1} or less")


def trace(answer: DryRunAnswer) -> dict[str, Any]:
    """Return the run in Chrome's trace event format, which Perfetto and chrome://tracing open, as two processes.

    Memory: one event of the run (an allocation or a free) takes a microsecond on the axis, so the order is real and the
    duration is not. Counters are bytes; spans are iterations and phases. Time: the last step, simulated from its
    schedule, in simulated microseconds; the threads are the host thread, the GPU's streams, the links, the copies and
    the drive.
    """
    result = answer.result
    points = result.timeline
    end = points[-1].event + 1
    events: list[dict[str, Any]] = [
        _named(1, f"memory of rank {result.rank} (of {result.world_size})"),
        _named(1, "iterations", thread=1),
        _named(1, "phases", thread=2),
        *_spans(points, end, 1, lambda point: f"iteration {point.iteration}" if point.iteration else "before training"),
        *_spans(points, end, 2, lambda point: point.phase),
    ]
    categories = dict.fromkeys(name for point in points for name in point.by_category)
    for point in points:
        counters = {
            "GPU allocated": {"bytes": point.gpu_bytes},
            "GPU by purpose": {name: point.by_category.get(name, 0) for name in categories},
            "host": {"pinned": point.host_pinned_bytes, "pageable": point.host_bytes - point.host_pinned_bytes},
        }
        events += (
            {"ph": "C", "pid": 1, "name": name, "ts": point.event, "args": values} for name, values in counters.items()
        )
    if answer.step is not None:
        events += _lanes(answer.step)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "time axis of memory": "one allocation or free is one microsecond: the order is exact, durations are not",
            "time axis of the step": "microseconds, simulated from the recorded schedule",
            "unit of the counters": "bytes of tensors of one rank, the highest of each stretch of the run",
            "peak allocated bytes": result.peak.allocated_bytes_per_gpu,
            "versions": result.versions,
        },
    }


def _lanes(step: SimulatedStep) -> list[dict[str, Any]]:
    """Return the spans of a simulated step: a thread for the host, and one for each stream and resource."""
    events = [_named(2, f"one step, {step.time.step_s:.3f} s"), _named(2, "host", thread=0)]
    events += [
        _span(2, 0, stretch.name or "waits for the GPU", stretch.begins_s * 1e6, stretch.ends_s * 1e6)
        for stretch in step.host
    ]
    threads: dict[tuple[int, str], int] = {}
    for span in step.spans:
        lane = (span.stream, span.lane)
        if lane not in threads:
            threads[lane] = len(threads) + 1
            events.append(_named(2, f"stream {span.stream}: {span.lane}", thread=threads[lane]))
        operation = step.schedule.operations[span.operation]
        event = _span(2, threads[lane], step.names[span.operation], span.begins_s * 1e6, span.ends_s * 1e6)
        events.append(event | {"args": {"operation": operation.name, "bytes": operation.size_bytes}})
    return events


def _named(process: int, name: str, thread: int | None = None) -> dict[str, Any]:
    kind = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
    return {"ph": "M", "pid": process, "args": {"name": name}, **kind}


def _span(process: int, thread: int, name: str, begins: float, ends: float) -> dict[str, Any]:
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": begins, "dur": ends - begins}


def _spans(
    points: Sequence[TimelinePoint], end: int, thread: int, name_of: Callable[[TimelinePoint], str]
) -> list[dict[str, Any]]:
    starts = [(name, next(own).begins) for name, own in groupby(points, key=name_of)]
    ends = [begins for _, begins in starts[1:]] + [end]
    return [_span(1, thread, name, begins, until) for (name, begins), until in zip(starts, ends, strict=True)]
