"""One device's speed: matrix products by size and type, its memory, and launching work on it."""

from __future__ import annotations

import math
import time

import torch

from .result import BenchFigure, figure
from .task import Task
from .timing import Stopwatch

SIZES = (256, 512, 1024, 2048, 4096, 8192)

_DTYPES = {
    "cuda": {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32},
    "cpu": {"bf16": torch.bfloat16, "fp32": torch.float32},
}

_GPU_BUFFER_BYTES = 256 * 2**20
"""Far larger than any cache."""


def measure(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Matrix products take four fifths of the time."""
    dtypes = {
        name: dtype
        for name, dtype in _DTYPES[task.device].items()
        if not (name == "bf16" and device != "cpu" and torch.cuda.get_device_capability() < (8, 0))
    }
    figures = []
    for name, dtype in dtypes.items():
        figures += _products(name, dtype, device, watch, 0.8 * task.budget_s / len(dtypes))
    size = task.buffer_bytes if task.device == "cpu" else min(_GPU_BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 8)
    return [*figures, *memory(size, device, watch, 0.15 * task.budget_s), _launch(device, watch, 0.05 * task.budget_s)]


def _products(name: str, dtype: torch.dtype, device: str, watch: Stopwatch, budget_s: float) -> list[BenchFigure]:
    """Square products from small to large, while another one fits in the time."""
    figures: list[BenchFigure] = []
    deadline, once = time.perf_counter() + budget_s, 0.0
    for size in SIZES:
        # Eight times the work of the size before; a small product is done sooner than its arithmetic says.
        if not watch.fits(8 * once, deadline - time.perf_counter()):
            break
        left, right, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))

        def product(left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = out) -> None:
            torch.mm(left, right, out=out)

        samples = watch.samples(product, budget_s / len(SIZES))
        once = min(samples)
        figures.append(figure("matrix_product", name, size, 2.0 * size**3, samples, "flop/s"))
    return figures


def memory(size_bytes: int, device: str, watch: Stopwatch, budget_s: float) -> list[BenchFigure]:
    """Sum of two tensors into a third, and a copy, of `size_bytes` each in fp32."""
    left, right, out = (torch.ones(size_bytes // 4, device=device) for _ in range(3))
    size = left.nbytes
    return [
        figure(
            "elementwise_sum",
            "fp32",
            size,
            3 * size,
            watch.samples(lambda: torch.add(left, right, out=out), budget_s / 2),
        ),
        figure("memory_copy", "fp32", size, 2 * size, watch.samples(lambda: out.copy_(left), budget_s / 2)),
    ]


def _launch(device: str, watch: Stopwatch, budget_s: float) -> BenchFigure:
    """A thousand operations in a row, which the device does as fast as the host asks for them."""
    one, calls = torch.ones(1, device=device), 1000

    def launches() -> None:
        for _ in range(calls):
            one.mul_(1.0)

    samples = [seconds / calls for seconds in watch.samples(launches, budget_s)]
    return figure("launch", "", 1, math.nan, samples, "s")
