"""Figures of a machine that nobody tells and that are assumed until they are measured, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from .cluster import Cluster

DRAM_BYTES_PER_S = 200e9
"""Host memory bandwidth of a node: one socket of eight DDR4-3200 channels.

Nodes of eight GPUs have two to three times as much by their data sheets (DGX A100 2 x 204.8 GB/s, DGX H100 2 x 307
GB/s), but in no published run is DeepSpeed's step on the host faster for it: see `offload_time.DRAM_SHARE`.
"""

KERNEL_MEMORY_SHARE = 0.02
"""Part of the installed RAM that no process gets: a descriptor of 64 bytes for each page of 4 KiB (1.6 %; Linux
include/linux/mm_types.h `struct page`), and what the firmware and the kernel reserve at boot besides."""

_CPU_CORES = {"Ampere": 128, "Hopper": 112, "Blackwell": 112}
"""Cores of a node built around GPUs joined by NVLink, by their architecture (DGX A100: 2 x 64, DGX H100 and B200: 2 x
56); any other: 32, enough that memory and not cores bounds the optimizer's step."""

HOST_SCORE_S = 0.018
"""Single-thread score of a core: about that of an Intel Xeon (Cascade Lake) at 2.5 GHz with nothing beside it, a usual
host of A100 and V100 in clouds, to which the unit costs of `time/host_costs.py` belong: measured times are brought
to it by the score that was taken around each of them. Published runs tell their GPUs and hardly ever their cores."""

HOST_CORE = "CPU cores as fast as a Xeon of 2.5 GHz"
"""The same in words."""

NVME_READ_BYTES_PER_S, NVME_WRITE_BYTES_PER_S = 2.5e9, 1.25e9
"""One PCIe 4 drive as DeepNVMe drives it: four of them reach 10 and 5 GB/s (DeepSpeed blogs/deepnvme, 06-2025)."""


def dram_bytes_per_s(cluster: Cluster) -> float:
    return cluster.dram_bytes_per_s_per_node or DRAM_BYTES_PER_S


def cpu_cores(cluster: Cluster) -> int:
    return cluster.cpu_cores_per_node or round(_by_gpu(_CPU_CORES, cluster, otherwise=32))


def host_score_s(cluster: Cluster) -> float:
    return cluster.host_score_s or HOST_SCORE_S


def cores_per_rank(cluster: Cluster) -> int:
    """An equal part of the node's cores for each rank."""
    return max(1, cpu_cores(cluster) // cluster.gpus_per_node)


def threads_per_rank(cluster: Cluster) -> int:
    return cluster.threads_per_rank or cores_per_rank(cluster)


def nvme_read_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_read_bytes_per_s_per_node or NVME_READ_BYTES_PER_S


def nvme_write_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_write_bytes_per_s_per_node or NVME_WRITE_BYTES_PER_S


def _by_gpu(known: Mapping[str, float], cluster: Cluster, *, otherwise: float) -> float:
    """The figure of a node built around such GPUs; a node with fewer than eight of them may be any machine."""
    built = cluster.gpu.peer_link == "nvlink" and cluster.gpus_per_node >= 8
    return known.get(cluster.gpu.architecture, otherwise) if built else otherwise


def assumed_of_host(cluster: Cluster) -> tuple[str, ...]:
    """A phrase for each figure that was assumed."""
    phrases = []
    if cluster.dram_bytes_per_s_per_node is None:
        phrases.append(f"{dram_bytes_per_s(cluster) / 1e9:g} GB/s of host memory bandwidth per node")
    if cluster.cpu_cores_per_node is None:
        phrases.append(f"{cpu_cores(cluster)} CPU cores per node")
    if cluster.nvme_read_bytes_per_s_per_node is None or cluster.nvme_write_bytes_per_s_per_node is None:
        phrases.append(
            f"NVMe that reads {NVME_READ_BYTES_PER_S / 1e9:g} and writes {NVME_WRITE_BYTES_PER_S / 1e9:g} GB/s"
        )
    return tuple(phrases)
