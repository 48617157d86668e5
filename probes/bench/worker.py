"""One process of a benchmark (`rank_processes.rank`); FOLDER holds `task.json`, and the report is the figures."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rank_processes.event_log import EventLog
from ..rank_processes.rank import run_rank
from .result import BenchFigure
from .task import Group, Task

if TYPE_CHECKING:
    from .timing import Stopwatch

    Measure = Callable[[Task, str, Stopwatch], list[BenchFigure]]


def _work(folder: Path, rank: int, log: EventLog) -> dict[str, Any]:
    task = Task(**json.loads((folder / "task.json").read_text(encoding="utf-8")))
    os.environ["OMP_NUM_THREADS"] = str(task.threads)  # of DeepSpeed's extensions as of torch
    if task.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["TMPDIR"] = str(folder)  # what libraries leave behind goes with it
    log.enter("import")
    import torch

    from ..rank_processes import extension_lock
    from .timing import Stopwatch

    extension_lock.install()
    torch.set_num_threads(task.threads)
    device = "cpu" if task.device == "cpu" else f"cuda:{rank}"
    if task.device == "cuda":
        torch.cuda.set_device(rank)
    log.enter("join")
    # Other programs on the machine then change nothing; several threads wait for each other, and ranks for their peers.
    alone = task.device == "cpu" and task.group == "device" and task.threads == 1
    watch = Stopwatch(
        settle=torch.cuda.synchronize if task.device == "cuda" else lambda: None,
        agree=_agreement(task, folder, rank, device),
        clock=time.process_time if alone else time.perf_counter,
    )
    log.enter(task.group)
    return {"report": [asdict(figure) for figure in _measure(task.group)(task, device, watch)]}


def _agreement(task: Task, folder: Path, rank: int, device: str) -> Callable[[int], int]:
    """Rank 0's number for all, which also lets them start together."""
    if task.ranks == 1:
        return lambda number: number
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "nccl" if task.device == "cuda" else "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=task.ranks,
    )

    def agree(number: int) -> int:
        shared = torch.tensor([number], dtype=torch.int64, device=device)
        dist.broadcast(shared, 0)
        return int(shared.item())

    return agree


def _measure(group: Group) -> Measure:
    from . import collectives, device, host

    groups: dict[Group, Measure] = {
        "device": device.measure,
        "host_link": host.host_link,
        "host_memory": host.host_memory,
        "cpu_adam": host.cpu_adam,
        "nvme": host.nvme,
        "collectives": collectives.measure,
    }
    return groups[group]


if __name__ == "__main__":
    run_rank(_work)
