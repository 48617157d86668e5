"""What threads per rank do to the optimizer's step on the host: DeepSpeedCPUAdam and the passes around it, for real.

python -m benchmarks.host_threads                       # on this machine, all cores
python -m benchmarks.host_threads --parameters 2e8      # more parameters, on all ranks together
python -m benchmarks.host_threads --run 8x1 8x16        # eight ranks of one thread each, then of 16

Ranks are processes that step at the same time, as after a backward pass: each scales its gradient (clipping), runs
DeepSpeedCPUAdam and casts the master weights to bf16, as `stage_1_and_2.py` and `stage3.py` of DeepSpeed 0.19.8 do. The
same parameters are split among the ranks, so that the seconds of rows compare. "every rank all cores" is what the
deepspeed launcher starts, "one thread" is what torchrun and accelerate start.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.synchronize import Barrier

from ds_advise.probes.machine import cpu_cores

REPEATS = 7
ADAM_BYTES, SCALE_BYTES, CAST_BYTES = 28, 8, 6
"""Bytes per parameter that each pass reads and writes (`estimators/time/offload_time.py`)."""

PASSES = {"scale": SCALE_BYTES, "adam": ADAM_BYTES, "cast": CAST_BYTES}


def rank(parameters: int, barrier: Barrier, results: multiprocessing.Queue[dict[str, float]]) -> None:
    """Median seconds of each pass, begun by all ranks at the same time, until the last of them has ended."""
    logging.disable(logging.WARNING)  # DeepSpeed's go to stdout
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    master = torch.nn.Parameter(torch.zeros(parameters))
    gradient = torch.full((parameters,), 1e-3)
    master.grad = gradient
    weights, factor = torch.zeros(parameters, dtype=torch.bfloat16), torch.tensor(1.0)
    adam = DeepSpeedCPUAdam([master])
    passes = {
        "scale": lambda: gradient.mul_(factor),
        "adam": adam.step,
        "cast": lambda: weights.copy_(master.data),
    }
    adam.step()  # makes the states
    taken: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(REPEATS):
        for name, run in passes.items():
            barrier.wait()
            started = time.perf_counter()
            run()
            barrier.wait()
            taken[name].append(time.perf_counter() - started)
    results.put({name: statistics.median(seconds) for name, seconds in taken.items()})


def node_seconds(parameters: int, ranks: int, threads: int) -> dict[str, float]:
    """Seconds of each pass over all `parameters`, split among `ranks` processes with `threads` threads each."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(ranks), context.Queue()
    processes = [context.Process(target=rank, args=(parameters // ranks, barrier, results)) for _ in range(ranks)]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return {name: max(each[name] for each in found) for name in found[0]}


def settings(cores: int) -> list[tuple[int, int]]:
    """(ranks, threads): a rank alone by threads, then a core a rank, and every rank all cores."""
    alone = sorted({1, 2, cores // 2, cores} - {0})
    together = sorted({2, min(8, cores), 8})
    return [(1, threads) for threads in alone if threads <= cores] + [
        pair
        for ranks in together
        for pair in dict.fromkeys([(ranks, 1), (ranks, max(1, cores // ranks)), (ranks, cores)])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_threads", description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=float, default=4e7, help="of all ranks together (default 4e7)")
    parser.add_argument("--run", nargs="+", metavar="RANKSxTHREADS", help="these alone (default: by the cores)")
    asked, cores = parser.parse_args(), cpu_cores()
    parameters = int(asked.parameters)
    chosen = [(int(ranks), int(threads)) for ranks, threads in (pair.split("x") for pair in asked.run or ())]
    print(f"{cores} cores, {parameters / 1e6:g} million parameters of fp32 on all ranks together\n")
    print(
        "| ranks | threads each | "
        + " | ".join(f"{name}, GB/s" for name in PASSES)
        + " | whole step, GB/s | s per 10^9 |"
    )
    print("|---|---|" + "---|" * (len(PASSES) + 2))
    for ranks, threads in chosen or settings(cores):
        seconds = node_seconds(parameters, ranks, threads)
        rates = [f"{PASSES[name] * parameters / taken / 1e9:.1f}" for name, taken in seconds.items()]
        whole = sum(seconds.values())
        rates.append(f"{sum(PASSES.values()) * parameters / whole / 1e9:.1f}")
        print(f"| {ranks} | {threads} | {' | '.join(rates)} | {whole / parameters * 1e9:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
