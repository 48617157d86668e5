"""The time of one optimizer step from its recorded operations, for any architecture.

The dry run lists what one step executes on one rank: products with their dimensions, attention kernels with their
FLOPs, everything else with its bytes, and where the tensors live. Each is timed as in `roofline`, but no kernel in less
than KERNEL_S; the host launches beside the GPU, and collectives and copies run beside the pass that they belong to,
both with the constants of the closed form (`host_time`, `collective_time`, `offload_time`). What the closed form
derives from the model's dimensions is counted here instead: recomputation, adapters, gradient copies, the engine's own
work.

    pass = max(GPU, host) + links that the pass does not hide        forward and backward; stage 0 hides nothing
    step = GPU + host + links, one after the other                   the optimizer

Not covered: operations that only real values decide; fused kernels that the run replaced, besides the optimizers'; the
overlap of the host's optimizer with anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..estimate import TimeEstimate, TimeTerm
from ..hardware.cluster import Cluster
from ..hardware.host_defaults import dram_bytes_per_s, nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ..workload import Precision
from .collective_time import CONTENTION, Ring, ring
from .host_time import HOST_S_PER_OPERATION, MICRO_STEP_HOST_S, ZERO3_SERIAL, ZERO3_VISIT_S
from .offload_time import DRAM_SHARE, host_link_s
from .roofline import attention_rate, memory_rate, product_rate, product_s
from .terms import time_term

KERNEL_S = 3e-6
"""The least that a kernel occupies a GPU: launched back to back, empty kernels follow each other every 2 to 4 us."""

Kind = Literal["product", "attention", "memory", "host", "to device", "to host", "collective", "visit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """`count` equal operations of one phase."""

    phase: str
    """One of "forward", "backward" and "step", all micro batches together."""
    kind: Kind
    """Anything on the GPU that is no product or attention is "memory"; "host" runs on the CPU; "visit" is a submodule
    that ran, which ZeRO-3's hooks surround."""
    name: str
    count: int
    precision: str = ""
    """The data type of the result, as torch names it ("bfloat16")."""
    size_bytes: int = 0
    """What one operation reads and writes, or what one copy or collective moves."""
    product: tuple[int, ...] = ()
    """(copies, rows, inner, columns) of a product."""
    flops: int = 0
    """FLOPs of attention, after the mask."""
    keys: int = 0
    """The sequence length of attention."""


def recorded_time(
    operations: Sequence[RecordedOperation],
    cluster: Cluster,
    *,
    zero_stage: int,
    micro_batches: int,
    tokens_per_step: int,
    overlap_comm: bool = True,
    pin_memory: bool = True,
    nvme_read_bytes: int = 0,
    nvme_written_bytes: int = 0,
) -> TimeEstimate:
    """Seconds of the step that `operations` make up on `cluster`, by component.

    nvme_*_bytes: of one rank in the step. Raises ClusterError for a GPU without any published rate.
    """
    terms: list[TimeTerm] = []
    for phase in ("forward", "backward", "step"):
        own = [operation for operation in operations if operation.phase == phase]
        if phase == "backward":  # every submodule is visited on the way back too, beside those that run forward again
            own += [operation for operation in operations if (operation.phase, operation.kind) == ("forward", "visit")]
        terms += _phase_terms(
            own,
            phase,
            cluster,
            zero_stage=zero_stage,
            micro_batches=micro_batches,
            overlaps=overlap_comm and zero_stage > 0 and phase != "step",
            pinned=pin_memory,
        )
    local = cluster.gpus_per_node
    nvme = nvme_read_bytes * local / nvme_read_bytes_per_s(
        cluster
    ) + nvme_written_bytes * local / nvme_write_bytes_per_s(cluster)
    terms.append(_term("NVMe", "nvme", "bytes per node / rate", nvme))
    return TimeEstimate(
        terms=tuple(term for term in terms if term.seconds or term.hidden_s), tokens_per_step=tokens_per_step
    )


def _phase_terms(
    operations: Sequence[RecordedOperation],
    phase: str,
    cluster: Cluster,
    *,
    zero_stage: int,
    micro_batches: int,
    overlaps: bool,
    pinned: bool,
) -> Iterable[TimeTerm]:
    gpu: dict[str, float] = {"product": 0.0, "attention": 0.0, "memory": 0.0}
    launched, visits, cpu_bytes = 0, 0, 0
    carried: dict[tuple[str, str], float] = {}
    link = ring(cluster)
    for operation in operations:
        kind, count = operation.kind, operation.count
        if kind == "visit":
            visits += count
        elif kind == "host":
            cpu_bytes += count * operation.size_bytes
        elif kind == "collective":
            key = ("collectives", link.resource)
            carried[key] = carried.get(key, 0.0) + count * _collective_s(operation, link)
        elif kind in ("to device", "to host"):
            key = (f"copies {kind}", "pcie")
            carried[key] = carried.get(key, 0.0) + count * host_link_s(cluster, operation.size_bytes, pinned=pinned)
        else:
            gpu[kind] += count * max(KERNEL_S, _kernel_s(operation, cluster))
        launched += count if kind != "visit" else 0
    on_gpu = sum(gpu.values())
    host = launched * HOST_S_PER_OPERATION + (visits * ZERO3_VISIT_S if zero_stage == 3 else 0.0)
    host += micro_batches * MICRO_STEP_HOST_S if phase == "forward" else 0.0
    serial = ZERO3_SERIAL if zero_stage == 3 else 0.0
    waited = max(on_gpu, host) + serial * min(on_gpu, host) - on_gpu
    for kind, resource in (("product", "gpu compute"), ("attention", "gpu compute"), ("memory", "gpu memory")):
        yield _term(f"{phase}: {kind}", resource, "sum over kernels", gpu[kind])
    yield _term(f"{phase}: launch overhead", "launch", "operations and visits that the GPU waits for", waited)
    # The ranks of a node share its memory.
    dram = dram_bytes_per_s(cluster) * DRAM_SHARE
    yield _term(f"{phase}: on the host", "cpu", "bytes G / DRAM", cpu_bytes * cluster.gpus_per_node / dram)
    total = sum(carried.values())
    hidden = (1 - CONTENTION) * min(1.0, (on_gpu + waited) / total) if overlaps and total else 0.0
    for (name, resource), seconds in carried.items():
        yield _term(
            f"{phase}: {name}",
            resource,
            "bytes / link, less what the pass hides",
            seconds * (1 - hidden),
            hidden_s=seconds * hidden,
        )


def _kernel_s(operation: RecordedOperation, cluster: Cluster) -> float:
    precision = _PRECISIONS.get(operation.precision, "fp32")
    bandwidth = memory_rate(cluster.gpu)
    if operation.kind == "product":
        copies, rows, inner, columns = operation.product
        return product_s(
            rows,
            inner,
            columns,
            copies=copies,
            rate=product_rate(cluster.gpu, precision),
            bandwidth=bandwidth,
            element=4 if precision == "fp32" else 2,
        )
    moved = operation.size_bytes / bandwidth
    if operation.kind == "attention":
        backward = "backward" in operation.name
        rate = attention_rate(cluster.gpu, precision, "flash", operation.keys, backward=backward)
        return max(moved, operation.flops / rate)
    return moved


def _collective_s(operation: RecordedOperation, link: Ring) -> float:
    return (link.all_reduce_s if "allreduce" in operation.name else link.gather_s)(operation.size_bytes, 1)


def _term(name: str, resource: str, formula: str, seconds: float, *, hidden_s: float = 0.0) -> TimeTerm:
    return time_term(
        name=name,
        seconds=seconds,
        hidden_s=hidden_s,
        resource=resource,
        formula=formula,
        source="estimators/time/recorded_time.py",
    )


_PRECISIONS: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}
