"""The machines: GPUs, their links, host memory and NVMe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class AttentionSpeed(NamedTuple):
    """The measured rate of torch's causal attention in one pass over samples of one length."""

    precision: str
    backward: bool
    keys: int
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts about one kind of GPU; None where no source gives a figure."""

    name: str
    vendor: str
    architecture: str
    compute_capability: float | None
    memory_bytes: int
    """What CUDA offers to a process (an "80 GB" A100 has 79.15 GiB), measured or else nominal less a stated share."""
    nominal_gb: int
    fp16_flops_per_s: float | None
    """The dense peak, never the sparse one; None: the GPU has no such unit. The same holds of the other types."""
    bf16_flops_per_s: float | None
    tf32_flops_per_s: float | None
    fp32_flops_per_s: float | None
    gemm_bf16_flops_per_s: float | None
    """The highest measured rate of a large matrix product, None where nobody published one; fp16 likewise."""
    gemm_fp16_flops_per_s: float | None
    memory_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    """The host link's theoretical rate, one way."""
    peer_bytes_per_s: float | None
    """The GPU-to-GPU link within a node, one way per GPU (NVLink; else PCIe through the host)."""
    peer_link: str
    """The name of that link as it is printed: "nvlink", "pcie", ..."""
    source: str
    attention: tuple[AttentionSpeed, ...] = ()
    """As measured on this very device, with rising keys of each precision and pass; empty where it was not."""
    assumed: bool = False
    """Only a memory size was given, and a reference GPU of that size lends its speed."""

    @property
    def has_bf16(self) -> bool:
        """bf16 runs on tensor cores or their like (not emulated, as on Volta and Turing)."""
        return self.bf16_flops_per_s is not None

    @property
    def is_half_rate(self) -> bool:
        """Tensor cores sum in fp32 at half their rate, which is twice that of fp32 without them: GeForce from Ampere on
        (NVIDIA's GA102, Ada and RTX Blackwell whitepapers), and the like of them for servers."""
        peak, fp32 = self.bf16_flops_per_s, self.fp32_flops_per_s
        return self.vendor == "NVIDIA" and peak is not None and fp32 is not None and peak < 2.1 * fp32

    @property
    def sends_through_host(self) -> bool:
        """What one GPU sends another is copied into host memory and out again: over PCIe, GeForce drivers let no card
        reach another's memory (tinygrad/open-gpu-kernel-modules has a patched one that does)."""
        brand, _, number = self.name.partition(" ")
        return self.peer_link == "pcie" and brand in ("GTX", "RTX") and number[:1].isdigit() and "Ada" not in number

    @property
    def is_cpu(self) -> bool:
        """The device is the host's CPU, its memory the host's RAM."""
        return self.architecture == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`nodes` M times `gpus_per_node` G of one kind of GPU, and what each node has besides.

    A figure that is not known is None; the functions below assume it then.
    """

    nodes: int
    gpus_per_node: int
    gpu: Gpu
    host_memory_bytes_per_node: int | None = None
    """RAM that training may use: the cgroup's limit where there is one."""
    nvme_bytes_per_node: int | None = None
    """Free space for swapping; 0 when there is none."""
    nvme_path: str = ""
    """The folder on the NVMe drive, "" when none was named."""
    interconnect_bytes_per_s: float | None = None
    """The network between nodes, one way, per node; None on one node."""
    cpu_cores_per_node: int | None = None
    host_score_s: float | None = None
    """The measured single-thread score of a core (`probes/benchmark_rank.py`): fewer seconds are faster."""
    threads_per_rank: int | None = None
    """Threads that each rank computes with on the host, as the training is started (OMP_NUM_THREADS). None: an equal
    part of the node's cores, which the printed commands and `launch` set where it counts."""
    dram_bytes_per_s_per_node: float | None = None
    new_memory_bytes_per_s: float | None = None
    """The measured rate at which the kernel maps memory for one process while all ranks ask for it; None: at once."""
    nvme_read_bytes_per_s_per_node: float | None = None
    nvme_write_bytes_per_s_per_node: float | None = None
    cpu_adam_parameters_per_s_per_node: float | None = None
    """The measured rate of DeepSpeedCPUAdam with fp32 states on all cores together, by one process."""
    collective_call_s: float | None = None
    """The measured time of one collective over all ranks that carries next to nothing; not used for several nodes."""
    all_reduce_bytes_per_s: float | None = None
    """The measured bus bandwidth of an all-reduce; not used for several nodes. None: that of the GPU's links."""
    is_this_machine: bool = False
    """The figures were detected on this machine."""
    measured: str = ""
    """A phrase for the answer: which figures were measured on this machine, and when; "" for none."""
    assumptions: tuple[str, ...] = ()
    """Phrases for the answer: what the user did not state and was therefore assumed."""

    @property
    def world_size(self) -> int:
        """N: data-parallel ranks, one per GPU."""
        return self.nodes * self.gpus_per_node


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
