"""The machines: GPUs, their links, host memory and NVMe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..phrase import phrase


class AttentionSpeed(NamedTuple):
    """Measured rate of torch's causal attention in one pass."""

    precision: str
    backward: bool
    keys: int
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts about one kind of GPU; None if no source gives a figure."""

    name: str
    vendor: str
    architecture: str
    compute_capability: float | None
    memory_bytes: int
    """Memory that CUDA offers to a process (an "80 GB" A100: 79.15 GiB), measured, or nominal less a stated share."""
    nominal_gb: int
    fp16_flops_per_s: float | None
    """Dense peak; None: the GPU has no such unit. The same for the other types."""
    bf16_flops_per_s: float | None
    tf32_flops_per_s: float | None
    fp32_flops_per_s: float | None
    gemm_bf16_flops_per_s: float | None
    """Highest measured rate of a large matrix product."""
    gemm_fp16_flops_per_s: float | None
    memory_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    """Theoretical rate of the host link, one way."""
    peer_bytes_per_s: float | None
    """GPU-to-GPU link within a node, one way per GPU (NVLink; else PCIe through the host)."""
    peer_link: str
    """As printed: "nvlink", "pcie", ..."""
    source: str
    attention: tuple[AttentionSpeed, ...] = ()
    """Measured on this device, with rising keys of each precision and pass."""
    assumed: bool = False
    """Only a memory size was given; the speed is a reference GPU's."""

    @property
    def has_bf16(self) -> bool:
        """bf16 is not emulated."""
        return self.bf16_flops_per_s is not None

    @property
    def half_precision(self) -> Literal["bf16", "fp16"]:
        """The format of 16 bits that it trains in without being asked."""
        return "bf16" if self.has_bf16 else "fp16"

    @property
    def is_half_rate(self) -> bool:
        """Tensor cores sum in fp32 at half their rate: GeForce from Ampere on (NVIDIA's GA102, Ada and RTX Blackwell
        whitepapers), and similar server cards."""
        peak, fp32 = self.bf16_flops_per_s, self.fp32_flops_per_s
        return self.vendor == "NVIDIA" and peak is not None and fp32 is not None and peak < 2.1 * fp32

    @property
    def sends_through_host(self) -> bool:
        """GPUs exchange data through host memory: over PCIe, GeForce drivers have no peer access."""
        brand, _, number = self.name.partition(" ")
        return self.peer_link == "pcie" and brand in ("GTX", "RTX") and number[:1].isdigit() and "Ada" not in number

    @property
    def is_cpu(self) -> bool:
        """The device is the host's CPU."""
        return self.architecture == "cpu"


MOST_HOST_BYTES = 2 * 2**40
"""Most RAM that a plan may need where the RAM of a node is unknown: that of NVIDIA's DGX H100 and DGX B200 (2 TB, data
sheets)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """M nodes of G GPUs of one kind. Unknown figures are None; the functions below have defaults."""

    nodes: int
    gpus_per_node: int
    gpu: Gpu
    host_memory_bytes_per_node: int | None = None
    """Usable RAM: the cgroup's limit if there is one."""
    nvme_bytes_per_node: int | None = None
    """Free space for swapping."""
    nvme_path: str = ""
    """The folder on the NVMe drive."""
    interconnect_bytes_per_s: float | None = None
    """Network between nodes, one way, per node (`network_bytes_per_s`)."""
    cpu_cores_per_node: int | None = None
    host_score_s: float | None = None
    """Measured single-thread score of a core (`probes/benchmark_rank.py`); fewer seconds are faster."""
    threads_per_rank: int | None = None
    """OMP_NUM_THREADS. None: an equal part of the node's cores, which the printed commands and `launch` set where it
    counts."""
    dram_bytes_per_s_per_node: float | None = None
    new_memory_bytes_per_s: float | None = None
    """Measured rate at which the kernel maps memory for one process while all ranks ask for it."""
    nvme_read_bytes_per_s_per_node: float | None = None
    nvme_write_bytes_per_s_per_node: float | None = None
    cpu_adam_parameters_per_s_per_node: float | None = None
    """Measured rate of DeepSpeedCPUAdam with fp32 states on all cores, by one process."""
    collective_call_s: float | None = None
    """Measured time of an almost empty collective over all ranks; not used for several nodes."""
    all_reduce_bytes_per_s: float | None = None
    """Measured bus bandwidth of an all-reduce; not used for several nodes."""
    is_this_machine: bool = False
    """The figures were detected on this machine."""
    measured: str = ""
    """Which figures were measured on this machine, and when, as a phrase."""
    assumptions: tuple[str, ...] = ()
    """Assumptions in place of what the user did not state, as phrases."""

    @property
    def world_size(self) -> int:
        """N: data-parallel ranks, one per GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def most_host_bytes_per_node(self) -> int:
        """The RAM that a plan may need: what a node has, or `MOST_HOST_BYTES` where that is unknown."""
        return self.host_memory_bytes_per_node or MOST_HOST_BYTES


DRAM_BYTES_PER_S = 200e9
"""Host memory bandwidth of a node: one socket of eight DDR4-3200 channels. Nodes of eight GPUs have two to three times
as much (DGX A100 2 x 204.8 GB/s, DGX H100 2 x 307), but no published run's step on the host is faster for it
(`offload_time.DRAM_SHARE`)."""

KERNEL_MEMORY_SHARE = 0.02
"""Share of the installed RAM that no process gets: a 64-byte descriptor per 4 KiB page (1.6 %; Linux
include/linux/mm_types.h `struct page`), and what firmware and kernel reserve."""

_CPU_CORES = {"Ampere": 128, "Hopper": 112, "Blackwell": 112}
"""Cores of a node with NVLink GPUs (DGX A100: 2 x 64, DGX H100 and B200: 2 x 56); others: 32, so that memory bounds the
optimizer's step."""

_GBIT_PER_S = {"Ampere": 400, "Hopper": 3200, "Blackwell": 3200}
"""Bandwidth between nodes by the architecture of GPUs joined by NVLink: AWS p4d (8 x A100, 400 Gb/s), p5 and p6-b200
(8 x H100 or B200, 3200 Gb/s), the most common cloud machines of each (docs.aws.amazon.com, EC2 accelerated computing
instances). Other nodes get 100 Gb/s, as AWS p3dn (8 x V100) has and g5 (8 x A10G) at most."""

HOST_SCORE_S = 0.018
"""Single-thread score of an idle Intel Xeon (Cascade Lake) at 2.5 GHz, a usual cloud host of A100 and V100, to which
the unit costs of `time/host_costs.py` belong."""

HOST_CORE = phrase("CPU cores as fast as a Xeon of 2.5 GHz")

NVME_READ_BYTES_PER_S, NVME_WRITE_BYTES_PER_S = 2.5e9, 1.25e9
"""One PCIe 4 drive under DeepNVMe; four reach 10 and 5 GB/s (DeepSpeed blogs/deepnvme, 06-2025)."""


def dram_bytes_per_s(cluster: Cluster) -> float:
    return cluster.dram_bytes_per_s_per_node or DRAM_BYTES_PER_S


def cpu_cores(cluster: Cluster) -> int:
    return cluster.cpu_cores_per_node or round(_by_gpu(_CPU_CORES, cluster, otherwise=32))


def host_score_s(cluster: Cluster) -> float:
    return cluster.host_score_s or HOST_SCORE_S


def cores_per_rank(cluster: Cluster) -> int:
    return max(1, cpu_cores(cluster) // cluster.gpus_per_node)


def threads_per_rank(cluster: Cluster) -> int:
    return cluster.threads_per_rank or cores_per_rank(cluster)


def nvme_read_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_read_bytes_per_s_per_node or NVME_READ_BYTES_PER_S


def nvme_write_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_write_bytes_per_s_per_node or NVME_WRITE_BYTES_PER_S


def _by_gpu(known: Mapping[str, float], cluster: Cluster, *, otherwise: float) -> float:
    """Figure of nodes of eight or more NVLink GPUs; others may be any machine."""
    built = cluster.gpu.peer_link == "nvlink" and cluster.gpus_per_node >= 8
    return known.get(cluster.gpu.architecture, otherwise) if built else otherwise


def network_bytes_per_s(cluster: Cluster) -> float:
    """Network between nodes, one way, per node: the stated one, or that of machines with such GPUs."""
    if cluster.interconnect_bytes_per_s is not None:
        return cluster.interconnect_bytes_per_s
    linked = cluster.gpu.peer_link == "nvlink"
    return (_GBIT_PER_S.get(cluster.gpu.architecture, 100) if linked else 100) * 1e9 / 8


def assumed_of_machines(cluster: Cluster) -> tuple[str, ...]:
    """A phrase for each assumed figure."""
    phrases = []
    if cluster.nodes > 1 and cluster.interconnect_bytes_per_s is None:
        speed = f"{network_bytes_per_s(cluster) * 8 / 1e9:g}"
        phrases.append(phrase("{speed} Gb/s between nodes (--interconnect)", speed=speed))
    if cluster.dram_bytes_per_s_per_node is None:
        speed = f"{dram_bytes_per_s(cluster) / 1e9:g}"
        phrases.append(phrase("{speed} GB/s of host memory bandwidth per node", speed=speed))
    if cluster.cpu_cores_per_node is None:
        phrases.append(phrase("{count} CPU cores per node", count=cpu_cores(cluster)))
    if cluster.nvme_read_bytes_per_s_per_node is None or cluster.nvme_write_bytes_per_s_per_node is None:
        phrases.append(
            phrase(
                "NVMe that reads {read} and writes {write} GB/s",
                read=f"{NVME_READ_BYTES_PER_S / 1e9:g}",
                write=f"{NVME_WRITE_BYTES_PER_S / 1e9:g}",
            )
        )
    return tuple(phrases)
