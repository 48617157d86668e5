"""Collectives between the devices of this machine, as ZeRO calls them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from .result import BenchFigure, FigureKind, figure
from .task import Task
from .timing import Stopwatch

SIZES = tuple(2**power for power in (20, 22, 24, 26, 28))
"""Bytes of the whole tensor: up to what a bucket of DeepSpeed holds."""


def measure(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """The shortest in seconds, which is what starting one takes; then rates by size, while another fits in the time.

    The first size always counts: on a busy machine starting a collective may take all the time.
    """
    how, ranks = ("gloo" if device == "cpu" else "nccl"), task.ranks
    dtype = torch.bfloat16  # as trainings send; gloo sums 16-bit numbers more slowly than fp32
    figures: list[BenchFigure] = []
    kinds: tuple[tuple[FigureKind, float], ...] = (
        ("all_reduce", 2 * (ranks - 1) / ranks),
        ("all_gather", (ranks - 1) / ranks),
        ("reduce_scatter", (ranks - 1) / ranks),
    )
    for kind, carried in kinds:
        deadline = time.perf_counter() + task.budget_s / len(kinds)
        each_s = task.budget_s / len(kinds) / (len(SIZES) + 1)
        smallest = ranks * dtype.itemsize
        samples = watch.samples(_call(kind, smallest, ranks, dtype, device), each_s)
        figures.append(figure(kind, how, smallest, math.nan, samples, "s"))
        once = 0.0
        for size in SIZES:
            if size > task.buffer_bytes or (once and not watch.fits(4 * once, deadline - time.perf_counter())):
                break
            size -= size % smallest
            samples = watch.samples(_call(kind, size, ranks, dtype, device), each_s)
            once = min(samples)
            figures.append(figure(kind, how, size, carried * size, samples))
    return figures


def _call(kind: FigureKind, size: int, ranks: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    """One collective over a tensor of `size` bytes in all."""
    whole = torch.ones(size // dtype.itemsize, dtype=dtype, device=device)
    part = torch.ones(whole.numel() // ranks, dtype=dtype, device=device)
    if kind == "all_reduce":
        # The sum of ones doubles with every call, and infinity is as fast as any number.
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.reduce_scatter_tensor(part, whole)
