"""`ds-advise bench`: measure this machine, with each group of figures in separate processes, and store the result."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import psutil

from ..estimators.errors import ClusterError
from .benchmark_result import BENCH_VERSION, BenchFigure, BenchResult, Skipped, merge_ranks
from .command_line import command_line
from .machine import (
    cpu_cores,
    host_memory_bytes,
    most_cpu_ranks,
    mount_point,
    rank_threads,
    search_path,
    this_machine,
    visible_gpus,
)
from .real_run.environment import Settings, observed_environment
from .real_run.ranks import Ranks
from .real_run.sampling import MemorySampler
from .real_run.torchrun import free_port, with_launcher
from .real_run.watch import watch
from .run import Device
from .scratch import scratch
from .store import Record, try_store

TOTAL_S = 55.0
"""Time of the whole benchmark: a minute minus a margin."""

_START_S = 5.0
"""Expected start-up time of a group's processes, which import torch."""

_START_LIMIT_S = 300.0
"""Limit of a group's start-up: DeepSpeed may compile an extension, and torch may be imported from a slow disk."""

Group = Literal["device", "host_link", "host_memory", "collectives", "cpu_adam", "nvme"]

GROUPS: dict[Group, tuple[str, float]] = {
    "device": ("matrix products and memory of the device", 0.4),
    "host_link": ("copies between host and device", 0.08),
    "host_memory": ("host memory and one core", 0.05),
    "collectives": ("collectives", 0.2),
    "cpu_adam": ("DeepSpeedCPUAdam", 0.07),
    "nvme": ("NVMe", 0.2),
}
"""Title and share of the measuring time, in the order of measurement: groups that may compile come last."""

INTERRUPTED = "interrupted"
"""Why a group that Ctrl-C has ended, and those behind it, are not measured."""

_MAX_BUFFER_BYTES = 256 * 2**20
_BUFFERS = 16
"""The largest buffer is 1/16 of the memory: a group holds up to four, on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One group of figures to measure."""

    group: Group
    device: Device
    ranks: int
    """Number of processes that measure at the same time."""
    threads: int
    """Host threads of each process."""
    budget_s: float
    """Measuring time, without the start-up of the processes."""
    buffer_bytes: int
    """Size of the largest buffer on the host; a group holds a few of them."""
    nvme_folder: str = ""
    """Folder of the NVMe group, removed at the end."""


def run_benchmark(
    *,
    device: Device | None,
    ranks: int | None,
    nvme: str | None,
    on_task: Callable[[str], None],
    on_progress: Callable[[str], None],
    total_s: float = TOTAL_S,
) -> Record:
    """Measure the speeds of this machine, in about `total_s` unless DeepSpeed has to compile an extension first, and
    store the result. The record has no number if the store cannot be used. Ctrl-C after the first group ends it: the
    result has the groups before, and is not stored.

    device: None takes the GPUs if there are any. ranks: None takes all GPUs, or two processes on the CPU, which share
        the cores and measure together.
    on_task, on_progress: take the title of each group when it begins, and how long it usually takes or what it does
        besides measuring.
    nvme:   a folder on the drive to measure; a file of up to 1 GiB is written there and removed. None: not measured.

    `skipped` names what cannot be measured (an extension that does not compile, a file system without direct access, a
    single device) with the reason. Raises ClusterError for more ranks than GPUs or cores, for GPUs on a machine without
    any, and for an unwritable folder, and PackageNotFoundError without torch or DeepSpeed.
    """
    versions = {name: version(name) for name in ("torch", "deepspeed")}
    try:
        gpus = len(visible_gpus())
    except ClusterError as error:
        if device == "cuda":
            fix = "--device cpu measures the CPU"
            raise ClusterError(error.what, why="--device cuda measures GPUs", fix=fix) from None
        gpus = 0
    device = device or ("cuda" if gpus else "cpu")
    if device == "cuda" and ranks is not None and ranks > gpus:
        raise ClusterError(
            f"--ranks {ranks} is more than the {gpus} GPU{'s' * (gpus != 1)} of this machine",
            why="every rank has its own GPU",
            fix=f"pass --ranks {gpus} or less",
        )
    if device == "cpu" and ranks is not None and ranks > most_cpu_ranks():
        raise ClusterError(
            f"--ranks {ranks} is more than the {cpu_cores()} core{'s' * (cpu_cores() != 1)} of this machine",
            why="ranks that wait for a core measure no speed of it",
            fix=f"pass --ranks {most_cpu_ranks()} or less",
        )
    ranks = ranks or (gpus if device == "cuda" else 2)
    started = time.monotonic()
    free_bytes = min(host_memory_bytes(), int(psutil.virtual_memory().available))
    buffer_bytes = min(_MAX_BUFFER_BYTES, free_bytes // _BUFFERS // (ranks if device == "cpu" else 1))
    figures: list[BenchFigure] = []
    with ExitStack() as stack:
        nvme_folder = "" if nvme is None else _nvme_folder(nvme, stack)
        reasons = {group: _skip_reason(group, device, ranks, nvme_folder) for group in GROUPS}
        todo = [group for group in GROUPS if reasons[group] is None]
        measuring_s = total_s - _START_S * len(todo)
        shares = sum(GROUPS[group][1] for group in todo)
        for number, group in enumerate(todo, 1):
            several = group == "collectives" or (group == "device" and device == "cpu")
            task = Task(
                group=group,
                device=device,
                ranks=ranks if several else 1,
                threads=rank_threads(ranks) if several else cpu_cores(),
                budget_s=max(1.0, measuring_s * GROUPS[group][1] / shares),
                buffer_bytes=buffer_bytes,
                nvme_folder=nvme_folder,
            )
            on_task(f"benchmark {number} of {len(todo)}: {GROUPS[group][0]}")
            try:
                measured, reasons[group] = _run(task, on_progress)
            except KeyboardInterrupt:
                if not figures:
                    raise
                reasons |= dict.fromkeys(todo[number - 1 :], INTERRUPTED)
                break
            figures += measured
        skipped = [Skipped(what=GROUPS[group][0], reason=reason) for group, reason in reasons.items() if reason]
    result = BenchResult(
        version=BENCH_VERSION,
        device=device,
        ranks=ranks,
        figures=tuple(figures),
        skipped=tuple(skipped),
        nvme_mount=mount_point(nvme) if nvme is not None else "",
        versions=versions,
        seconds=time.monotonic() - started,
    )
    record = Record(
        kind="bench",
        machine=this_machine(),
        workload={"command_line": command_line()},
        result=asdict(result),
        versions=result.versions,
    )
    if INTERRUPTED in reasons.values():  # answers would use it in place of a complete one
        return record
    return replace(record, id=try_store(lambda store: store.add(record), None))


def _skip_reason(group: Group, device: str, ranks: int, nvme_folder: str) -> str | None:
    """Why a group is not measured here; "" if it does not apply, None if it is measured."""
    if group == "host_link" and device == "cpu":
        return ""
    if group == "collectives" and ranks == 1:
        return "one rank alone" if device == "cpu" else "one GPU alone"
    if group == "nvme" and not nvme_folder:
        return "pass --nvme PATH, a folder on the drive"
    return None


def _limit_s(task: Task) -> float:
    """The time after which a group is ended: several times what an idle machine needs."""
    return 3 * task.budget_s + _START_LIMIT_S


def _run(task: Task, on_progress: Callable[[str], None]) -> tuple[Sequence[BenchFigure], str | None]:
    """The figures of a group, or the reason why there are none."""

    def report(ranks: Ranks, memory: MemorySampler) -> None:
        left = ranks.left
        waits = f"{left.obstacle}: {left.remedy}" if left is not None else ""
        on_progress(waits or ("compiling its extension" if memory.compiles else usual))

    limit_s, idle_s = _limit_s(task), _START_S + task.budget_s
    usual = f"about {idle_s:.0f} s on an idle machine, at most {limit_s / 60:.0f} min"
    with scratch("bench") as folder:
        (folder / "task.json").write_text(json.dumps(asdict(task)), encoding="utf-8")
        variables = {
            "PATH": search_path(),
            "OMP_NUM_THREADS": str(task.threads),
            "TMPDIR": str(folder),  # files that libraries leave are removed with it
            **({"DS_ACCELERATOR": "cpu"} if task.device == "cpu" else {}),
        }
        words = [sys.executable, "-m", f"{__package__}.benchmark_rank", str(folder)]
        ranks, failure, _ = watch(
            with_launcher(words, task.ranks, folder=folder, port=free_port()),
            folder,
            environment=observed_environment(Settings(str(folder)), os.environ | variables),
            working_folder=folder,
            stall_s=limit_s,
            timeout_s=limit_s,
            on_progress=report,
        )
    if failure is not None:
        remedy = failure.fix or ("measure again when nothing else runs" if failure.kind in ("timeout", "hang") else "")
        return (), "; ".join(filter(None, (failure.message, remedy)))
    reports = [rank.report["report"] for rank in ranks if rank.report is not None]
    return merge_ranks([[BenchFigure(**figure) for figure in report] for report in reports]), None


def _nvme_folder(folder: str, stack: ExitStack) -> str:
    """A temporary folder below the given one, removed with the stack."""
    try:
        return str(stack.enter_context(scratch("bench", Path(folder).expanduser().resolve())))
    except OSError as error:
        raise ClusterError(
            f"--nvme {folder[:200]} cannot be written to",
            why=error.strerror or str(error),
            fix="name a writable folder on the drive",
        ) from None
