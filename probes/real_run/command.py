"""`probe_command`: run the first optimizer steps of a user's command on this machine, with all its ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ...ds_configs.read import autotp_size_in
from ..command.words import interpreter_of
from ..machine import ON_CPU, rank_threads, search_path
from ..run import Device
from ..scratch import scratch
from ..simulated_gpu.collectives import rank_variables
from .environment import Settings, Solo, observed_environment
from .ranks import Rank
from .result import PhaseReport, ProbeResult, RankReport, StepTime
from .torchrun import free_port, with_launcher
from .watch import OnProgress, watch

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
    config_file: Path | None = None
    """A DeepSpeed configuration for a script that names none."""
    solo: Solo | None = None
    """Run one rank of the job alone on one device: its memory is real, its times lack communication, and its results
    are undefined."""


def probe_command(
    probe: CommandProbe,
    *,
    stall_s: float = STALL_S,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _ranks, _memory: None,
) -> ProbeResult:
    """Start the command as it is, and end it after its first optimizer steps, on every rank. A failure is also a
    result. What the script writes stays, as without the probe; no process of it remains.

    The first trained engine counts the steps. A script that ends before has reported the steps that it made.

    stall_s, timeout_s: time limit without progress, and of the whole.

    Errors: the command has no program.
    """
    started, load = time.monotonic(), os.getloadavg()[0]
    environment = {**os.environ, "PATH": search_path(interpreter_of(probe.words, folder=probe.folder))}
    if probe.device == "cpu":
        threads = rank_threads(1 if probe.solo else probe.ranks)
        environment |= {**ON_CPU, "OMP_NUM_THREADS": str(threads)}
    if probe.solo is None:
        words = with_launcher(probe.words, probe.ranks, folder=probe.folder, port=free_port())
    else:
        words = list(probe.words)
        environment |= rank_variables(probe.solo.rank, probe.solo.world_size, probe.solo.ranks_per_node)
    with scratch("probe") as folder:
        settings = Settings(
            str(folder),
            config_file=None if probe.config_file is None else str(probe.config_file),
            steps=probe.steps,
            memory_limit_bytes=probe.memory_limit_bytes,
            solo=probe.solo,
        )
        ranks, failure, memory = watch(
            words,
            folder,
            environment=observed_environment(settings, environment),
            working_folder=probe.folder,
            stall_s=stall_s,
            timeout_s=timeout_s,
            gpus=probe.device == "cuda",
            on_progress=on_progress,
        )
    reports = [rank.report for rank in ranks if rank.report is not None] if failure is None else []
    first: dict[str, Any] = dict(reports[0]) if reports else {}
    return ProbeResult(
        world_size=first.get("world_size", 0) or probe.ranks,
        device=probe.device,
        solo=probe.solo is not None,
        tokens_per_step=_tokens_per_step(ranks, first),
        unit="tokens" if any(rank.latest.get("tokens") for rank in ranks) else "samples",
        ranks=tuple(
            rank_report(rank, probe.device, waits=probe.device == "cpu" and probe.solo is None)
            for rank in ranks
            if rank.report is not None and failure is None
        ),
        failure=failure,
        versions=first.get("versions", {}),
        config=first.get("config", {}),
        seconds=time.monotonic() - started,
        load=load,
        device_peak_bytes=memory.device_peak_bytes,
        host_peak_bytes=memory.host_peak_bytes,
    )


def _tokens_per_step(ranks: list[Rank], first: Mapping[str, Any]) -> int:
    """Tokens of all ranks in the last optimizer step; samples where the batch has no tokens."""
    config: dict[str, Any] = first.get("config", {})
    if not config:
        return 0
    tokens = [rank.latest.get("tokens", 0) for rank in ranks]
    samples = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    if not any(tokens):
        return int(samples * first["data_parallel_size"])
    # Ranks of tensor parallelism have the same tokens; those of sequence parallelism have parts.
    return int(fmean(tokens) * first["world_size"]) // autotp_size_in(config)


def rank_report(rank: Rank, device: Device, *, waits: bool) -> RankReport:
    """The report of a rank from its events. waits: whether the process, not the device, waits in collectives."""
    assert rank.report is not None, "it has reported"
    phases = [
        PhaseReport(iteration=step, phase=name, **figures)
        for step, parts in rank.phases
        for name, figures in parts.items()
    ]
    training = [phase for phase in phases if phase.iteration]
    return RankReport(
        rank=rank.number,
        **rank.report["report"],
        host_loading_peak_bytes=max((phase.host_bytes for phase in phases if not phase.iteration), default=0),
        host_peak_bytes=max((phase.host_bytes for phase in training), default=0),
        allocated_bytes=_highest(training, "allocated_bytes", device),
        reserved_bytes=_highest(training, "reserved_bytes", device),
        steps=_step_times(training, waits=waits),
        losses=tuple(loss for _, loss in rank.losses),
        phases=tuple(phases),
    )


def _highest(phases: list[PhaseReport], name: str, device: Device) -> int | None:
    return max((getattr(phase, name) for phase in phases), default=0) if device == "cuda" else None


def _step_times(phases: list[PhaseReport], *, waits: bool) -> tuple[StepTime, ...]:
    """The times of the optimizer steps except the first."""
    steps: dict[int, dict[str, PhaseReport]] = {}
    for phase in phases:
        if phase.phase not in _OUTSIDE:
            steps.setdefault(phase.iteration, {})[phase.phase] = phase
    whole = [parts for parts in steps.values() if "step" in parts]
    return tuple(_step_time(parts, waits=waits) for parts in whole[1:])


def _step_time(parts: Mapping[str, PhaseReport], *, waits: bool) -> StepTime:
    seconds = {name: parts[name].seconds if name in parts else 0.0 for name in ("forward", "backward", "step")}
    return StepTime(
        total_s=sum(phase.seconds for phase in parts.values()),
        forward_s=seconds["forward"],
        backward_s=seconds["backward"],
        optimizer_s=seconds["step"],
        waiting_s=sum(phase.waiting_s for phase in parts.values()) if waits else None,
        optimizer_waiting_s=parts["step"].waiting_s if waits else None,
    )
