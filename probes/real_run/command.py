"""`probe_command`: run the first optimizer steps of a user's command on this machine, with all its ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..machine import rank_threads, search_path
from ..run import Device
from ..scratch import scratch
from .environment import Settings, observed_environment
from .result import PhaseReport, ProbeResult, RankReport, StepTime
from .torchrun import free_port, with_launcher
from .watch import OnProgress, WatchedRank, watch

STEPS = 4
"""Number of optimizer steps: the first creates the states; ZeRO-3 prefetches from the third."""

STALL_S = 300.0
"""Time without an event or a line of output, after which the ranks count as hanging."""

_OUTSIDE = ("evaluation", "saving")
"""Phases that are no part of a step's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProbe:
    """A command to probe."""

    words: tuple[str, ...]
    """The command as it is typed behind `--`."""
    folder: Path
    """The user's working folder."""
    ranks: int
    """Ranks of a command without a launcher."""
    device: Device = "cuda"
    steps: int = STEPS
    memory_limit_bytes: int | None = None
    """On the CPU, the memory of each rank in addition to its libraries, in place of a GPU's memory."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """In addition to the user's environment."""


def probe_command(
    probe: CommandProbe,
    *,
    stall_s: float = STALL_S,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _phase: None,
) -> ProbeResult:
    """Start the command as it is, and end it after its first optimizer steps, on every rank. A failure is also a
    result. What the script writes stays, as without the probe; no process of it remains.

    The first trained engine counts the steps. A script that ends before has reported the steps that it made.

    stall_s, timeout_s: time limit without progress, and of the whole.

    Errors: the command has no program.
    """
    started, load = time.monotonic(), os.getloadavg()[0]
    words = with_launcher(probe.words, probe.ranks, folder=probe.folder, port=free_port())
    on_cpu = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if "OMP_NUM_THREADS" not in os.environ:
        on_cpu["OMP_NUM_THREADS"] = str(rank_threads(probe.ranks))
    with scratch("probe") as folder:
        settings = Settings(str(folder), steps=probe.steps, memory_limit_bytes=probe.memory_limit_bytes)
        environment = {**os.environ, "PATH": search_path(), **(on_cpu if probe.device == "cpu" else {})}
        ranks, failure = watch(
            words,
            folder,
            environment=observed_environment(settings, environment | probe.variables),
            working_folder=probe.folder,
            stall_s=stall_s,
            timeout_s=timeout_s,
            on_progress=on_progress,
        )
    reports = [rank.report for rank in ranks if rank.report is not None] if failure is None else []
    first: dict[str, Any] = dict(reports[0]) if reports else {}
    return ProbeResult(
        world_size=first.get("world_size", 0) or probe.ranks,
        device=probe.device,
        solo=False,
        tokens_per_step=_tokens_per_step(ranks, first),
        ranks=tuple(rank_report(rank, probe.device) for rank in ranks if rank.report is not None) if reports else (),
        failure=failure,
        versions=first.get("versions", {}),
        config=first.get("config", {}),
        seconds=time.monotonic() - started,
        load=load,
    )


def _tokens_per_step(ranks: list[WatchedRank], first: Mapping[str, Any]) -> int:
    """Tokens of all ranks in the last optimizer step; samples where the batch has no tokens."""
    steps = [[event["tokens"] for event in rank.events if "tokens" in event] for rank in ranks]
    tokens = sum(each[-1] for each in steps if each)
    config = first.get("config", {})
    samples = config.get("train_micro_batch_size_per_gpu", 0) * config.get("gradient_accumulation_steps", 0)
    return tokens or samples * first.get("data_parallel_size", 0)


def rank_report(rank: WatchedRank, device: Device) -> RankReport:
    """The report of a rank from its events."""
    assert rank.report is not None, "it has reported"
    phases = [
        PhaseReport(iteration=event["step"], phase=name, **figures)
        for event in rank.events
        for name, figures in event.get("phases", {}).items()
    ]
    training = [phase for phase in phases if phase.iteration]
    return RankReport(
        rank=rank.number,
        **rank.report["report"],
        host_loading_peak_bytes=max((phase.host_bytes for phase in phases if not phase.iteration), default=0),
        host_peak_bytes=max((phase.host_bytes for phase in training), default=0),
        allocated_bytes=_highest(training, "allocated_bytes", device),
        reserved_bytes=_highest(training, "reserved_bytes", device),
        steps=_step_times(training, device),
        losses=tuple(event["loss"] for event in rank.events if "loss" in event),
        phases=tuple(phases),
    )


def _highest(phases: list[PhaseReport], name: str, device: Device) -> int | None:
    return max((getattr(phase, name) for phase in phases), default=0) if device == "cuda" else None


def _step_times(phases: list[PhaseReport], device: Device) -> tuple[StepTime, ...]:
    """The times of the optimizer steps except the first."""
    steps: dict[int, dict[str, PhaseReport]] = {}
    for phase in phases:
        if phase.phase not in _OUTSIDE:
            steps.setdefault(phase.iteration, {})[phase.phase] = phase
    whole = [parts for parts in steps.values() if "step" in parts]
    return tuple(_step_time(parts, device) for parts in whole[1:])


def _step_time(parts: Mapping[str, PhaseReport], device: Device) -> StepTime:
    on_cpu = device == "cpu"
    seconds = {name: parts[name].seconds if name in parts else 0.0 for name in ("forward", "backward", "step")}
    return StepTime(
        total_s=sum(phase.seconds for phase in parts.values()),
        forward_s=seconds["forward"],
        backward_s=seconds["backward"],
        optimizer_s=seconds["step"],
        waiting_s=sum(phase.waiting_s for phase in parts.values()) if on_cpu else None,
        optimizer_waiting_s=parts["step"].waiting_s if on_cpu else None,
    )
