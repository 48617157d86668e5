"""DeepSpeedCPUAdam by number of threads, with the program's own benchmark of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from ds_advise.probes import benchmark_rank as host
from ds_advise.probes.benchmark import Task
from ds_advise.probes.benchmark_rank import Stopwatch

from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome

_BUDGET_S = 3.0


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """arguments: {"threads": [...], "buffer_bytes": n}; one process for each number of threads."""
    if "CPUAdamBuilder" in place.broken:
        raise NotPossibleError(f"CPUAdamBuilder does not compile here: {place.broken['CPUAdamBuilder'][:300]}")
    figures = []
    for threads in arguments["threads"]:
        figures += [{"threads": threads, **figure} for figure in _in_a_process(threads, arguments["buffer_bytes"])]
    return {"value": {"figures": figures}}


def _in_a_process(threads: int, buffer_bytes: int) -> list[dict[str, Any]]:
    """An OpenMP runtime keeps the number of threads that it began with."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (threads, buffer_bytes))


def _measured(threads: int, buffer_bytes: int) -> list[dict[str, Any]]:
    os.environ.update(OMP_NUM_THREADS=str(threads), DS_ACCELERATOR="cpu")
    import torch

    torch.set_num_threads(threads)
    task = Task(group="cpu_adam", device="cpu", ranks=1, threads=threads, budget_s=_BUDGET_S, buffer_bytes=buffer_bytes)
    watch = Stopwatch(synchronize=lambda: None, broadcast=lambda number: number)
    return [
        asdict(figure)
        for figure in (*host.measure_cpu_adam(task, "cpu", watch), *host.measure_host_memory(task, "cpu", watch))
    ]
