"""One device's speed: matrix products and attention by size and type, its memory, and launching work on it."""

from __future__ import annotations

import math
import mmap
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

_TOKENS = {"cuda": (512, 2048, 8192), "cpu": (128, 512, 2048)}
"""Tokens of a sample for attention; a call has as many samples as come to the longest on a GPU, to the middle on a
CPU."""

_HEADS, _HEAD_DIM = 8, 128

_GPU_BUFFER_BYTES = 256 * 2**20
"""Far larger than any cache."""


def measure(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Matrix products take three fifths of the time, attention a fifth."""
    dtypes = {
        name: dtype
        for name, dtype in _DTYPES[task.device].items()
        if not (name == "bf16" and device != "cpu" and torch.cuda.get_device_capability() < (8, 0))
    }
    figures = []
    for name, dtype in dtypes.items():
        figures += _products(name, dtype, device, watch, 0.6 * task.budget_s / len(dtypes))
        figures += _attention(name, dtype, device, watch, 0.2 * task.budget_s / len(dtypes))
    size = task.buffer_bytes if task.device == "cpu" else min(_GPU_BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 8)
    figures += memory(size, device, watch, 0.1 * task.budget_s)
    if device == "cpu":
        figures.append(_new_memory(task.buffer_bytes, watch, 0.05 * task.budget_s))
    return [*figures, _launch(device, watch, 0.05 * task.budget_s)]


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


def _attention(name: str, dtype: torch.dtype, device: str, watch: Stopwatch, budget_s: float) -> list[BenchFigure]:
    """Torch's causal attention, forward and backward, from short samples to long ones, while more fits in the time."""
    figures: list[BenchFigure] = []
    lengths = _TOKENS["cpu" if device == "cpu" else "cuda"]
    together = lengths[1] if device == "cpu" else lengths[-1]
    deadline, once = time.perf_counter() + budget_s, 0.0
    for tokens in lengths:
        samples = max(1, together // tokens)
        if not watch.fits(4 * once, deadline - time.perf_counter()):
            break
        shape = samples, _HEADS, tokens, _HEAD_DIM
        query, key, value = (torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3))

        def forward(query: torch.Tensor = query, key: torch.Tensor = key, value: torch.Tensor = value) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

        output, inputs = forward(), (query, key, value)
        gradient = torch.randn_like(output)

        def backward(
            output: torch.Tensor = output,
            inputs: tuple[torch.Tensor, ...] = inputs,
            gradient: torch.Tensor = gradient,
        ) -> object:
            return torch.autograd.grad(output, inputs, gradient, retain_graph=True)

        # Two products of every query with the keys up to its own, of 2 d operations each; five in the backward pass.
        work = samples * _HEADS * 2 * _HEAD_DIM * tokens * (tokens + 1)
        of_forward, of_backward = (watch.samples(call, budget_s / 2 / len(lengths)) for call in (forward, backward))
        once = min(of_forward) + min(of_backward)
        figures += [
            figure("attention_forward", name, tokens, work, of_forward, "flop/s"),
            figure("attention_backward", name, tokens, 2.5 * work, of_backward, "flop/s"),
        ]
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


def _new_memory(size_bytes: int, watch: Stopwatch, budget_s: float) -> BenchFigure:
    """A byte of every page of a block that was never used, which faults; then the block is given back."""

    def touch() -> None:
        torch.empty(size_bytes, dtype=torch.uint8)[:: mmap.PAGESIZE].fill_(1)

    return figure("new_memory", "", size_bytes, size_bytes, watch.samples(touch, budget_s))


def _launch(device: str, watch: Stopwatch, budget_s: float) -> BenchFigure:
    """A thousand operations in a row, which the device does as fast as the host asks for them."""
    one, calls = torch.ones(1, device=device), 1000

    def launches() -> None:
        for _ in range(calls):
            one.mul_(1.0)

    samples = [seconds / calls for seconds in watch.samples(launches, budget_s)]
    return figure("launch", "", 1, math.nan, samples, "s")
