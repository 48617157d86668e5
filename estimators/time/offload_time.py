"""Seconds of moving and updating what lives in host memory or on NVMe.

Bytes per trained parameter (deepspeed 0.19.8, n = accumulation steps, e = bytes of a 16-bit element):

    stage 1, 2, n = 1   gradient to the host in fp32                                      4 down
    stage 2, n > 1      every micro batch e down, and e up again from the second on; 4 down with the last
                        (stage_1_and_2.py `async_accumulate_grad_in_cpu_via_gpu`, `copy_grads_in_partition`)
    stage 1, n > 1      as n = 1: gradients are summed on the GPU until the last micro batch
    stage 3             every micro batch e down and e up, 4 down with the last (stage3.py `partition_grads`)
    all                 updated weight to the GPU: e up, unless parameters are offloaded too
    offload_param       weights to the GPU: e up in every pass that gathers

The host then steps its part, after the backward pass and beside nothing. It reads the gradient, the master and the
states, and writes master and states; before that it unscales and clips the gradient (4 + 4), afterwards it casts the
master to 16 bits (4 + 2):

    bytes = 12 + 2 * states + 14            42 for Adam

On NVMe the states are read before that and written after it, 4 (master) + states each way and the gradient once each
way (swap_tensor/partitioned_optimizer_swapper.py); nothing overlaps, because `pipeline_read` and `pipeline_write` are
off by default.
"""

from __future__ import annotations

from ..hardware.cluster import Cluster
from ..hardware.host_defaults import cpu_cores, dram_bytes_per_s, nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ..optimizers import optimizer
from ..workload import Workload
from .collective_time import PCIE3_BYTES_PER_S

PINNED_SHARE, PAGEABLE_SHARE = 0.85, 0.35
"""Shares of the PCIe link's theoretical rate: 55 of 63 GB/s measured from pinned memory on an H200's link; pageable
memory is copied once more on the host, which is assumed to cost more than half."""

GPUS_PER_UPLINK = 4
"""Up to this many GPUs of a node have a link of their own to the host; above, two share one (DGX A100 and its like)."""

DRAM_SHARE = 0.35
"""The share of the host's memory bandwidth that DeepSpeed's optimizer step reaches, all ranks together. Fitted with 200
GB/s assumed.

Adam then takes 0.6 s for 10^9 parameters of a node. Whole published steps, less what the GPUs do, all on nodes of two
sockets: about 0.54 (Qwen3-14B on 8 H200, DeepSpeed #8186), 0.66 with bound cores and 0.79 without (Qwen2.5-3B,
DeepSpeed blogs/zenflow-corebinding), 0.7 (starcoder, stage 1, seed 002), about 1 (Llama-2-7B on 4 A100, DeepSpeed
blogs/deepspeed-zenflow); and up to 2.5 with eight ranks whose threads are not bound (Llama-2-7B on 8 A800).
"""

CORE_BYTES_PER_S = 12e9
"""What one core streams through Adam, the bound on machines with few cores. Assumed, for a server of some years ago:
one core of an EPYC 9004 did 46 GB/s in DeepSpeedCPUAdam (deepspeed 0.19.8, 40 M parameters, 28 bytes each)."""

ADAM_BYTES = 12 + 2 * 8
"""Bytes per parameter that DeepSpeedCPUAdam alone moves: gradient read, master and two states read and written. Its
measured rate times this is the memory rate that the whole step on the host is given."""


def host_link_s(cluster: Cluster, size_bytes: float, *, pinned: bool) -> float:
    """Seconds for a GPU to move `size_bytes` to or from the host while its neighbours do the same."""
    rate = (cluster.gpu.pcie_bytes_per_s or PCIE3_BYTES_PER_S) * (PINNED_SHARE if pinned else PAGEABLE_SHARE)
    if cluster.gpus_per_node > GPUS_PER_UPLINK:
        rate /= 2
    return size_bytes / rate


def cpu_step_s(cluster: Cluster, workload: Workload, trained_per_node: float) -> float:
    """Seconds of the optimizer's step on the host for the parameters that a node's ranks own together."""
    states = optimizer(workload.optimizer).cpu_state_bytes or 0.0
    if cluster.cpu_adam_parameters_per_s_per_node is not None:
        rate = cluster.cpu_adam_parameters_per_s_per_node * ADAM_BYTES
    else:
        rate = min(dram_bytes_per_s(cluster) * DRAM_SHARE, cpu_cores(cluster) * CORE_BYTES_PER_S)
    return trained_per_node * cpu_step_bytes(states) / rate


def cpu_step_bytes(states: float) -> float:
    """Bytes per parameter that the step on the host moves through memory."""
    return 12 + 2 * states + 14


def nvme_step_s(cluster: Cluster, workload: Workload, trained_per_node: float) -> float:
    """Seconds of reading and writing the optimizer's states, master weights and gradients."""
    each_way = trained_per_node * (8 + (optimizer(workload.optimizer).cpu_state_bytes or 0.0))
    return nvme_read_s(cluster, each_way) + nvme_write_s(cluster, each_way)


def nvme_read_s(cluster: Cluster, bytes_per_node: float) -> float:
    return bytes_per_node / nvme_read_bytes_per_s(cluster)


def nvme_write_s(cluster: Cluster, bytes_per_node: float) -> float:
    return bytes_per_node / nvme_write_bytes_per_s(cluster)
