"""Hardware: GPUs (looked up by any spelling of their name or by memory size), links, host memory and NVMe."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, log2
from pathlib import Path
from typing import Literal, NamedTuple

from .errors import ClusterError
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


_DATA = Path(__file__).parent / "data" / "gpus.csv"
_GIB = 2**30

UNMEASURED_MEMORY_SHARE = 0.98
"""Share of the nominal size, read as GiB, that CUDA offers if no figure is published.

"80 GB" of a data sheet are 80 GiB less the driver's share. Of the cards in `gpus.csv` with a measured figure and no
ECC carved out of GDDR6, the RTX 5090 offers the least: 31.36 of 32. (ECC takes another sixteenth: 22.03 of 24 on an
L4, 44.4 of 48 on an L40. All such cards have a measured figure.)
"""

SMALLEST_GB, LARGEST_GB = 4, 512
"""Range of accepted GPU memory sizes. Smaller GPUs cannot train a language model; larger ones do not exist."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name` in any spelling: `A100-80GB`, `a100 sxm 80`, `NVIDIA H100 80GB HBM3`, `rtx4090`.

    Letter case, spaces, hyphens, vendor and "GB" do not matter. A name without a form factor resolves to the SXM card
    (see `assumes_sxm`). A name without a memory size is an error if several sizes exist (`A100`, `RTX 3080`), because
    memory decides whether a plan fits.

    Source: `data/gpus.csv`, each row with its own source.

    Raises ClusterError, with the nearest names, for a name that fits no GPU or several.
    """
    candidates = gpus_named(name)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = [gpu.name for gpu in candidates]
        raise ClusterError(
            f"{name[:60]!r} matches several GPUs",
            why="they differ in memory or speed",
            fix=f"name one of them: {', '.join(names)}",
        )
    if _normal(name) == "cpu":
        raise ClusterError("--gpus takes GPUs only", fix="for training on this machine's CPU pass --device cpu")
    nearest = nearest_names(name)
    meant = f"nearest: {', '.join(nearest)}; or give" if nearest else "name one, such as --gpus 2xA100-80GB, or give"
    raise ClusterError(
        f"no GPU called {name[:60]!r} is known",
        why="its memory and speed are not known",
        fix=f"{meant} the memory alone, such as --gpus 2x24GB",
    )


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a name fits, in the order of the table: one for the full name in any spelling of `find_gpu`,
    several for a name that leaves memory or form factor out."""
    if (found := _by_spelling().get(_normal(name))) is not None:
        return (found,)
    words = _words(name)
    return tuple(gpu for gpu in gpus() if words and words <= _words(gpu.name) | {str(gpu.nominal_gb)})


def assumes_sxm(name: str, gpu: Gpu) -> bool:
    """Return whether `name` has no form factor and was resolved to the SXM card (`H100` -> H100-SXM5).

    False for a driver's own name of an SXM card ("H100 80GB HBM3").
    """
    return "SXM" in gpu.name and not re.search("sxm|hbm", name.lower())


def gpu_of_memory(gigabytes: float) -> Gpu:
    """Return a GPU for which only the memory size is known.

    memory = gigabytes * 2^30 * UNMEASURED_MEMORY_SHARE. The speed is that of the reference card for the nearest size,
    and `assumed` is set. A reference card (`reference_for_gb` in `data/gpus.csv`, with the reason next to it) has that
    size; of four or more cards it is neither in the slowest nor in the fastest quarter.

    Raises ClusterError for a size that no GPU has.
    """
    if not SMALLEST_GB <= gigabytes <= LARGEST_GB:
        raise ClusterError(
            f"{gigabytes:g} GB is not the memory of a GPU",
            why=f"sizes from {SMALLEST_GB} to {LARGEST_GB} GB are accepted",
            fix="give the memory of one GPU, such as --gpus 2x24GB",
        )
    size = min(_references(), key=lambda known: (abs(known - gigabytes), known))
    usable = int(gigabytes * _GIB * UNMEASURED_MEMORY_SHARE)
    return replace(_references()[size], memory_bytes=usable, nominal_gb=round(gigabytes), assumed=True, same_size=size)


def same_size_gpus(gpu: Gpu) -> tuple[Gpu, ...]:
    """Return the cards that `gpu` may be if only its memory size was given (`gpu_of_memory`), with its memory; else
    none."""
    return tuple(replace(each, memory_bytes=gpu.memory_bytes) for each in gpus() if each.nominal_gb == gpu.same_size)


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    return tuple(_gpu(row) for row in _rows())


def nearest_names(name: str) -> list[str]:
    """Return up to three names of GPUs that are similar to a name (`_LEAST_LIKENESS`), the most similar first."""
    from difflib import SequenceMatcher

    def seen(text: str) -> str:
        return text.translate(_LOOK_ALIKE)

    # Aliases are compared too: a driver's own name of a card may be nearer to the given one than its usual name.
    wanted = seen(_normal(name)[:100])  # the comparison takes quadratic time
    likeness = {
        gpu.name: max(SequenceMatcher(None, wanted, seen(spelling)).ratio() for spelling in _spellings(row))
        for gpu, row in zip(gpus(), _rows(), strict=True)
    }
    return [
        known
        for known in sorted(likeness, key=lambda known: -likeness[known])[:3]
        if likeness[known] >= _LEAST_LIKENESS
    ]


_LEAST_LIKENESS = 0.65
"""Least share of equal characters of similar names, among which are a digit and the letter that looks like it."""

_LOOK_ALIKE = str.maketrans("oil", "011")


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    with _DATA.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@lru_cache(maxsize=1)
def _references() -> dict[int, Gpu]:
    """Return, by memory size in GB, the reference card whose speed is assumed for cards of that size."""
    return {
        int(size): gpu
        for gpu, row in zip(gpus(), _rows(), strict=True)
        for size in row["reference_for_gb"].split(";")
        if size
    }


@lru_cache(maxsize=1)
def _by_spelling() -> dict[str, Gpu]:
    return {spelling: gpu for gpu, row in zip(gpus(), _rows(), strict=True) for spelling in _spellings(row)}


def _spellings(row: dict[str, str]) -> set[str]:
    """Return the row's names, with and without a final memory size ("RTX 4090 24GB" and "RTX 4090")."""
    names = [row["name"], *filter(None, row["aliases"].split("|"))]
    size = row["nominal_gb"]
    return {_normal(name) for name in names} | {
        _normal(name + size) for name in names if not _normal(name).endswith(size)
    }


def _normal(name: str) -> str:
    """Return `name` without its optional parts: case, separators, vendor, "GeForce", "GB"."""
    return re.sub(r"[^a-z0-9]", "", _plain(name))


def _words(name: str) -> frozenset[str]:
    # "h100" stays one word: its digits are part of the name, not a memory size.
    return frozenset(re.findall(r"[a-z]+\d*[a-z]*|\d+", _plain(name)))


def _plain(name: str) -> str:
    # "80G" is a size only after a separator: the G of "A10G" belongs to the name.
    text = re.sub(r"nvidia|geforce|tesla|amd|instinct|hbm\d?e?", " ", name.lower())
    return re.sub(r"sxm\d", "sxm", re.sub(r"(?<=\d)\s*gi?b\b|(?<=[ _-]\d\d)g\b", " ", text))


def _gpu(row: dict[str, str]) -> Gpu:
    def number(column: str, scale: float = 1.0) -> float | None:
        return float(row[column]) * scale if row[column] else None

    nominal = int(row["nominal_gb"])
    usable = number("usable_gib") or nominal * UNMEASURED_MEMORY_SHARE
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=number("compute_capability"),
        memory_bytes=int(usable * _GIB),
        nominal_gb=nominal,
        fp16_flops_per_s=number("fp16_tflops", 1e12),
        bf16_flops_per_s=number("bf16_tflops", 1e12),
        tf32_flops_per_s=number("tf32_tflops", 1e12),
        fp32_flops_per_s=number("fp32_tflops", 1e12),
        gemm_bf16_flops_per_s=number("gemm_bf16_tflops", 1e12),
        gemm_fp16_flops_per_s=number("gemm_fp16_tflops", 1e12),
        memory_bytes_per_s=number("memory_gb_per_s", 1e9),
        pcie_bytes_per_s=number("pcie_gb_per_s", 1e9),
        peer_bytes_per_s=number("peer_gb_per_s", 1e9),
        peer_link=row["peer_link"],
        source=row["source"],
    )
