"""The probability that a plan's need is within the memory of its GPU.

    need = (1 + E) M + A + O,        P = P(need <= memory of the GPU)

M is the predicted peak of allocated bytes. E is the error of a source that was not seen, as a share of M: Student's t
of published runs, each source counted once (`data/memory_spread.csv`, from `python -m benchmarks.accuracy --write`).
Its tails fall with the distance from what was seen, and no room makes a plan certain. A, the caching allocator's
overhead, is uncertain only without expandable segments. O, outside of it (CUDA context, NCCL), is normal around its
prediction.

A plan whose predicted need exceeds the memory is always below one half.

Not covered: other processes on the GPU, such as a desktop; host RAM and NVMe.
"""

from __future__ import annotations

import csv
from functools import cache
from math import atan, cos, nextafter, pi, sin
from pathlib import Path
from typing import NamedTuple

from ..estimate import MemoryEstimate, Terms
from ..hardware import Cluster
from .device_overhead import FIXED_SEGMENTS, SEGMENT_BYTES, outside_allocator

SURE = 0.975
"""Least probability of the verdict "fits". Published runs of ten sources resolve failures down to one in eleven; rarer
ones follow Student's t."""

DATA = Path(__file__).parents[1] / "data" / "memory_spread.csv"

STATES = ("parameters", "persistent_parameters", "master_weights", "optimizer_states", "library_workspace")
"""Components that stay for the whole training."""

WASTE = "fixed segments"
"""The name in the data for the allocator's waste without expandable segments."""

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
"""Scale of a dry run's error as a share of what comes and goes within a step: it sees all tensors but no scratch memory
of kernels. Assumed."""

CPU_COVERED = 0.26
"""97.5 % of the probes in docs/probe.md measured at most this share above the prediction for a rank on the CPU
(`benchmarks/probes/cpu_memory.py`)."""

_BELOW_HALF = nextafter(0.5, 0.0)

_THREE_POINTS = ((-(3**0.5), 1 / 6), (0.0, 2 / 3), (3**0.5, 1 / 6))
"""Standard deviations and weights of Gauss-Hermite quadrature with three points."""


class SourceSpread(NamedTuple):
    """Student's t with one degree of freedom fewer than there are sources."""

    location: float
    scale: float
    sources: int

    def share_below(self, value: float) -> float:
        """Share of the distribution up to a value (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
        degrees = self.sources - 1
        angle = atan((value - self.location) / self.scale / degrees**0.5)
        power = cos(angle) if degrees % 2 else 1.0
        term = total = power if degrees > 1 else 0.0
        for step in range(2 + degrees % 2, degrees - 1, 2):
            term *= (step - 1) / step * cos(angle) ** 2
            total += term
        if degrees % 2:
            return 0.5 + (angle + sin(angle) * total) / pi
        return 0.5 + sin(angle) * total / 2


def fit_probability(memory: MemoryEstimate, cluster: Cluster, error: SourceSpread | None = None) -> float:
    """The probability that each GPU holds the predicted need of a plan. error: distribution of E instead of that of all
    published runs."""
    if cluster.gpu.is_cpu:
        from statistics import NormalDist  # here: it takes milliseconds that most answers do not need

        return NormalDist(1.0, CPU_COVERED / _COVERED).cdf(cluster.gpu.memory_bytes / memory.device_bytes_per_gpu)
    allocated = memory.allocated_bytes_per_gpu
    free, spread = cluster.gpu.memory_bytes - memory.device_bytes_per_gpu, _outside_spread_bytes(memory.device_terms)
    found = error or published_error()
    if not any(term.declared is FIXED_SEGMENTS for term in memory.reserved_terms):
        return _probability(free, allocated, spread, found)
    states = sum(term.size_bytes for term in memory.peak.terms if term.name in STATES)
    transient = max(1, allocated - states)
    free += sum(term.size_bytes for term in memory.reserved_terms) - SEGMENT_BYTES
    return sum(
        probability * _probability(round(free - share * transient), allocated, spread, found)
        for share, probability in fixed_segments_waste()
    )


def dry_run_fit_probability(need_bytes: int, transient_bytes: int, cluster: Cluster) -> float:
    """The same for a dry run."""
    spread, error = _outside_spread_bytes(outside_allocator(cluster)), published_error()
    error = error._replace(location=0.0, scale=DRY_RUN_SPREAD)
    return _probability(cluster.gpu.memory_bytes - need_bytes, max(1, transient_bytes), spread, error)


def _probability(free_bytes: int, unit_bytes: int, outside_spread_bytes: float, error: SourceSpread) -> float:
    """P for the predicted free bytes, the error as a share of unit_bytes; below one half if they are negative."""
    room, spread = free_bytes / unit_bytes, outside_spread_bytes / unit_bytes
    found = sum(weight * error.share_below(room + deviation * spread) for deviation, weight in _THREE_POINTS)
    return found if free_bytes >= 0 else min(found, _BELOW_HALF)


def _outside_spread_bytes(terms: Terms) -> float:
    """One standard deviation of the memory outside PyTorch's allocator."""
    nccl = sum(term.size_bytes for term in terms if term.name == "nccl_buffers")
    return float((CONTEXT_SPREAD_BYTES**2 + (NCCL_SPREAD * nccl) ** 2) ** 0.5)


@cache
def published_error() -> SourceSpread:
    """E of a source that is not among the published runs'."""
    found = {name: value for name, value, _ in _rows()}
    return SourceSpread(found["location"], found["scale"], int(found["sources"]))


def fixed_segments_waste() -> list[tuple[float, float]]:
    """(share of transient bytes wasted by fixed segments, probability) pairs."""
    return [(value, share) for name, value, share in _rows() if name == WASTE]


@cache
def _rows() -> list[tuple[str, float, float]]:
    """(name, value, share) of the data."""
    with DATA.open(newline="", encoding="utf-8") as file:
        return [(row["name"], float(row["value"]), float(row["share"])) for row in csv.DictReader(file)]
