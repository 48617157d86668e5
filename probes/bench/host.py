"""The host's side: copies to and from the GPU, its own memory, and CPU Adam and NVMe through DeepSpeed's own code."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import torch

from ...ds_configs.emit import AIO
from ..host_time.score import ROUNDS, HostScore
from .device import memory
from .result import BenchFigure, figure
from .task import Task
from .timing import LEAST, Stopwatch

_SCORES = 15
"""Measurements of the single-thread score, about a second of them."""

_BLOCK_BYTES = 2**20
_LARGEST_FILE_BLOCKS = 1024
"""1 GiB: large beside what a drive's controller keeps for itself, small beside any drive."""


def host_link(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Copies between host memory, page-locked and ordinary, and the GPU."""
    size, each_s = task.buffer_bytes, task.budget_s / 4
    there = torch.empty(size, dtype=torch.uint8, device=device)
    figures = []
    for how in ("pinned", "pageable"):
        here = torch.ones(size, dtype=torch.uint8, pin_memory=how == "pinned")

        def up(here: torch.Tensor = here) -> None:
            there.copy_(here, non_blocking=True)

        def down(here: torch.Tensor = here) -> None:
            here.copy_(there, non_blocking=True)

        figures += [
            figure("host_to_device", how, size, size, watch.samples(up, each_s)),
            figure("device_to_host", how, size, size, watch.samples(down, each_s)),
        ]
    return figures


def host_memory(task: Task, _device: str, watch: Stopwatch) -> list[BenchFigure]:
    """A sum in host memory by all cores, and what one of them alone does with Python and torch's dispatch."""
    summed, _ = memory(task.buffer_bytes, "cpu", watch, task.budget_s)
    score = HostScore()
    samples = [score.measure() for _ in range(_SCORES)]
    return [replace(summed, kind="host_memory", how=""), figure("host_score", "", ROUNDS, math.nan, samples, "s")]


def cpu_adam(task: Task, _device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Steps of DeepSpeed's extension over one large fp32 parameter. Raises what its compiler says where it cannot be
    built."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    count = task.buffer_bytes // 4
    parameter = torch.nn.Parameter(torch.zeros(count))
    parameter.grad = torch.full((count,), 1e-3)
    adam = DeepSpeedCPUAdam([parameter])
    return [figure("cpu_adam", "fp32", count, count, watch.samples(adam.step, task.budget_s), "parameters/s")]


def nvme(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """One file, as large as the drive writes in a share of the time, written and read around the page cache. From
    memory that is page-locked where training on this device uses such."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = (
        AsyncIOBuilder()
        .load()
        .aio_handle(
            AIO["block_size"],
            AIO["queue_depth"],
            AIO["single_submit"],
            AIO["overlap_events"],
            AIO["intra_op_parallelism"],
        )
    )
    path = str(Path(task.nvme_folder) / "bench.swp")
    most = min(
        _LARGEST_FILE_BLOCKS,
        2 * task.buffer_bytes // _BLOCK_BYTES,
        shutil.disk_usage(task.nvme_folder).free // 10 // _BLOCK_BYTES,
    )
    blocks, buffer = 0, torch.empty(0)

    def write() -> None:
        _completed(handle.sync_pwrite(buffer, path, 0))

    def read() -> None:
        _completed(handle.sync_pread(buffer, path, 0))

    wanted = min(8 * AIO["intra_op_parallelism"], most)
    while blocks < wanted:
        blocks = wanted - wanted % AIO["intra_op_parallelism"]  # the threads share a file evenly
        if not blocks:
            raise OSError(f"{task.nvme_folder} has too little space")
        buffer = torch.ones(blocks * _BLOCK_BYTES, dtype=torch.uint8, pin_memory=device != "cpu")
        started = time.perf_counter()
        write()
        seconds = time.perf_counter() - started
        wanted = min(most, int(blocks * task.budget_s / (2 * (LEAST + 3)) / seconds))
    size = buffer.nbytes
    return [
        figure("nvme_write", "aio", size, size, watch.samples(write, task.budget_s / 2)),
        figure("nvme_read", "aio", size, size, watch.samples(read, task.budget_s / 2)),
    ]


def _completed(requests: int) -> None:
    if requests < 1:
        raise OSError("DeepSpeed's aio did not complete a request")
