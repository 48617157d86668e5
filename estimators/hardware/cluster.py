"""The machines: GPUs, their links, host memory and NVMe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts about one kind of GPU; None where no source gives a figure.

    memory_bytes:   what CUDA offers to a process (an "80 GB" A100 has 79.15 GiB), from the data file when measured,
                    else nominal less a stated allowance.
    *_flops_per_s:  dense peak by dtype, never the sparse one. None: the GPU has no such unit (bf16 before Ampere).
    gemm_*_flops_per_s: highest measured rate of a large matrix product, None where nobody published one.
    memory_bytes_per_s: device memory bandwidth.
    pcie_bytes_per_s:   host link, one way, theoretical.
    peer_bytes_per_s:   GPU-to-GPU link within a node, one way per GPU (NVLink; else PCIe through the host).
    peer_link:      "nvlink", "pcie", ... as printed.
    assumed:        True when only a memory size was given and a reference GPU of that size lends its speed.
    """

    name: str
    vendor: str
    architecture: str
    compute_capability: float | None
    memory_bytes: int
    nominal_gb: int
    fp16_flops_per_s: float | None
    bf16_flops_per_s: float | None
    tf32_flops_per_s: float | None
    fp32_flops_per_s: float | None
    gemm_bf16_flops_per_s: float | None
    gemm_fp16_flops_per_s: float | None
    memory_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    peer_bytes_per_s: float | None
    peer_link: str
    source: str
    assumed: bool = False

    @property
    def has_bf16(self) -> bool:
        """bf16 runs on tensor cores or their like (not emulated, as on Volta and Turing)."""
        return self.bf16_flops_per_s is not None

    @property
    def is_cpu(self) -> bool:
        """The device is the host's CPU, its memory the host's RAM."""
        return self.architecture == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """nodes M x gpus_per_node G of one kind of GPU, and what each node has besides.

    host_memory_bytes_per_node: RAM that training may use, the cgroup's limit first; None when not known.
    nvme_bytes_per_node:        free space for swapping; None when not known, 0 when there is none.
    nvme_path:                  the folder on it, "" when none was named.
    interconnect_bytes_per_s:   node to node, one way, per node; None on one node.
    cpu_cores_per_node, dram_bytes_per_s_per_node: for CPU Adam; None when not known.
    nvme_read_bytes_per_s_per_node, nvme_write_bytes_per_s_per_node: None when not known.
    cpu_adam_parameters_per_s_per_node: DeepSpeedCPUAdam with fp32 states, all cores together; None when not measured.
    collective_call_s: one collective over all ranks, however little it carries; None when not measured, and not used
                   for several nodes.
    all_reduce_bytes_per_s: bus bandwidth of an all-reduce where it was measured; None: that of the GPU's links. As
        above.
    is_this_machine:            the figures were detected here.
    measured:                   phrase for the answer: which figures were measured on this machine, and when; "" for
        none.
    assumptions:                phrases for the answer: what was not said and therefore assumed.
    """

    nodes: int
    gpus_per_node: int
    gpu: Gpu
    host_memory_bytes_per_node: int | None = None
    nvme_bytes_per_node: int | None = None
    nvme_path: str = ""
    interconnect_bytes_per_s: float | None = None
    cpu_cores_per_node: int | None = None
    dram_bytes_per_s_per_node: float | None = None
    nvme_read_bytes_per_s_per_node: float | None = None
    nvme_write_bytes_per_s_per_node: float | None = None
    cpu_adam_parameters_per_s_per_node: float | None = None
    collective_call_s: float | None = None
    all_reduce_bytes_per_s: float | None = None
    is_this_machine: bool = False
    measured: str = ""
    assumptions: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """N: data-parallel ranks, one per GPU."""
        return self.nodes * self.gpus_per_node
