"""The probability that a plan's need is within the memory of its GPU.

    need = S + X T + A + O,        P = P(need <= memory of the GPU)

S, the states that stay for the whole training, is exact. T are the bytes that come and go within a step; X, measured
over predicted, is distributed as in published runs (`data/memory_spread.csv`, from `python -m benchmarks.accuracy
--write`). A, the caching allocator's overhead, is uncertain only without expandable segments. O, outside of it (CUDA
context, NCCL), is normal around its prediction.

A plan whose predicted need exceeds the memory is always below one half.

Not covered: other processes on the GPU, such as a desktop; host RAM and NVMe.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from functools import cache
from math import nextafter
from pathlib import Path
from typing import Literal, NamedTuple

from ..estimate import MemoryEstimate, Terms
from ..hardware.cluster import Cluster
from ..workload import Workload
from .device_overhead import FIXED_SEGMENTS, SEGMENT_BYTES, outside_allocator

DATA = Path(__file__).parents[1] / "data" / "memory_spread.csv"

Kind = Literal["full", "adapters"]

STATES = ("parameters", "persistent_parameters", "master_weights", "optimizer_states", "library_workspace")
"""Components that stay for the whole training."""

WASTE = "fixed segments"
"""The kind in the data for the allocator's waste without expandable segments."""

_GIB = 2**30
_COVERED = 1.96
"""95 % of a normal distribution lie within this many standard deviations."""

CONTEXT_SPREAD_BYTES = round((0.92 - 0.25) * _GIB / 2 / _COVERED)
"""One standard deviation of the CUDA context: published are 0.25 GiB (bare) to 0.92 GiB (training;
`device_overhead.CONTEXT_BYTES`)."""

NCCL_SPREAD = 0.5 / _COVERED
"""One standard deviation of NCCL's buffers as a share of them: on links of one kind half as many to half as many more
channels are opened (NVIDIA/nccl issue 864)."""

DRY_RUN_SPREAD = 0.01
"""One standard deviation of X for a dry run, which sees all tensors but no scratch memory of kernels. Assumed."""

CPU_COVERED = 0.26
"""97.5 % of the probes in docs/probe.md measured at most this share above the prediction for a rank on the CPU
(`benchmarks/probes/cpu_memory.py`)."""

_BELOW_HALF = nextafter(0.5, 0.0)

_THREE_POINTS = ((-(3**0.5), 1 / 6), (0.0, 2 / 3), (3**0.5, 1 / 6))
"""Standard deviations and weights of Gauss-Hermite quadrature with three points."""


class Quantiles(NamedTuple):
    """A distribution by some of its quantiles, linear between them."""

    values: tuple[float, ...]
    shares: tuple[float, ...]

    def share_below(self, value: float) -> float:
        """Share of the distribution up to a value; beyond the outermost quantiles linear with their slope."""
        values, shares = self.values, self.shares
        index = min(max(bisect_left(values, value), 1), len(values) - 1)
        width = values[index] - values[index - 1]
        if not width:
            return shares[index]
        slope = (shares[index] - shares[index - 1]) / width
        return min(1.0, max(0.0, shares[index - 1] + slope * (value - values[index - 1])))


def fit_probability(
    memory: MemoryEstimate, cluster: Cluster, workload: Workload, ratio: Quantiles | None = None
) -> float:
    """The probability that each GPU holds the predicted need of a plan. ratio: distribution of X instead of the
    published runs' of the workload's kind."""
    if cluster.gpu.is_cpu:
        from statistics import NormalDist  # here: it takes milliseconds that most answers do not need

        return NormalDist(1.0, CPU_COVERED / _COVERED).cdf(cluster.gpu.memory_bytes / memory.device_bytes_per_gpu)
    states = sum(term.size_bytes for term in memory.peak.terms if term.name in STATES)
    transient = max(1, memory.allocated_bytes_per_gpu - states)
    free, spread = cluster.gpu.memory_bytes - memory.device_bytes_per_gpu, _outside_spread_bytes(memory.device_terms)
    found = ratio or ratios()[kind_of(workload)]
    if not any(term.declared is FIXED_SEGMENTS for term in memory.reserved_terms):
        return _probability(free, transient, spread, found)
    free += sum(term.size_bytes for term in memory.reserved_terms) - SEGMENT_BYTES
    return sum(
        probability * _probability(round(free - share * transient), transient, spread, found)
        for share, probability in fixed_segments_waste()
    )


def dry_run_fit_probability(need_bytes: int, transient_bytes: int, cluster: Cluster) -> float:
    """The same for a dry run."""
    spread = _outside_spread_bytes(outside_allocator(cluster))
    return _probability(cluster.gpu.memory_bytes - need_bytes, max(1, transient_bytes), spread, _dry_run())


def kind_of(workload: Workload) -> Kind:
    return "full" if workload.method == "full" else "adapters"


def _probability(free_bytes: int, transient_bytes: int, outside_spread_bytes: float, ratio: Quantiles) -> float:
    """P for the predicted free bytes; below one half if they are negative."""
    room, spread = 1 + free_bytes / transient_bytes, outside_spread_bytes / transient_bytes
    found = sum(weight * ratio.share_below(room + deviation * spread) for deviation, weight in _THREE_POINTS)
    return found if free_bytes >= 0 else min(found, _BELOW_HALF)


def _outside_spread_bytes(terms: Terms) -> float:
    """One standard deviation of the memory outside PyTorch's allocator."""
    nccl = sum(term.size_bytes for term in terms if term.name == "nccl_buffers")
    return float((CONTEXT_SPREAD_BYTES**2 + (NCCL_SPREAD * nccl) ** 2) ** 0.5)


@cache
def ratios() -> dict[str, Quantiles]:
    """X of the published runs, by kind."""
    return {kind: Quantiles(*zip(*rows, strict=True)) for kind, rows in _spreads().items() if kind != WASTE}


def fixed_segments_waste() -> list[tuple[float, float]]:
    """(share of transient bytes wasted by fixed segments, probability) pairs."""
    return _spreads()[WASTE]


@cache
def _spreads() -> dict[str, list[tuple[float, float]]]:
    """(value, share) pairs by kind."""
    found: dict[str, list[tuple[float, float]]] = {}
    with DATA.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["kind"], []).append((float(row["value"]), float(row["share"])))
    return found


@cache
def _dry_run() -> Quantiles:
    from statistics import NormalDist

    shares = (0.005, 0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975, 0.995)
    return Quantiles(tuple(NormalDist(1.0, DRY_RUN_SPREAD).inv_cdf(share) for share in shares), shares)
