"""Seconds of recorded operations on a cluster, each alone on its lane, and what the host spends on issuing them.

The constants are those of the closed form: `roofline` for kernels, `collective_time` for links, `offload_time` for the
host link and the host's memory. No kernel takes less than KERNEL_S.
"""

from __future__ import annotations

from dataclasses import replace

from ..hardware.cluster import Cluster
from ..hardware.host_defaults import nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ..time.collective_time import CONTENTION, PREFETCH_HIDDEN, Ring, ring
from ..time.offload_time import cpu_step_bytes_per_s, host_link_s
from ..time.roofline import KERNEL_S, attention_rate, memory_rate, product_rate, product_s
from ..workload import Precision
from .recorded import Kind, RecordedOperation
from .streams import Lane

_LANES: dict[Kind, Lane | None] = {
    "product": "gpu",
    "attention": "gpu",
    "memory": "gpu",
    "host": None,
    "to device": "to device",
    "to host": "to host",
    "collective": "links",
    "read": "drive",
    "write": "drive",
}
_PRECISIONS: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}


def lane_of(operation: RecordedOperation) -> Lane | None:
    """The lane that the operation keeps busy; None: the host computes it."""
    return _LANES[operation.kind]


def contention(operation: RecordedOperation) -> float:
    """The part by which a collective and the kernels beside it take longer while they run together."""
    if operation.kind != "collective":
        return 0.0
    scattered = "allgather" in operation.name or "scatter" in operation.name
    return 1 - PREFETCH_HIDDEN if scattered else CONTENTION


def duration_s(operation: RecordedOperation, cluster: Cluster) -> float:
    """Seconds of one operation. Raises ClusterError for a GPU without any published rate."""
    kind, size = operation.kind, operation.size_bytes
    if kind == "host":
        return size * cluster.gpus_per_node / cpu_step_bytes_per_s(cluster)
    if kind in ("to host", "to device"):
        return host_link_s(cluster, size, pinned=operation.pinned, alone=1.0 if operation.in_turn else 0.0)
    if kind == "collective":
        return _collective_s(operation, cluster)
    if kind == "read":
        return size * cluster.gpus_per_node / nvme_read_bytes_per_s(cluster)
    if kind == "write":
        return size * cluster.gpus_per_node / nvme_write_bytes_per_s(cluster)
    return max(KERNEL_S, _kernel_s(operation, cluster)) + _page_faults_s(operation, cluster)


def _kernel_s(operation: RecordedOperation, cluster: Cluster) -> float:
    gpu, precision = cluster.gpu, _PRECISIONS.get(operation.precision, "fp32")
    bandwidth = memory_rate(gpu)
    if operation.kind == "product":
        copies, rows, inner, columns = operation.product
        element = 4 if precision == "fp32" else 2
        return product_s(
            rows,
            inner,
            columns,
            copies=copies,
            rate=product_rate(gpu, precision),
            bandwidth=bandwidth,
            element=element,
            is_cpu=gpu.is_cpu,
        )
    moved = operation.size_bytes / bandwidth
    if operation.kind == "attention":
        rate = attention_rate(gpu, precision, "flash", operation.keys, backward="backward" in operation.name)
        return max(moved, operation.flops / rate)
    return moved


def _page_faults_s(operation: RecordedOperation, cluster: Cluster) -> float:
    """What the kernel takes to map new memory, where the device is the CPU and that was measured."""
    rate = cluster.new_memory_bytes_per_s
    return operation.unmapped_bytes / rate if cluster.gpu.is_cpu and rate else 0.0


def _collective_s(operation: RecordedOperation, cluster: Cluster) -> float:
    link = _ring(operation, cluster)
    return (link.all_reduce_s if "allreduce" in operation.name else link.gather_s)(operation.size_bytes, 1)


def _ring(operation: RecordedOperation, cluster: Cluster) -> Ring:
    """The ring over the members of the operation's process group. A node's other groups exchange theirs at the same
    time, through the same adapters."""
    nodes, network = operation.nodes, cluster.interconnect_bytes_per_s
    local = max(1, operation.ranks // nodes)
    together = max(1, cluster.gpus_per_node // local)
    network = None if network is None else network / together
    return ring(replace(cluster, nodes=nodes, gpus_per_node=local, interconnect_bytes_per_s=network))
