"""One rank of a benchmark: `python -m ds_advise.probes.benchmark_rank FOLDER` measures one group of figures. FOLDER
holds `task.json`; the report contains the figures."""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ..ds_configs.emit import AIO
from .benchmark import Group, Task
from .benchmark_result import COLLECTIVES, BenchFigure, FigureKind, figure
from .real_run.events import EventLog

SAMPLE_S = 0.004
"""Minimum time of a measurement, a thousand times the error of the clock and of settling; shorter calls are
repeated."""

MIN_SAMPLES = 3
MAX_SAMPLES = 20

COLLECTIVE_SIZES = tuple(2**power for power in (20, 22, 24, 26, 28))
"""Bytes of the whole tensor, up to the size of a DeepSpeed bucket."""

PRODUCT_SIZES = (256, 512, 1024, 2048, 4096, 8192)

_DTYPES = {
    "cuda": {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32},
    "cpu": {"bf16": torch.bfloat16, "fp32": torch.float32},
}

_TOKENS = {"cuda": (512, 2048, 8192), "cpu": (128, 512, 2048)}
"""Tokens of a sample for attention. On a GPU the samples of a call total the longest length, on a CPU the middle
one."""

_HEADS = 8
_HEAD_DIM = 128

_GPU_BUFFER_BYTES = 256 * 2**20
"""Size of a buffer on a GPU, far larger than any cache."""

ROUNDS = 100
"""Rounds of the host score: a few hundredths of a second."""

_SCORES = 15
"""Number of measurements of the host score, about a second."""

_BLOCK_BYTES = 2**20
_MAX_FILE_BLOCKS = 1024
"""1 GiB, much more than the cache of a drive's controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Timer of calls on a device, synchronized over all ranks."""

    synchronize: Callable[[], None]
    """Waits until the device is idle."""
    broadcast: Callable[[int], int]
    """Returns rank 0's number on every rank, so that all make the same number of calls."""
    clock: Callable[[], float] = time.perf_counter
    """Clock in seconds; the processor time for a process of one thread that does not wait for others."""

    def once(self, action: Callable[[], object]) -> float:
        """Seconds of one call on rank 0, returned on every rank. A warm-up call before it loads kernels and fills
        caches."""
        self._calls(action, 1)
        return self.broadcast(math.ceil(self._calls(action, 1) * 1e9)) / 1e9

    def samples(self, action: Callable[[], object], budget_s: float) -> list[float]:
        """Seconds of one call, measured `MIN_SAMPLES` to `MAX_SAMPLES` times, in about `budget_s`."""
        once = max(self.once(action), 1e-9)
        calls = math.ceil(SAMPLE_S / once)
        repeats = min(MAX_SAMPLES, max(MIN_SAMPLES, int(budget_s / (calls * once))))
        return [self._calls(action, calls) / calls for _ in range(repeats)]

    def fits(self, once_s: float, budget_s: float) -> bool:
        """Whether `MIN_SAMPLES` measurements of a call of `once_s` fit in the budget; rank 0 decides."""
        return bool(self.broadcast(int(once_s * (MIN_SAMPLES + 2) <= budget_s)))

    def _calls(self, action: Callable[[], object], calls: int) -> float:
        self.synchronize()
        started = self.clock()
        for _ in range(calls):
            action()
        self.synchronize()
        return self.clock() - started


def main() -> None:
    """Measure a group, and note the figures as the report of this rank."""
    folder = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    log = EventLog(folder / f"rank{rank}.jsonl")
    task = Task(**json.loads((folder / "task.json").read_text(encoding="utf-8")))
    torch.set_num_threads(task.threads)
    device = "cpu" if task.device == "cpu" else f"cuda:{rank}"
    if task.device == "cuda":
        torch.cuda.set_device(rank)
    log.enter("join")
    # Processor time is independent of other programs. It does not count waiting for threads and peers.
    alone = task.device == "cpu" and task.group == "device" and task.threads == 1
    watch = Stopwatch(
        synchronize=torch.cuda.synchronize if task.device == "cuda" else lambda: None,
        broadcast=_broadcaster(task, device),
        clock=time.process_time if alone else time.perf_counter,
    )
    log.enter(task.group)
    figures = [asdict(one) for one in _GROUPS[task.group](task, device, watch)]
    log.note({"report": figures, "processes": task.ranks})


def _broadcaster(task: Task, device: str) -> Callable[[int], int]:
    """Broadcast rank 0's number, which also synchronizes the ranks."""
    if task.ranks == 1:
        return lambda number: number
    dist.init_process_group("nccl" if task.device == "cuda" else "gloo")

    def broadcast(number: int) -> int:
        shared = torch.tensor([number], dtype=torch.int64, device=device)
        dist.broadcast(shared, 0)
        return int(shared.item())

    return broadcast


def measure_collectives(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Seconds of the smallest collective, its latency; then rates by size, while the next one fits in the time.

    The first size is always measured: on a busy machine the latency may take all the time.
    """
    how = "gloo" if device == "cpu" else "nccl"
    ranks = task.ranks
    dtype = torch.bfloat16  # as in trainings; gloo sums 16-bit numbers more slowly than fp32
    figures: list[BenchFigure] = []
    budget_s = task.budget_s / len(COLLECTIVES)
    each_s = budget_s / (len(COLLECTIVE_SIZES) + 1)
    for kind in COLLECTIVES:
        carried = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks
        deadline = time.perf_counter() + budget_s
        smallest = ranks * dtype.itemsize
        samples = watch.samples(_call(kind, smallest, ranks, dtype, device), each_s)
        figures.append(figure(kind, how, smallest, math.nan, samples, "s"))
        once = 0.0
        for size in COLLECTIVE_SIZES:
            if size > task.buffer_bytes or (once and not watch.fits(4 * once, deadline - time.perf_counter())):
                break
            size -= size % smallest
            samples = watch.samples(_call(kind, size, ranks, dtype, device), each_s)
            once = min(samples)
            figures.append(figure(kind, how, size, carried * size, samples))
    return figures


def _call(kind: FigureKind, size: int, ranks: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    """One collective over a tensor of `size` bytes."""
    whole = torch.ones(size // dtype.itemsize, dtype=dtype, device=device)
    part = torch.ones(whole.numel() // ranks, dtype=dtype, device=device)
    if kind == "all_reduce":
        # The sum of ones doubles with every call, and infinity takes the same time as other numbers.
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def measure_device(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """The figures of a device. Matrix products get three fifths of the time, attention one fifth."""
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
    figures += _memory(size, device, watch, 0.1 * task.budget_s)
    if device == "cpu":
        figures.append(_new_memory(task.buffer_bytes, watch, 0.05 * task.budget_s))
    return figures


def _products(name: str, dtype: torch.dtype, device: str, watch: Stopwatch, budget_s: float) -> list[BenchFigure]:
    """Square products from small to large, as long as the next one fits in the time."""
    figures: list[BenchFigure] = []
    deadline = time.perf_counter() + budget_s
    once = 0.0
    for size in PRODUCT_SIZES:
        # Eight times the work of the size before; a small product takes less time than its arithmetic suggests.
        if not watch.fits(8 * once, deadline - time.perf_counter()):
            break
        left, right, out = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
        samples = watch.samples(partial(torch.mm, left, right, out=out), budget_s / len(PRODUCT_SIZES))
        once = min(samples)
        figures.append(figure("matrix_product", name, size, 2.0 * size**3, samples, "flop/s"))
    return figures


def _attention(name: str, dtype: torch.dtype, device: str, watch: Stopwatch, budget_s: float) -> list[BenchFigure]:
    """Torch's causal attention, forward and backward, from short to long samples, as long as the next one fits in the
    time."""
    figures: list[BenchFigure] = []
    lengths = _TOKENS["cpu" if device == "cpu" else "cuda"]
    total_tokens = lengths[1] if device == "cpu" else lengths[-1]
    deadline = time.perf_counter() + budget_s
    once = 0.0
    for tokens in lengths:
        samples = max(1, total_tokens // tokens)
        if not watch.fits(4 * once, deadline - time.perf_counter()):
            break
        shape = samples, _HEADS, tokens, _HEAD_DIM
        query, key, value = (torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3))
        forward = partial(torch.nn.functional.scaled_dot_product_attention, query, key, value, is_causal=True)
        output = forward()
        backward = partial(
            torch.autograd.grad, output, (query, key, value), torch.randn_like(output), retain_graph=True
        )
        # Two products of every query with the keys up to its own, of 2 d operations each; five in the backward pass.
        work = samples * _HEADS * 2 * _HEAD_DIM * tokens * (tokens + 1)
        forward_s = watch.samples(forward, budget_s / 2 / len(lengths))
        backward_s = watch.samples(backward, budget_s / 2 / len(lengths))
        once = min(forward_s) + min(backward_s)
        figures += [
            figure("attention_forward", name, tokens, work, forward_s, "flop/s"),
            figure("attention_backward", name, tokens, 2.5 * work, backward_s, "flop/s"),
        ]
    return figures


def _memory(size_bytes: int, device: str, watch: Stopwatch, budget_s: float) -> list[BenchFigure]:
    """A sum of two fp32 tensors of `size_bytes` into a third, and a copy."""
    left, right, out = (torch.ones(size_bytes // 4, device=device) for _ in range(3))
    size = left.nbytes
    sums = watch.samples(lambda: torch.add(left, right, out=out), budget_s / 2)
    copies = watch.samples(lambda: out.copy_(left), budget_s / 2)
    return [
        figure("elementwise_sum", "fp32", size, 3 * size, sums),
        figure("memory_copy", "fp32", size, 2 * size, copies),
    ]


def _new_memory(size_bytes: int, watch: Stopwatch, budget_s: float) -> BenchFigure:
    """Touch every page of a newly mapped block, which causes page faults, and free the block.

    The block is mapped here: the C library keeps freed blocks of up to 32 MiB, whose pages are not new.
    """

    def touch() -> None:
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        torch.frombuffer(block, dtype=torch.uint8)[:: mmap.PAGESIZE].fill_(1)

    return figure("new_memory", "", size_bytes, size_bytes, watch.samples(touch, budget_s))


def measure_host_link(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Copies between the GPU and page-locked or pageable host memory."""
    size = task.buffer_bytes
    each_s = task.budget_s / 4
    there = torch.empty(size, dtype=torch.uint8, device=device)
    figures = []
    for how in ("pinned", "pageable"):
        here = torch.ones(size, dtype=torch.uint8, pin_memory=how == "pinned")
        up = watch.samples(partial(there.copy_, here, non_blocking=True), each_s)
        down = watch.samples(partial(here.copy_, there, non_blocking=True), each_s)
        figures += [
            figure("host_to_device", how, size, size, up),
            figure("device_to_host", how, size, size, down),
        ]
    return figures


def measure_host_memory(task: Task, _device: str, watch: Stopwatch) -> list[BenchFigure]:
    """A sum in host memory by all cores, and the single-thread score of a core."""
    summed, _ = _memory(task.buffer_bytes, "cpu", watch, task.budget_s)
    score = HostScore()
    samples = [score.measure() for _ in range(_SCORES)]
    return [replace(summed, kind="host_memory", how=""), figure("host_score", "", ROUNDS, math.nan, samples, "s")]


def measure_cpu_adam(task: Task, _device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Steps of DeepSpeed's extension over one large fp32 parameter. Raises the compiler's error."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    count = task.buffer_bytes // 4
    parameter = torch.nn.Parameter(torch.zeros(count))
    parameter.grad = torch.full((count,), 1e-3)
    adam = DeepSpeedCPUAdam([parameter])
    return [figure("cpu_adam", "fp32", count, count, watch.samples(adam.step, task.budget_s), "parameters/s")]


def measure_nvme(task: Task, device: str, watch: Stopwatch) -> list[BenchFigure]:
    """Write and read one file with O_DIRECT, sized by the time budget; from page-locked memory on a machine with
    GPUs."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    settings = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")
    handle = AsyncIOBuilder().load().aio_handle(*(AIO[name] for name in settings))
    path = str(Path(task.nvme_folder) / "bench.swp")
    most = min(
        _MAX_FILE_BLOCKS,
        2 * task.buffer_bytes // _BLOCK_BYTES,
        shutil.disk_usage(task.nvme_folder).free // 10 // _BLOCK_BYTES,
    )
    blocks = 0
    buffer = torch.empty(0)

    def write() -> None:
        _check_completed(handle.sync_pwrite(buffer, path, 0))

    def read() -> None:
        _check_completed(handle.sync_pread(buffer, path, 0))

    wanted = min(8 * AIO["intra_op_parallelism"], most)
    while blocks < wanted:
        blocks = wanted - wanted % AIO["intra_op_parallelism"]  # the threads share a file evenly
        if not blocks:
            raise OSError(f"{task.nvme_folder} has too little space")
        buffer = torch.ones(blocks * _BLOCK_BYTES, dtype=torch.uint8, pin_memory=device != "cpu")
        started = time.perf_counter()
        write()
        seconds = time.perf_counter() - started
        wanted = min(most, int(blocks * task.budget_s / (2 * (MIN_SAMPLES + 3)) / seconds))
    size = buffer.nbytes
    return [
        figure("nvme_write", "aio", size, size, watch.samples(write, task.budget_s / 2)),
        figure("nvme_read", "aio", size, size, watch.samples(read, task.budget_s / 2)),
    ]


def _check_completed(requests: int) -> None:
    if requests < 1:
        raise OSError("DeepSpeed's aio did not complete a request")


class _Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        squares = values.pow(2).mean(-1, keepdim=True)
        return self.weight * (values * torch.rsqrt(squares + 1e-6))


class _Product(torch.nn.Module):
    """A linear layer that is not `nn.Linear`, whose function ZeRO-3 replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = values @ self.weight
        return product


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = _Norm()
        self.product = _Product()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.product(self.norm(values))
        return values + product.view(1, 2, 2, 4).transpose(1, 2).reshape(1, 2, 8)


class HostScore:
    """A CPU's single-thread score: seconds of a small fixed workload that resembles the host's part of a step.

    One round calls three modules in Python, runs a dozen small operations with autograd (norm, product, sum, views) and
    their backward pass. It does not depend on memory bandwidth, the number of cores, DeepSpeed or transformers: scores
    of machines differ only by the speed of a core in Python and torch's dispatch.
    """

    def __init__(self) -> None:
        self._layer = _Layer()
        self._input = torch.ones(1, 2, 8)
        self.measure()

    def measure(self) -> float:
        """Processor time of the rounds on one core, in seconds."""
        started = time.thread_time()
        for _ in range(ROUNDS):
            self._layer(self._input).sum().backward()
        return time.thread_time() - started


_GROUPS: dict[Group, Callable[[Task, str, Stopwatch], list[BenchFigure]]] = {
    "device": measure_device,
    "host_link": measure_host_link,
    "host_memory": measure_host_memory,
    "cpu_adam": measure_cpu_adam,
    "nvme": measure_nvme,
    "collectives": measure_collectives,
}


if __name__ == "__main__":
    main()
