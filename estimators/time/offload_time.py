"""Seconds of transferring and updating data in host memory or on NVMe.

Bytes per trained parameter (deepspeed 0.19.8, n = accumulation steps, e = bytes of a 16-bit element, m = bytes of a
master weight: 4, or 2 if masters are in bf16):

    stage 1, 2, n = 1   gradient to the host in the masters' type                         m down
    stage 2, n > 1      every micro batch e down, and e up again from the second on; m down with the last
                        (stage_1_and_2.py `async_accumulate_grad_in_cpu_via_gpu`, `copy_grads_in_partition`)
    stage 1, n > 1      as n = 1: gradients are summed on the GPU until the last micro batch
    stage 3             every micro batch e down and e up, m down with the last (stage3.py `partition_grads`)
        up to 0.15.3    the last m is e down into new pageable memory, and a cast on the host (e + m)
    stages 1, 2         updated weight to the GPU: e up
        0.14.1 to 0.16  m up, and a cast on the GPU instead of the host
        up to 0.14.0    as stage 3
    stage 3             e up, from the new pageable memory to which the host casts (`tensor.copy_` between devices and
                        types), unless parameters are offloaded too
    offload_param       weights to the GPU: e up in every pass that gathers

Stage 3 divides every gradient among all ranks, so their copies run concurrently. Stages 1 and 2 divide the flat vector
of all gradients: a reduced bucket of b elements belongs to few ranks, often to one. Its copies go into the stream that
reduces the next bucket, so all other ranks wait (`reduce_ipg_grads`). The ranks then copy one after the other:

    elements copied in turn = Pt min(1, Pr / b)            Pt trained, Pr those of one rank, b at most Pt

Pinned copies take PINNED_SHARE of the PCIe link. Pageable copies are made by a CPU thread of the rank, at most at
PAGEABLE_BYTES_PER_S. In new memory, the kernel maps every page first.

Before the step, stage 3 checks all gradients on the host for infinities (stage3.py `has_overflow`): in fp16 from 0.9.4
on, in every type from 0.9.4 to 0.11.1 (#4561). `isinf` and `isnan` write 4 bytes per element of a rank into new memory.
Stages 1 and 2 check on the GPU.

    check = elements of a rank * (OVERFLOW_CHECK_S + OVERFLOW_CHECK_BYTES / new memory)

The host then steps its part, after the backward pass and without overlap. It unscales and clips the gradient (m + m),
reads the gradient, the master and the states, writes master and states, and casts the master to 16 bits (m + 2):

    bytes = 3 m + 2 * states + 3 m + 2      42 for Adam; 22 with masters and states in bf16

    rate = min(busy cores * rate of a core, rate of the node) / contention
    busy cores = min(cores, ranks * threads)
    contention = max(1, ranks * threads / cores) ^ CONTENTION_EXPONENT

The launcher sets the threads of each rank: torchrun sets 1 for several ranks if OMP_NUM_THREADS is not set (torch 2.13
distributed/run.py), `accelerate launch` always sets 1 (accelerate 1.15 commands/launch.py), and the deepspeed launcher
sets none, so that every rank takes all cores, unless `--bind_cores_to_rank` is given (deepspeed 0.19.8
launcher/launch.py).

States on NVMe are read before the step and written after it: 4 (master) + states each way, and the gradient once each
way (swap_tensor/partitioned_optimizer_swapper.py). Nothing overlaps, because `pipeline_read` and `pipeline_write` are
off by default.
"""

from __future__ import annotations

from typing import Literal

from ..hardware import Cluster, cpu_cores, dram_bytes_per_s, threads_per_rank
from ..plan import Plan
from ..workload import Workload
from .collective_time import PCIE3_BYTES_PER_S

PINNED_SHARE = 0.85
"""Share of the PCIe link's theoretical rate: 55 of 63 GB/s measured from pinned memory on an H200's link."""

PAGEABLE_BYTES_PER_S = 7.7e9
"""Highest rate of a rank's copies from or to pageable host memory, which one core makes: what a core streams (see
CORE_BYTES_PER_S). With it, Llama-3.1-8B on one H100 with everything offloaded takes 24 s for 26 measured
(arXiv:2506.13996)."""

NEW_MEMORY_BYTES_PER_S = 2.7e9
"""Rate at which the kernel maps new memory for a rank in pages of 4 KiB, if not measured: an AMD EPYC (virtual
machine), two processes at the same time."""

OVERFLOW_CHECK_S, OVERFLOW_CHECK_BYTES = 2.4e-9, 4
"""Seconds per 16-bit element of |g|, two comparisons and two `any` without page faults, and bytes of their results.
`isinf(g).any()` and `isnan(g).any()` of torch 2.13 took 3.4 to 4.5 ns together on the same machine, with one thread as
with two."""

GPUS_PER_UPLINK = 4
"""Largest number of GPUs per node with a separate host link each. In larger nodes two GPUs share one (DGX A100)."""

DRAM_SHARE = 0.38
"""Share of the host's memory bandwidth that DeepSpeed's optimizer step reaches, all ranks together. Fitted with 200
GB/s assumed: 70 GB/s, 0.6 s for 10^9 parameters of a node under Adam. Published steps without GPU and link time, on
two-socket nodes, in s per 10^9 parameters: 0.54 and 0.60 (Qwen2.5 on 2 A100, DeepSpeed blogs/zenflow-corebinding),
about 0.54 (Qwen3-14B on 8 H200, DeepSpeed #8186)."""

CORE_BYTES_PER_S = 10e9
"""Bytes that one core streams through the step while the cores of other ranks do the same. Fitted. With one thread for
each of a node's eight ranks: 7 GB/s (starcoder, stage 1, A800, torchrun, seed 002), and as much as DRAM_SHARE allows,
9.5 (Llama-3-70B, stage 3, H100, `accelerate launch`, DeepSpeed blogs/deepcompile). A Xeon core at 2.5 GHz (AVX-512,
virtual machine) does 7.7 alone in scaling, DeepSpeedCPUAdam and the cast to bf16."""

CONTENTION_EXPONENT = 0.51
"""Exponent of the step's slowdown by threads per core. Fitted on two ranks on all cores each, 1.2 to 1.5 times slower
than bound ones (DeepSpeed blogs/zenflow-corebinding, #7474), and on eight, 3.6 times (Llama-2-7B on 8 A800, launcher
not stated)."""

ADAM_BYTES = 12 + 2 * 8
"""Bytes per parameter that DeepSpeedCPUAdam alone moves: gradient read, master and two states read and written. It
converts the measured parameter rate to a memory rate."""


def host_link_s(cluster: Cluster, size_bytes: float, *, pinned: bool, alone: float = 0.0) -> float:
    """Return the seconds of a GPU's copy to or from the host while its neighbours copy too. alone: share of the bytes
    that it copies while they wait."""
    link_s = size_bytes / ((cluster.gpu.pcie_bytes_per_s or PCIE3_BYTES_PER_S) * PINNED_SHARE)
    if cluster.gpu.is_cpu:  # a copy within host memory, whose bandwidth the ranks share
        return link_s * (1 - alone + alone / cluster.gpus_per_node)
    sharing = 2 if cluster.gpus_per_node > GPUS_PER_UPLINK else 1
    link_s *= alone + (1 - alone) * sharing
    return link_s if pinned else max(link_s, size_bytes / PAGEABLE_BYTES_PER_S)


def new_memory_bytes_per_s(cluster: Cluster) -> float:
    """Return the rate at which the kernel maps new memory for a rank."""
    return cluster.new_memory_bytes_per_s or NEW_MEMORY_BYTES_PER_S


def checks_overflow_on_host(workload: Workload, plan: Plan) -> bool:
    """Return whether DeepSpeed's step checks the gradients for infinities on the host."""
    if plan.zero_stage != 3 or plan.sharding != "zero" or plan.offload_optimizer == "none":
        return False
    version = workload.software.deepspeed
    return version >= (0, 9, 4) and (workload.precision == "fp16" or version < (0, 11, 2))


def casts_gradients_on_host(workload: Workload, plan: Plan) -> bool:
    """Return whether stage 3 copies the last gradients in 16 bits and casts them on the host. Those for NVMe are cast
    on the GPU."""
    return workload.software.deepspeed < (0, 15, 4) and plan.offload_optimizer == "cpu"


def way_of_weights(workload: Workload, plan: Plan) -> Literal["pinned", "uncast", "new memory"]:
    """Return how updated weights come to the GPU: cast to a buffer in `pin_memory`'s kind of memory, as masters that
    the GPU casts, or cast to new pageable memory."""
    version = workload.software.deepspeed
    if plan.zero_stage == 3 or version < (0, 14, 1):
        return "new memory"
    return "uncast" if version < (0, 17) else "pinned"


def overflow_check_s(cluster: Cluster) -> float:
    """Return the seconds of the check on the host, per gradient of a rank."""
    return OVERFLOW_CHECK_S + OVERFLOW_CHECK_BYTES / new_memory_bytes_per_s(cluster)


def cpu_step_bytes_per_s(cluster: Cluster) -> float:
    """Return the memory rate of the optimizer step, all ranks of a node together, in bytes per second."""
    cores = cpu_cores(cluster)
    if cluster.cpu_adam_parameters_per_s_per_node is not None:
        together = cluster.cpu_adam_parameters_per_s_per_node * ADAM_BYTES
    else:
        together = min(dram_bytes_per_s(cluster) * DRAM_SHARE, cores * CORE_BYTES_PER_S)
    threads = cluster.gpus_per_node * threads_per_rank(cluster)
    # If the measured rate of all cores exceeds the assumed sum, each core is faster than assumed.
    core = max(CORE_BYTES_PER_S, together / cores)
    contention: float = max(1.0, threads / cores) ** CONTENTION_EXPONENT
    # Threads of few ranks cannot use all of a node's bandwidth, and more threads than cores slow each other down.
    return min(together, threads * core) / contention


def cpu_step_bytes(states: float, master_bytes: int, *, casts: bool) -> float:
    """Return the bytes per parameter of the step on the host. casts: whether the updated weight is cast there."""
    return 5 * master_bytes + 2 * states + (master_bytes + 2 if casts else 0)
