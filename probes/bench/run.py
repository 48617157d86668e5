"""`bench`: measure this machine, each group of figures in processes of its own, and report what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ...estimators.errors import ClusterError
from ..rank_processes.watch import watch
from ..scratch import scratch
from ..this_machine import cpu_cores, host_memory_bytes, mount_point, threads_of_a_rank
from .result import BENCH_VERSION, BenchFigure, BenchResult, Skipped, of_all_ranks
from .task import Group, Task

TOTAL_S = 55.0
"""The whole benchmark: a minute, less what its last process may be late."""

_LEAST_BUDGET_S = 1.0
"""Measuring of a group, however late it is."""

_USUAL_START_S, _LONGEST_START_S = 5.0, 15.0
"""Starting the processes of a group, of which each imports torch, before any was seen; and what takes longer is
compiling."""

_START_S = 300.0
"""Given to each group beside its measurements: DeepSpeed may have to compile an extension, and torch may have to be
imported from a slow disk by a busy machine."""

_SHARES: dict[Group, float] = {
    "device": 0.4,
    "host_link": 0.08,
    "host_memory": 0.05,
    "collectives": 0.2,
    "cpu_adam": 0.07,
    "nvme": 0.2,
}
"""Shares of the time for measuring, in the order of the groups: what may have to be compiled comes last."""

TITLES: dict[Group, str] = {
    "device": "matrix products and memory of the device",
    "host_link": "copies between host and device",
    "host_memory": "host memory and one core",
    "cpu_adam": "DeepSpeedCPUAdam",
    "collectives": "collectives",
    "nvme": "NVMe",
}

_LARGEST_BUFFER_BYTES = 256 * 2**20
_BUFFERS = 16
"""Part of the memory that one buffer may take: a group holds up to four, on every rank."""


def bench(
    *,
    device: Literal["cuda", "cpu"],
    ranks: int,
    nvme: str | None = None,
    total_s: float = TOTAL_S,
    on_progress: Callable[[str], None] = lambda _title: None,
) -> BenchResult:
    """This machine's speeds, in about `total_s` unless DeepSpeed has to compile an extension first.

    device, ranks: whose products, memory and collectives; on the CPU `ranks` processes share the cores and measure
        together.
    nvme:    a folder on the drive to measure; a file of up to 1 GiB is written there and removed. None: not measured.

    What cannot be measured (an extension that does not compile, a file system without direct access, one device alone)
    is in `skipped`, with the reason. Raises ClusterError for a folder that cannot be written to.
    """
    started, cores = time.monotonic(), cpu_cores()
    schedule = _Schedule(total_s)
    buffer_bytes = min(_LARGEST_BUFFER_BYTES, _free_bytes() // _BUFFERS // (ranks if device == "cpu" else 1))
    figures: list[BenchFigure] = []
    with ExitStack() as stack:
        nvme_folder = "" if nvme is None else _nvme_folder(nvme, stack)
        reasons = {group: _reason_against(group, device, ranks, nvme_folder) for group in _SHARES}
        todo = [group for group in _SHARES if reasons[group] is None]
        for position, group in enumerate(todo):
            on_progress(TITLES[group])
            several = group == "collectives" or (group == "device" and device == "cpu")
            task = Task(
                group=group,
                device=device,
                ranks=ranks if several else 1,
                threads=threads_of_a_rank(ranks) if several else cores,
                budget_s=schedule.budget_s(todo[position:]),
                buffer_bytes=buffer_bytes,
                nvme_folder=nvme_folder,
            )
            measured, reasons[group] = schedule.timed(task)
            figures += measured
        skipped = [Skipped(what=TITLES[group], reason=reason) for group, reason in reasons.items() if reason]
    return BenchResult(
        version=BENCH_VERSION,
        device=device,
        ranks=ranks,
        figures=tuple(figures),
        skipped=tuple(skipped),
        nvme_mount=mount_point(nvme) if nvme is not None else "",
        versions={name: version(name) for name in ("torch", "deepspeed")},
        seconds=time.monotonic() - started,
    )


class _Schedule:
    """Divides the time that is left among the groups that are left; starting one is expected to take as long as the
    last."""

    def __init__(self, total_s: float) -> None:
        self._deadline, self._start_s = time.monotonic() + total_s, _USUAL_START_S

    def budget_s(self, groups: Sequence[Group]) -> float:
        """Measuring of the first of the groups."""
        left = self._deadline - time.monotonic() - self._start_s * len(groups)
        return max(_LEAST_BUDGET_S, left * _SHARES[groups[0]] / sum(_SHARES[group] for group in groups))

    def timed(self, task: Task) -> tuple[Sequence[BenchFigure], str | None]:
        began = time.monotonic()
        answer = _run(task)
        start_s = max(0.0, time.monotonic() - began - task.budget_s)
        self._start_s = min(start_s, _LONGEST_START_S)
        self._deadline += start_s - self._start_s  # compiling is not measuring
        return answer


def _reason_against(group: Group, device: str, ranks: int, nvme_folder: str) -> str | None:
    """Why a group says nothing here; "" where it is not missed."""
    if group == "host_link" and device == "cpu":
        return ""
    if group == "collectives" and ranks == 1:
        return "one rank alone" if device == "cpu" else "one GPU alone"
    if group == "nvme" and not nvme_folder:
        return "pass --nvme PATH, a folder on the drive"
    return None


def _run(task: Task) -> tuple[Sequence[BenchFigure], str | None]:
    """The figures of a group, or why there are none."""
    limit_s = 3 * task.budget_s + _START_S
    with scratch("bench") as folder:
        (folder / "task.json").write_text(json.dumps(asdict(task)), encoding="utf-8")
        reports, failure = watch(
            range(task.ranks),
            folder,
            worker=f"{__package__}.worker",
            stall_s=limit_s,
            timeout_s=limit_s,
            on_progress=lambda _phase: None,
        )
    if failure is not None:
        return (), failure.message
    return of_all_ranks([[BenchFigure(**figure) for figure in report["report"]] for report in reports]), None


def _nvme_folder(folder: str, stack: ExitStack) -> str:
    """A folder of its own below the one that was named, removed with the stack."""
    try:
        return str(stack.enter_context(scratch("bench", Path(folder).expanduser().resolve())))
    except OSError as error:
        raise ClusterError(
            f"--nvme {folder[:200]} cannot be written to",
            why=error.strerror or str(error),
            fix="name a folder on the drive that you may write to",
        ) from None


def _free_bytes() -> int:
    """RAM that is free, of what a process here may use."""
    import psutil

    return min(host_memory_bytes(), int(psutil.virtual_memory().available))
