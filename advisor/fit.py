"""Does a plan fit? Device memory, host memory and NVMe against what the cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from ..estimators.cluster import Cluster
from ..estimators.estimate import Evidence, MemoryEstimate

MARGIN: dict[Evidence, float] = {"analytic": 0.05, "dry-run": 0.03, "solo-probe": 0.01, "probe": 0.0, "training": 0.0}
"""Share of the predicted device memory that must stay free besides, by how the figure is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The verdict on one plan.

    fits:   every requirement that is known to be bounded is met.
    reason: a short phrase for a table ("1.2 x too large", "fits").
    shortfall: largest of need / offer over GPU, host and NVMe; at most 1 where it fits.
    limit:  what is exceeded: "gpu", "host", "nvme", or "" where it fits.
    """

    fits: bool
    reason: str
    shortfall: float
    limit: str


def judge(memory: MemoryEstimate, cluster: Cluster, *, evidence: Evidence = "analytic") -> Fit:
    """Compare a plan's needs with the cluster.

    The GPU is judged on device memory (never on allocated or reserved) with `MARGIN`. Host memory and NVMe that are not
    known are requirements of the plan, not reasons against it; except that NVMe that nobody named cannot be configured.
    """
    gpu = memory.device_bytes_per_gpu * (1 + MARGIN[evidence]) / cluster.gpu.memory_bytes
    if gpu > 1:
        # A plan within its margin is refused for caution, and the reason must not claim that it is larger than the GPU.
        bare = memory.device_bytes_per_gpu / cluster.gpu.memory_bytes
        reason = f"{_times(bare)} too large" if bare > 1 else "within the margin"
        return Fit(fits=False, reason=reason, shortfall=gpu, limit="gpu")
    host = _share(memory.host_bytes_per_node, cluster.host_memory_bytes_per_node)
    if host > 1:
        return Fit(fits=False, reason=f"RAM {_times(host)} short", shortfall=host, limit="host")
    nvme = memory.nvme_bytes_per_node
    if nvme and not cluster.nvme_bytes_per_node:
        return Fit(fits=False, reason="needs --nvme", shortfall=1.0, limit="nvme")
    disk = _share(nvme, cluster.nvme_bytes_per_node)
    if disk > 1:
        return Fit(fits=False, reason=f"NVMe {_times(disk)} short", shortfall=disk, limit="nvme")
    return Fit(fits=True, reason="fits", shortfall=max(gpu, host, disk), limit="")


def _share(need: int, offer: int | None) -> float:
    if not need or offer is None:
        return 0.0
    return need / offer if offer else float("inf")


def _times(ratio: float) -> str:
    return f"{ratio:.1f} x" if ratio < 9.95 else f"{ratio:.0f} x"
