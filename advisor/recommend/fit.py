"""Does a plan fit? Device memory, host memory and NVMe against what the cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from ...estimators.estimate import Evidence, MemoryEstimate
from ...estimators.hardware.cluster import Cluster
from ..terminal.units import times

MARGIN: dict[Evidence, float] = {"analytic": 0.05, "dry-run": 0.03, "solo-probe": 0.01, "probe": 0.0, "training": 0.0}
"""Share of the predicted device memory that must stay free besides, by how the figure is known.

analytic: what 97.5 % of the published runs in benchmarks/accuracy whose peak of allocated memory is known, and that ran
          transformers' model code, measured at most beyond the prediction, in whole percent, rounded up. A test
          recomputes it. (The closed form is at most 2.1 % below the dry run: docs/closed-form.md.)
dry-run:  kernels' own scratch memory, and the published spread of the CUDA context (0.25 to 0.9 GiB) and of NCCL.
Measured figures need none, but for one rank that stands for all (solo-probe), whose NCCL is not there.
"""

CPU_MARGIN = 0.26
"""The same of the closed form for ranks on the CPU, whose allocator is the process's heap: what 97.5 % of the probes in
docs/probe.md measured at most beyond the prediction (benchmarks/probes/cpu_memory.py)."""

TOO_TIGHT = "too tight"
"""The verdict on a plan that the GPU could hold, but without the margin."""

RAN_OUT, NEEDS_MORE, FAILED = "ran out of memory", "needs more yet", "failed"
"""The verdicts on a plan that ran out of memory in a probe, on one that needs more than it, and on one whose probe
failed for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The verdict on one plan."""

    fits: bool
    """Every requirement that is known to be bounded is met."""
    reason: str
    """A short phrase for a table ("1.2 x the GPU", "too tight", "fits")."""
    utilization: float
    """The largest of need / offer over GPU (with the margin), host and NVMe; at most 1 where it fits."""
    limit: str
    """What is exceeded: "gpu", "host", "nvme" (the first of them), or "" where it fits."""


def margin(cluster: Cluster, evidence: Evidence) -> float:
    """Share of the predicted device memory that must stay free besides."""
    return CPU_MARGIN if cluster.gpu.is_cpu and evidence == "analytic" else MARGIN[evidence]


def fit_of(memory: MemoryEstimate, cluster: Cluster, *, evidence: Evidence = "analytic") -> Fit:
    """Compare a plan's needs with the cluster.

    The GPU is judged on device memory (never on allocated or reserved) with `margin`. Host memory and NVMe that are not
    known are requirements of the plan, not reasons against it; except that NVMe that nobody named cannot be configured.
    """
    bare = memory.device_bytes_per_gpu / cluster.gpu.memory_bytes
    gpu = bare * (1 + margin(cluster, evidence))
    host = _share(memory.host_bytes_per_node, cluster.host_memory_bytes_per_node)
    disk = _share(memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node or None)
    utilization = max(gpu, host, disk)
    if gpu > 1:
        # A plan within its margin is refused for caution, and the reason must not claim that it is larger than the GPU.
        reason = _needs(bare, "limit" if cluster.gpu.is_cpu else "GPU") if bare > 1 else TOO_TIGHT
        return Fit(fits=False, reason=reason, utilization=utilization, limit="gpu")
    if host > 1:
        return Fit(fits=False, reason=_needs(host, "RAM"), utilization=utilization, limit="host")
    if memory.nvme_bytes_per_node and not cluster.nvme_bytes_per_node:
        return Fit(fits=False, reason="needs --nvme", utilization=max(utilization, 1.0), limit="nvme")
    if disk > 1:
        return Fit(fits=False, reason=_needs(disk, "NVMe"), utilization=utilization, limit="nvme")
    return Fit(fits=True, reason="fits", utilization=utilization, limit="")


def _share(need: int, offer: int | None) -> float:
    return need / offer if offer else 0.0


def _needs(ratio: float, what: str) -> str:
    """`1.04 x the GPU`, `5.3 x the RAM`, `20 x the GPU`: how much of it the plan needs."""
    return f"{times(ratio)} the {what}"
