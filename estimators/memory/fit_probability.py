"""Probability that a plan's memory need fits the memory of its GPU.

    need = (1 + E) M + A + O,        P = P(need <= memory of the GPU)

M is the predicted peak of allocated bytes. E is the prediction error for a new source, as a share of M: Student's t of
published runs, each source counted once (`data/memory_spread.csv`, from `python -m benchmarks.accuracy --write`). Its
heavy tails mean that no amount of free memory makes a plan certain. A, the caching allocator's overhead, is uncertain
only without expandable segments. O, the memory outside the allocator (CUDA context, NCCL), is normal around its
prediction.

The probability is below one half if the predicted need exceeds the memory. That of host RAM has the same form, with
`HOST_SPREAD` for the error (`host_fit_probability`).

Not covered: other processes on the GPU, such as a desktop, and on the host; NVMe.
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

FIT_THRESHOLD = 0.975
"""Minimum probability of the verdict "fits". Published runs of ten sources resolve failures down to one in eleven; the
probability of rarer failures follows from Student's t."""

DATA = Path(__file__).parents[1] / "data" / "memory_spread.csv"

STATES = ("parameters", "persistent_parameters", "master_weights", "optimizer_states", "library_workspace")
"""Components that stay allocated for the whole training."""

WASTE = "fixed segments"
"""The name in the data for the allocator's waste without expandable segments."""

_GIB = 2**30
_COVERED = 1.96
"""Number of standard deviations around the mean that contain 95 % of a normal distribution."""

CONTEXT_SPREAD_BYTES = round((0.92 - 0.25) * _GIB / 2 / _COVERED)
"""Standard deviation of the CUDA context. Published sizes are 0.25 GiB (bare) to 0.92 GiB (training;
`device_overhead.CONTEXT_BYTES`)."""

NCCL_SPREAD = 0.5 / _COVERED
"""Standard deviation of NCCL's buffers, as a share of them. On links of one kind, NCCL opens between half and one and a
half times the expected channels (NVIDIA/nccl issue 864)."""

DRY_RUN_SPREAD = 0.01
"""Scale of a dry run's error, as a share of the bytes that are transient within a step. A dry run records all tensors,
but not the scratch memory of kernels. Assumed."""

HOST_SPREAD = 0.05
"""Scale of the error of host memory, as a share of the prediction: the standard deviation of measured over predicted
RAM in the four published runs with offload (`benchmarks/data/seed_runs.csv`, of one source). The tensors alone are
within 4 % of dry runs of the engine (docs/closed-form.md)."""

HOST_MARGIN = 0.115
"""Share of a predicted need to add, rounded up, so that `host_fit_probability` reaches `FIT_THRESHOLD`."""

CPU_COVERED = 0.26
"""97.5th percentile of the excess of measured over predicted memory for a rank on the CPU, as a share of the prediction
(probes in docs/probe.md, `benchmarks/probes/cpu_memory.py`)."""

_BELOW_HALF = nextafter(0.5, 0.0)

_THREE_POINTS = ((-(3**0.5), 1 / 6), (0.0, 2 / 3), (3**0.5, 1 / 6))
"""Nodes, in standard deviations, and weights of three-point Gauss-Hermite quadrature."""


class SourceSpread(NamedTuple):
    """Student's t distribution with `sources - 1` degrees of freedom."""

    location: float
    scale: float
    sources: int

    def share_below(self, value: float) -> float:
        """Return the cumulative distribution at `value` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
        degrees = self.sources - 1
        angle = atan((value - self.location) / self.scale / degrees**0.5)
        power = cos(angle) if degrees % 2 else 1.0
        term = total = power if degrees > 1 else 0.0
        for step in range(2 + degrees % 2, degrees - 1, 2):
            # Closed form for whole degrees of freedom; scipy would take longer to import than the answer takes.
            term *= (step - 1) / step * cos(angle) ** 2
            total += term
        if degrees % 2:
            return 0.5 + (angle + sin(angle) * total) / pi
        return 0.5 + sin(angle) * total / 2


def fit_probability(memory: MemoryEstimate, cluster: Cluster, error: SourceSpread | None = None) -> float:
    """Return the probability that each GPU has room for a plan's predicted need. error: the distribution of E; that of
    all published runs if None."""
    if cluster.gpu.is_cpu:
        from statistics import NormalDist  # imported here, as most answers do not need it and it takes milliseconds

        return NormalDist(1.0, CPU_COVERED / _COVERED).cdf(cluster.gpu.memory_bytes / memory.device_bytes_per_gpu)
    allocated = memory.allocated_bytes_per_gpu
    free, spread = cluster.gpu.memory_bytes - memory.device_bytes_per_gpu, outside_spread_bytes(memory.device_terms)
    found = error or published_error()
    if not any(term.declared is FIXED_SEGMENTS for term in memory.reserved_terms):
        return _probability(free, allocated, spread, found)
    states = sum(term.size_bytes for term in memory.peak.terms if term.name in STATES)
    transient = max(1, allocated - states)
    # The predicted overhead is the median share of waste; here every measured share replaces it in turn.
    free += sum(term.size_bytes for term in memory.reserved_terms) - SEGMENT_BYTES
    return sum(
        probability * _probability(round(free - share * transient), allocated, spread, found)
        for share, probability in fixed_segments_waste()
    )


def host_fit_probability(need_bytes: int, ram_bytes: int) -> float:
    """Return the probability that a node with `ram_bytes` has room for a predicted need. The tails are those of
    `published_error`: one source says nothing about them."""
    return published_error()._replace(location=0.0, scale=HOST_SPREAD).share_below(ram_bytes / need_bytes - 1)


def host_bytes_to_fit(need_bytes: int) -> int:
    """Return the RAM with which a predicted need of a node fits."""
    return int(need_bytes * (1 + HOST_MARGIN))


def dry_run_fit_probability(need_bytes: int, transient_bytes: int, cluster: Cluster) -> float:
    """Return the probability that each GPU has room for the `need_bytes` of a dry run. transient_bytes: the part of
    them that is transient within a step."""
    spread = outside_spread_bytes(outside_allocator(cluster))
    return _probability(cluster.gpu.memory_bytes - need_bytes, max(1, transient_bytes), spread, _dry_run_error())


def most_device_bytes(need_bytes: int, allocated_bytes: int, cluster: Cluster, *, is_dry_run: bool) -> int:
    """Return the memory of a GPU that a predicted need stays below with `FIT_THRESHOLD`. For a dry run it is too large,
    since all tensors count as transient. allocated_bytes: its tensors. is_dry_run: whether a dry run predicts it, not
    the closed form."""
    error = _dry_run_error() if is_dry_run else published_error()
    spread = outside_spread_bytes(outside_allocator(cluster))
    low, high = 0, need_bytes  # twice the need is far above every interval
    while high - low > need_bytes // 1000 + 1:
        middle = (low + high) // 2
        is_enough = _probability(middle, max(1, allocated_bytes), spread, error) >= FIT_THRESHOLD
        low, high = (low, middle) if is_enough else (middle, high)
    return need_bytes + high


def most_host_bytes(need_bytes: int, cluster: Cluster) -> int:
    """Return the memory of a node that a predicted need of its ranks stays below with `FIT_THRESHOLD`."""
    return int(need_bytes * (1 + CPU_COVERED)) if cluster.gpu.is_cpu else host_bytes_to_fit(need_bytes)


def _probability(free_bytes: int, unit_bytes: int, outside_spread_bytes: float, error: SourceSpread) -> float:
    """Return P for the predicted `free_bytes`, with the error as a share of `unit_bytes`; below one half if
    `free_bytes` is negative."""
    room, spread = free_bytes / unit_bytes, outside_spread_bytes / unit_bytes
    found = sum(weight * error.share_below(room + deviation * spread) for deviation, weight in _THREE_POINTS)
    return found if free_bytes >= 0 else min(found, _BELOW_HALF)


def outside_spread_bytes(terms: Terms) -> float:
    """Return the standard deviation of the memory outside PyTorch's allocator, in bytes."""
    nccl = sum(term.size_bytes for term in terms if term.name == "nccl_buffers")
    return float((CONTEXT_SPREAD_BYTES**2 + (NCCL_SPREAD * nccl) ** 2) ** 0.5)


@cache
def published_error() -> SourceSpread:
    """Return the distribution of E for a source that is not among the published runs."""
    found = {name: value for name, value, _ in _rows()}
    return SourceSpread(found["location"], found["scale"], int(found["sources"]))


def _dry_run_error() -> SourceSpread:
    """Return the distribution of a dry run's error, as a share of the transient bytes."""
    # The shape of the distribution stays that of published runs: nothing is known of a dry run's tails.
    return published_error()._replace(location=0.0, scale=DRY_RUN_SPREAD)


def fixed_segments_waste() -> list[tuple[float, float]]:
    """Return (share of transient bytes wasted by fixed segments, probability) pairs."""
    return [(value, share) for name, value, share in _rows() if name == WASTE]


@cache
def _rows() -> list[tuple[str, float, float]]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return [(row["name"], float(row["value"]), float(row["share"])) for row in csv.DictReader(file)]
