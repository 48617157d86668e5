"""Hardware: GPUs, links, host memory and NVMe, and what is assumed of a machine that names none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log2
from typing import Literal, NamedTuple

from .machine_parts import ASSUMED_DRIVE, Host, assumed_host, bridge_of, named_host, pcie_bytes_per_s

_PCIE3_BYTES_PER_S = pcie_bytes_per_s(3, 16)
_LEAST_CAPABILITY_OF_TRITON = 7.0


class AttentionSpeed(NamedTuple):
    """Measured rate of torch's causal attention in one pass."""

    precision: str
    backward: bool
    keys: int
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts about one GPU model; None for a figure that no source gives."""

    name: str
    vendor: str
    architecture: str
    compute_capability: float | None
    memory_bytes: int
    """Memory that CUDA offers to a process (an "80 GB" A100: 79.15 GiB), measured, or nominal less a stated share."""
    nominal_gb: int
    fp16_flops_per_s: float | None
    """Dense peak; None if the GPU has no such unit. The other types likewise."""
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
    """Printed name of the link: "nvlink", "pcie", ..."""
    source: str
    peer_joins: int | None = None
    """Largest number of cards that bridges join; None for a link of all GPUs of a node."""
    attention: tuple[AttentionSpeed, ...] = ()
    """Rates measured on this device, in ascending order of keys for each precision and pass."""
    assumed: bool = False
    """Whether only a memory size was given and the speed is that of a reference GPU."""
    same_size: int = 0
    """Nominal memory in GB of the cards that it may be, if its memory alone is known; else 0."""
    unknown_name: str = ""
    """The name that was given with the memory size, if no GPU of the table has it."""

    @property
    def has_bf16(self) -> bool:
        return self.bf16_flops_per_s is not None

    @property
    def obstacle_to_triton(self) -> str | None:
        """The reason that kernels in Triton do not run (torch 2.13 _inductor/scheduler.py `GPUTooOldForTriton`); None
        if they do, also for a GPU whose compute capability is unknown."""
        capability = self.compute_capability
        if capability is None or capability >= _LEAST_CAPABILITY_OF_TRITON:
            return None
        return f"Triton needs compute capability {_LEAST_CAPABILITY_OF_TRITON}, and the {self.name} has {capability}"

    @property
    def half_precision(self) -> Literal["bf16", "fp16"]:
        return "bf16" if self.has_bf16 else "fp16"

    @property
    def is_half_rate(self) -> bool:
        """Whether tensor cores accumulate in fp32 at half their rate: GeForce from Ampere on (NVIDIA's GA102, Ada and
        RTX Blackwell whitepapers), and similar server cards."""
        peak, fp32 = self.bf16_flops_per_s, self.fp32_flops_per_s
        # Their data sheets state twice the fp32 rate for bf16; all full-rate cards state at least 3.4 times.
        return self.vendor == "NVIDIA" and peak is not None and fp32 is not None and peak < 2.1 * fp32

    @property
    def is_geforce(self) -> bool:
        brand, _, number = self.name.partition(" ")
        # "RTX A6000" and "RTX 6000 Ada" are workstation cards.
        return brand in ("GTX", "RTX") and number[:1].isdigit() and "Ada" not in number

    @property
    def sends_through_host(self) -> bool:
        """Whether GPUs exchange data through host memory: over PCIe, GeForce drivers have no peer access."""
        return self.peer_link == "pcie" and self.is_geforce

    @property
    def is_joined(self) -> bool:
        """Whether NVLink joins all GPUs of a node by design, not by bridges."""
        return self.peer_link == "nvlink" and bridge_of(self.name) is None

    @property
    def pcie_generation(self) -> int:
        """Generation of PCIe that has the GPU's rate to the host with 16 lanes, or the nearest."""
        return 3 + round(log2((self.pcie_bytes_per_s or _PCIE3_BYTES_PER_S) / _PCIE3_BYTES_PER_S))

    @property
    def is_cpu(self) -> bool:
        return self.architecture == "cpu"


MOST_HOST_BYTES = 2 * 2**40
"""Largest host memory of a plan if the RAM of a node is unknown: that of NVIDIA's DGX H100 and DGX B200 (2 TB, data
sheets)."""


_SMALL_HOSTS = {"T4": round(12.7 * 2**30), "A10G": 16 * 2**30, "L4": 16 * 2**30}
"""RAM per GPU of the smallest usual machine, for cards whose machines have less than the GPU: a notebook of Google
Colab has 12.7 GiB with a T4; AWS g5.xlarge and g6.xlarge have 16 GiB (docs.aws.amazon.com, EC2 accelerated computing
instances)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """M nodes of G GPUs of one model. Unknown figures are None; the functions below supply defaults."""

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
    """OMP_NUM_THREADS of each rank. None for an equal share of the node's cores, which the printed commands and
    `launch` set where it affects the speed."""
    dram_bytes_per_s_per_node: float | None = None
    new_memory_bytes_per_s: float | None = None
    """Measured rate at which the kernel maps memory for one process while all ranks allocate."""
    nvme_read_bytes_per_s_per_node: float | None = None
    nvme_write_bytes_per_s_per_node: float | None = None
    cpu_adam_parameters_per_s_per_node: float | None = None
    """Measured rate of DeepSpeedCPUAdam with fp32 states on all cores, by one process."""
    collective_call_s: float | None = None
    """Measured time of an almost empty collective over all ranks; not used for several nodes."""
    all_reduce_bytes_per_s: float | None = None
    """Measured bus bandwidth of an all-reduce; not used for several nodes."""
    links_are_known: bool = False
    """Whether the links of the GPUs in a node were stated or measured."""
    is_this_machine: bool = False
    """Whether the figures were detected on this machine."""
    measured: str = ""
    """The figures measured on this machine, and the date, as a phrase."""
    assumptions: tuple[str, ...] = ()
    """Assumptions for values that the user did not state, as phrases."""

    @property
    def world_size(self) -> int:
        """N: data-parallel ranks, one per GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def most_host_bytes_per_node(self) -> int:
        """Largest host memory of a plan: `ram_limit_bytes`, or `MOST_HOST_BYTES` if it is unknown."""
        return self.ram_limit_bytes or MOST_HOST_BYTES

    @property
    def ram_limit_bytes(self) -> int | None:
        """RAM of a node, or the largest that its processors are sold with (Grace); None if neither is known. A desktop
        is no limit: another host takes its place (`node_with_ram`)."""
        if self.host_memory_bytes_per_node is not None or is_desktop(self):
            return self.host_memory_bytes_per_node
        most = assumed_node_host(self).most_ram_bytes
        return None if most == inf else int(most)

    @property
    def usual_host_bytes_per_node(self) -> int:
        """RAM that nearly every node with these GPUs has: as much as their memory (no machine of the price table,
        `advisor/question/prices.csv`, has less), or that of `_SMALL_HOSTS`."""
        memory = self.gpu.memory_bytes
        return self.gpus_per_node * min(memory, _SMALL_HOSTS.get(self.gpu.name, memory))


DESKTOP_CORES, DESKTOP_GPUS = 16, 2
"""Most cores of a desktop's processor, and most GeForce or TITAN cards of a node that is assumed to be one. The only
published steps of such cards with an optimizer on the host (gpt2-xl on 2 TITAN RTX, huggingface/blog
accelerate-deepspeed; Qwen2.5-0.5B on 2 RTX 3080, seed 000) were 1.5 to 3 times slower than a server's, and lie within
30 % with it."""

KERNEL_MEMORY_SHARE = 0.02
"""Share of the installed RAM that is unavailable to processes: a 64-byte descriptor per 4 KiB page (1.6 %; Linux
include/linux/mm_types.h `struct page`), and the reservations of firmware and kernel."""

_GBIT_PER_S = {"Ampere": 400, "Hopper": 3200, "Blackwell": 3200}
"""Bandwidth between nodes by the architecture of GPUs joined by NVLink: AWS p4d (8 x A100, 400 Gb/s), p5 and p6-b200
(8 x H100 or B200, 3200 Gb/s), the most common cloud machines of each (docs.aws.amazon.com, EC2 accelerated computing
instances). Other nodes are assumed to have 100 Gb/s, as AWS p3dn (8 x V100) and the largest g5 (8 x A10G)."""

HOST_SCORE_S = 0.0067
"""Single-thread score of the reference core of the unit costs in `time/host_costs.py`, an AMD EPYC of 2024 (Zen 5)."""

_HOST_SLOWER, _HOST_SLOWEST = {"Ada": 1.5, "Hopper": 1.5, "Blackwell": 1.5, "CDNA3": 1.5, "CDNA4": 1.5}, 2.7
"""How many times as long as the reference core a core of a host takes, by the GPU's architecture, and with older GPUs.
Fitted on the speed of `generate` by one process in Qwen's documentation, with H20 and with A100
(`benchmarks/rollout_speed.py`); no training step was used. An idle Cascade Lake at 2.5 GHz has a score of 0.018, which
is 2.7 times as much."""

HOST_CORE = "CPU cores as fast as those usual beside such GPUs"


def dram_bytes_per_s(cluster: Cluster) -> float:
    return cluster.dram_bytes_per_s_per_node or assumed_node_host(cluster).memory_bytes_per_s


def assumed_host_name(cluster: Cluster) -> str:
    """Return the name in `data/hosts.csv` of the host of a node, if it is unknown: by the GPU, a desktop, by the
    architecture of eight or more NVLink GPUs, or a server. `node_with_ram` has that of a plan."""
    gpu = cluster.gpu
    if is_desktop(cluster):
        return "desktop"
    is_large = gpu.is_joined and cluster.gpus_per_node >= 8
    return assumed_host(gpu.name) or (assumed_host(gpu.architecture) if is_large else "") or "server"


def assumed_node_host(cluster: Cluster) -> Host:
    host = named_host(assumed_host_name(cluster), cluster.gpus_per_node)
    assert host is not None
    return host


def is_desktop(cluster: Cluster) -> bool:
    """Return whether the host is assumed to be a desktop, which holds the RAM of a node as far as that is known."""
    gpu, cores = cluster.gpu, cluster.cpu_cores_per_node or 0
    is_small = cluster.gpus_per_node <= DESKTOP_GPUS and cores <= 2 * DESKTOP_CORES
    is_small = is_small and desktop_holds(cluster.host_memory_bytes_per_node or 0)
    return is_small and (gpu.is_geforce or gpu.name.startswith("TITAN"))


def node_with_ram(cluster: Cluster, ram_bytes: int) -> Cluster:
    """Return the cluster with nodes of a server's RAM if theirs is unknown and the assumed desktop cannot hold this
    much."""
    if cluster.host_memory_bytes_per_node is not None or not is_desktop(cluster) or desktop_holds(ram_bytes):
        return cluster
    return replace(cluster, host_memory_bytes_per_node=MOST_HOST_BYTES)


def desktop_holds(ram_bytes: int) -> bool:
    host = named_host("desktop", 1)
    return host is not None and ram_bytes <= host.most_ram_bytes


def cpu_cores(cluster: Cluster) -> int:
    return cluster.cpu_cores_per_node or assumed_node_host(cluster).cores


def host_score_s(cluster: Cluster) -> float:
    return cluster.host_score_s or HOST_SCORE_S * _HOST_SLOWER.get(cluster.gpu.architecture, _HOST_SLOWEST)


def cores_per_rank(cluster: Cluster) -> int:
    return max(1, cpu_cores(cluster) // cluster.gpus_per_node)


def threads_per_rank(cluster: Cluster) -> int:
    return cluster.threads_per_rank or cores_per_rank(cluster)


def nvme_read_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_read_bytes_per_s_per_node or ASSUMED_DRIVE[0]


def nvme_write_bytes_per_s(cluster: Cluster) -> float:
    return cluster.nvme_write_bytes_per_s_per_node or ASSUMED_DRIVE[1]


def network_bytes_per_s(cluster: Cluster) -> float:
    """Return the network bandwidth between nodes, one way, per node: the stated one, or the default for the GPUs."""
    if cluster.interconnect_bytes_per_s is not None:
        return cluster.interconnect_bytes_per_s
    return (_GBIT_PER_S.get(cluster.gpu.architecture, 100) if cluster.gpu.is_joined else 100) * 1e9 / 8


def network_assumption(cluster: Cluster) -> str:
    """Return the assumed network between nodes as a phrase; "" for one node, and if the user gave it."""
    if cluster.nodes == 1 or cluster.interconnect_bytes_per_s is not None:
        return ""
    return f"{network_bytes_per_s(cluster) * 8 / 1e9:g} Gb/s between nodes"


DRIVE_PHRASE = f"NVMe that reads {ASSUMED_DRIVE[0] / 1e9:g} and writes {ASSUMED_DRIVE[1] / 1e9:g} GB/s"


def host_phrase(cluster: Cluster) -> str:
    return f"{dram_bytes_per_s(cluster) / 1e9:g} GB/s of host memory bandwidth"


def assumes_drive(cluster: Cluster) -> bool:
    return None in (cluster.nvme_read_bytes_per_s_per_node, cluster.nvme_write_bytes_per_s_per_node)


def assumes_pcie(cluster: Cluster) -> bool:
    """Return whether the GPUs are assumed to have PCIe links alone, in slots as fast as they are."""
    return cluster.gpu.peer_link == "pcie" and not cluster.links_are_known


def pcie_phrase(cluster: Cluster) -> str:
    return f"PCIe {cluster.gpu.pcie_generation} x16 for each GPU"


def machine_assumptions(cluster: Cluster) -> tuple[str, ...]:
    phrases = [network] if (network := network_assumption(cluster)) else []
    if cluster.dram_bytes_per_s_per_node is None:
        phrases.append(host_phrase(cluster))
    if cluster.cpu_cores_per_node is None:
        phrases.append(f"{cpu_cores(cluster)} CPU cores per node")
    if assumes_drive(cluster):
        phrases.append(DRIVE_PHRASE)
    if assumes_pcie(cluster):
        phrases.append(pcie_phrase(cluster))
    return tuple(phrases)
