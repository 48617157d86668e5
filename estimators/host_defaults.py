"""Figures of a machine that nobody tells and that are assumed until they are measured, each with its reason."""

from __future__ import annotations

from .cluster import Cluster

DRAM_BYTES_PER_S = 200e9
"""Host memory bandwidth of a node by the data sheet: one socket of eight DDR4-3200 channels (204.8 GB/s)."""

CPU_CORES = 32
"""Cores of a node. Enough that memory, not cores, bounds the optimizer's step."""

NVME_READ_BYTES_PER_S, NVME_WRITE_BYTES_PER_S = 2.5e9, 1.25e9
"""One PCIe 4 drive as DeepNVMe drives it: four of them reach 10 and 5 GB/s (DeepSpeed blogs/deepnvme, 06-2025)."""


def dram_bytes_per_s(cluster: Cluster) -> float:
    return cluster.dram_bytes_per_s_per_node or DRAM_BYTES_PER_S


def cpu_cores(cluster: Cluster) -> int:
    return cluster.cpu_cores_per_node or CPU_CORES


def nvme_read_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_read_bytes_per_s_per_node or NVME_READ_BYTES_PER_S


def nvme_write_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_write_bytes_per_s_per_node or NVME_WRITE_BYTES_PER_S


def assumed_of_host(cluster: Cluster) -> tuple[str, ...]:
    """A phrase for each figure that was assumed."""
    phrases = []
    if cluster.dram_bytes_per_s_per_node is None:
        phrases.append(f"{DRAM_BYTES_PER_S / 1e9:g} GB/s of host memory bandwidth per node")
    if cluster.cpu_cores_per_node is None:
        phrases.append(f"{CPU_CORES} CPU cores per node")
    if cluster.nvme_read_bytes_per_s_per_node is None or cluster.nvme_write_bytes_per_s_per_node is None:
        phrases.append(f"NVMe that reads {NVME_READ_BYTES_PER_S / 1e9:g} and writes {NVME_WRITE_BYTES_PER_S / 1e9:g} GB/s")
    return tuple(phrases)
