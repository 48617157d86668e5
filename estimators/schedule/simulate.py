"""Simulation of a recorded step: its duration, its critical path and its overlap.

The host thread issues the recorded entries one after the other, and each takes host time (`HostCosts`). Streams run
concurrently with it (`streams`), and a synchronisation makes the host wait for them. The step ends when all work is
done. The critical path is traced back from the end: each span or host stretch, then the one that it had to wait for.
The terms of the answer are the parts of that path, so they add up to the step; concurrent work is `hidden_s`.

If the device is a CPU, the host thread computes all operations that it issues, including collectives and copies.

Not covered: operations that depend on real values; fused kernels that the run replaced, except the optimizers'; GPUs
that throttle or are shared; ranks that differ from the recorded one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..estimate import TimeEstimate, TimeTerm
from ..hardware import Cluster, network_bytes_per_s, nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ..time.collective_time import CONTENTION, PREFETCH_HIDDEN, Ring, ring
from ..time.host_costs import HostCosts, host_costs
from ..time.offload_time import cpu_step_bytes_per_s, host_link_s, new_memory_bytes_per_s
from ..time.roofline import KERNEL_S, attention_rate, memory_rate, product_rate, product_s
from ..workload import PRECISIONS
from .recorded import ALL_STREAMS, Code, Kind, RecordedOperation, Schedule, add_serialized_copies
from .streams import HOST, Lane, Span, Streams

_KINDS: dict[Kind, tuple[str, str, Lane | None]] = {
    "product": ("matrix products", "gpu compute", "gpu"),
    "attention": ("attention", "gpu compute", "gpu"),
    "memory": ("elementwise operations", "gpu memory", "gpu"),
    "to host": ("copies to host", "pcie", "to host"),
    "to device": ("copies to device", "pcie", "to device"),
    "read": ("NVMe reads", "nvme", "drive"),
    "write": ("NVMe writes", "nvme", "drive"),
    "host": ("", "cpu", None),
    "collective": ("", "", "links"),
}
"""For each kind of operation: name in a term, resource ("" if it depends on the operation), and lane that it occupies
(None if the host computes it)."""

_CALLS = {
    "operation": "launches",
    "view": "launches",
    "module_call": "launches",
    "backward_operation": "launches",
    "backward_view": "launches",
    "recomputed_operation": "launches",
    "checkpoint": "launches",
    "fold": "launches",
    "step_operation": "launches",
    "visit_forward": "hooks",
    "visit_backward": "hooks",
    "gather": "hooks",
    "bucketed_gradient": "hooks",
    "partitioned_gradient": "hooks",
    "bucket": "hooks",
    "micro_batch": "DeepSpeed's Python code",
    "engine_step": "DeepSpeed's Python code",
}
"""Names of the host's calls in a term: launching operations, DeepSpeed's hooks, and the rest of its Python code."""


@dataclass(slots=True, kw_only=True)
class HostStretch:
    """A time interval in which the host did one kind of work; "" for waiting."""

    name: str
    begins_s: float
    ends_s: float
    after: int = HOST
    """The span for which the host waited."""


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    schedule: Schedule
    time: TimeEstimate
    spans: tuple[Span, ...]
    host: tuple[HostStretch, ...]
    names: tuple[str, ...]
    """Name of each operation of the schedule in the terms, without the phase."""
    gpu_busy_s: float
    """Seconds during which the GPU computed."""
    links_busy_s: float
    """Seconds during which ranks exchanged data."""
    overlapped_s: float
    """Part of `links_busy_s` during which the GPU also computed."""


def simulate(schedule: Schedule, cluster: Cluster, *, tokens_per_step: int) -> SimulatedStep:
    """Simulate the schedule on the cluster. Raises ClusterError for a GPU without any published rate."""
    schedule = add_serialized_copies(schedule)
    simulation = _Simulation(schedule, cluster, host_costs(cluster))
    for code, first, second in schedule.entries:
        simulation.steps[code](first, second)
    return simulation.result(tokens_per_step)


class _Simulation:
    """The host thread, and the streams to which it issues operations."""

    def __init__(self, schedule: Schedule, cluster: Cluster, costs: HostCosts) -> None:
        self.schedule = schedule
        self.launch_s = costs.launch_s
        self.costs_of_calls = [float(getattr(costs, f"{call}_s")) for call in schedule.calls]
        self.on_cpu = cluster.gpu.is_cpu
        self.streams = Streams(through_host=cluster.gpu.peer_link == "pcie")
        self.now_s = 0.0
        self.host: list[HostStretch] = []
        self.phase = ""
        self.phase_of: list[str] = []
        self.seconds = [duration_s(operation, cluster) for operation in schedule.operations]
        self.contentions = [contention(operation) for operation in schedule.operations]
        self.lanes = [None if self.on_cpu else _KINDS[operation.kind][2] for operation in schedule.operations]
        self.names = tuple(map(operation_name, schedule.operations))
        links = "network" if cluster.nodes > 1 else "gpu links"
        self.resources = {
            name: links if operation.kind == "collective" else _KINDS[operation.kind][1]
            for name, operation in zip(self.names, schedule.operations, strict=True)
        }
        self.steps: dict[int, Callable[[int, int], None]] = {
            Code.PHASE: self.begin_phase,
            Code.RUN: self.run,
            Code.RECORD: self.streams.record,
            Code.WAIT: self.streams.wait,
            Code.SYNCHRONIZE: self.synchronize,
            Code.CALL: self.call,
        }

    def begin_phase(self, phase: int, _: int) -> None:
        self.phase = self.schedule.phases[phase]

    def busy(self, name: str, seconds: float) -> None:
        name = f"{self.phase}: {name}"
        begins_s = self.now_s
        self.now_s += seconds
        if self.host and self.host[-1].name == name:
            self.host[-1].ends_s = self.now_s
        else:
            self.host.append(HostStretch(name=name, begins_s=begins_s, ends_s=self.now_s))

    def run(self, operation: int, stream: int) -> None:
        lane = self.lanes[operation]
        if lane is None:
            self.busy(self.names[operation], self.seconds[operation])
            return
        # The host does not wait for the kernel: it issues the next operation after the launch alone.
        self.busy("launches", self.launch_s)
        self.phase_of.append(self.phase)
        seconds, held_up = self.seconds[operation], self.contentions[operation]
        self.streams.run(operation, stream, lane, seconds, self.now_s, contention=held_up)

    def call(self, kind: int, count: int) -> None:
        call = self.schedule.calls[kind]
        self.busy(_CALLS[call], count * self.costs_of_calls[kind])

    def synchronize(self, event: int, _: int) -> None:
        at_s, span = self.streams.finish(None if event == ALL_STREAMS else event)
        if at_s > self.now_s:
            self.host.append(HostStretch(name="", begins_s=self.now_s, ends_s=at_s, after=span))
            self.now_s = at_s

    def result(self, tokens_per_step: int) -> SimulatedStep:
        self.synchronize(ALL_STREAMS, 0)
        critical, busy = self._critical_path(), self._busy()
        busy_s = self.streams.busy_s
        return SimulatedStep(
            schedule=self.schedule,
            time=TimeEstimate(
                terms=tuple(
                    TimeTerm(
                        name=name,
                        seconds=critical[name],
                        resource=self.resources.get(name.partition(": ")[2], "launch"),
                        formula="its part of the critical path",
                        source="estimators/schedule/simulate.py",
                        hidden_s=max(0.0, busy[name] - critical[name]),
                        symbols={},
                    )
                    for name in {**critical, **busy}
                ),
                tokens_per_step=tokens_per_step,
            ),
            spans=tuple(self.streams.spans),
            host=tuple(self.host),
            names=self.names,
            gpu_busy_s=sum(seconds for lanes, seconds in busy_s.items() if "gpu" in lanes),
            links_busy_s=sum(seconds for lanes, seconds in busy_s.items() if "links" in lanes),
            overlapped_s=sum(seconds for lanes, seconds in busy_s.items() if {"gpu", "links"} <= lanes),
        )

    def _name(self, span: int) -> str:
        return f"{self.phase_of[span]}: {self.names[self.streams.spans[span].operation]}"

    def _busy(self) -> dict[str, float]:
        busy = defaultdict[str, float](float)
        for number, span in enumerate(self.streams.spans):
            busy[self._name(number)] += span.ends_s - span.begins_s
        for stretch in self.host:
            if stretch.name:
                busy[stretch.name] += stretch.ends_s - stretch.begins_s
        return busy

    def _critical_path(self) -> dict[str, float]:
        """Return seconds by name along the critical path, traced from the end of the step to its beginning."""
        path, spans, host = defaultdict[str, float](float), self.streams.spans, self.host
        ends = [stretch.ends_s for stretch in host]
        number, at_s = HOST, self.now_s
        while True:
            if number != HOST:
                path[self._name(number)] += at_s - spans[number].begins_s
                number, at_s = spans[number].after, spans[number].begins_s
                continue
            # The host stretch in which the step's critical path arrives at `at_s`.
            stretch = bisect_left(ends, at_s)
            while stretch >= 0 and host[stretch].name:
                path[host[stretch].name] += at_s - host[stretch].begins_s
                at_s = host[stretch].begins_s
                stretch -= 1
            if stretch < 0:
                return path
            number, at_s = host[stretch].after, host[stretch].ends_s


def operation_name(operation: RecordedOperation) -> str:
    """Return the operation's name in a term, without its phase."""
    kind = operation.kind
    if kind == "collective":
        words = {
            "allgather": "all-gather",
            "reduce_scatter": "reduce-scatter",
            "allreduce": "all-reduce",
            "alltoall": "all-to-all",
        }
        return next((name for part, name in words.items() if part in operation.name), "other collectives")
    if kind == "host":
        return "tensor operations on the host" if operation.name.startswith("aten::") else "optimizer on the host"
    return _KINDS[kind][0]


def contention(operation: RecordedOperation) -> float:
    """Return the slowdown of a collective and concurrent kernels, as a fraction."""
    if operation.kind != "collective":
        return 0.0
    scattered = "allgather" in operation.name or "scatter" in operation.name
    # Stage 3's gathers have a fitted share of their own; all-reduces slow kernels down as the literature measures.
    return 1 - PREFETCH_HIDDEN if scattered else CONTENTION


def duration_s(operation: RecordedOperation, cluster: Cluster) -> float:
    """Return the seconds of one operation. Raises ClusterError for a GPU without any published rate."""
    kind, size = operation.kind, operation.size_bytes
    if kind == "host":
        # All ranks of a node step at the same time and share its memory bandwidth.
        mapped_s = operation.unmapped_bytes / new_memory_bytes_per_s(cluster)
        return size * cluster.gpus_per_node / cpu_step_bytes_per_s(cluster) + mapped_s
    if kind in ("to host", "to device"):
        return host_link_s(cluster, size, pinned=operation.pinned, alone=1.0 if operation.serialized else 0.0)
    if kind == "collective":
        link = _ring(operation, cluster)
        return (link.all_reduce_s if "allreduce" in operation.name else link.gather_s)(size, 1)
    if kind == "read":
        return size * cluster.gpus_per_node / nvme_read_bytes_per_s(cluster)
    if kind == "write":
        return size * cluster.gpus_per_node / nvme_write_bytes_per_s(cluster)
    seconds, rate = max(KERNEL_S, _kernel_s(operation, cluster)), cluster.new_memory_bytes_per_s
    # Time of the kernel for mapping new memory, if the device is the CPU and the rate was measured.
    return seconds + (operation.unmapped_bytes / rate if cluster.gpu.is_cpu and rate else 0.0)


def _kernel_s(operation: RecordedOperation, cluster: Cluster) -> float:
    gpu, precision = cluster.gpu, PRECISIONS.get(operation.precision, "fp32")
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
        backward, masked = "backward" in operation.name, operation.masked
        rate = attention_rate(gpu, precision, "flash", operation.keys, backward=backward, masked=masked)
        return max(moved, operation.flops / rate)
    return moved


def _ring(operation: RecordedOperation, cluster: Cluster) -> Ring:
    """Return the ring over the members of the operation's process group. The other groups of a node communicate at the
    same time, through the same adapters."""
    local = max(1, operation.ranks // operation.nodes)
    network = network_bytes_per_s(cluster) / max(1, cluster.gpus_per_node // local)
    return ring(replace(cluster, nodes=operation.nodes, gpus_per_node=local, interconnect_bytes_per_s=network))
