"""One process of a benchmark: `python -m ...worker FOLDER RANK PARENT`.

FOLDER holds `task.json`; the process appends to `rank<R>.jsonl` and ends it with its figures or its error.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..rank_processes.event_log import EventLog
from ..real_run.worker import die_with_the_parent, one_line
from .result import BenchFigure
from .task import Group, Task, read_task

if TYPE_CHECKING:
    from .timing import Stopwatch

    Measure = Callable[[Task, str, Stopwatch], list[BenchFigure]]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    die_with_the_parent(int(sys.argv[3]))
    log = EventLog(folder / f"rank{rank}.jsonl")
    try:
        task = read_task(folder / "task.json")
        figures = _run(task, folder, rank, log)
        log.note({"report": [asdict(figure) for figure in figures]})
    except BaseException as error:
        cause = f" ({one_line(error.__cause__)})" if error.__cause__ is not None else ""
        log.note(
            {
                "error": {
                    "kind": "crash",
                    "phase": log.phase,
                    "message": one_line(error) + cause,
                    "details": traceback.format_exc()[-8000:],
                }
            }
        )
        os._exit(1)
    os._exit(0)  # exit handlers of process groups wait for each other


def _run(task: Task, folder: Path, rank: int, log: EventLog) -> list[BenchFigure]:
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
        settle=_settle(task),
        agree=_agreement(task, folder, rank, device),
        clock=time.process_time if alone else time.perf_counter,
    )
    log.enter(task.group)
    return _measure(task.group)(task, device, watch)


def _settle(task: Task) -> Callable[[], None]:
    """Calls on the CPU are over when they return."""
    import torch

    return torch.cuda.synchronize if task.device == "cuda" else lambda: None


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
    main()
