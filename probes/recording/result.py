"""The result of a dry run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ...ds_configs.read import zero_stage_in
from ...estimators.estimate import total_bytes
from ...estimators.hardware import Cluster
from ...estimators.memory.device_overhead import heap_overhead, library_workspace, outside_allocator
from ...estimators.schedule.recorded import Schedule
from ...estimators.units import gib


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """One rank's memory in one phase of one iteration (0: before training), in bytes of tensors.

    Live bytes are at the end of the phase, peak bytes the maximum within it. With gradient accumulation the micro
    batches of an iteration are joined: last live, highest peak, summed NVMe.
    """

    iteration: int
    phase: str
    gpu_live_bytes: int
    gpu_peak_bytes: int
    """Bytes of tensors, each rounded up to the CUDA allocator's 512 bytes, as in `torch.cuda.memory_allocated`."""
    host_live_bytes: int
    host_peak_bytes: int
    """Pinned and pageable memory together, unrounded."""
    host_pinned_live_bytes: int
    host_pinned_peak_bytes: int
    host_held_live_bytes: int
    host_held_peak_bytes: int
    """Memory that the host holds: pinned blocks are rounded up to powers of two and never returned."""
    total_live_bytes: int
    total_peak_bytes: int
    """GPU and host memory together."""
    nvme_read_bytes: int
    nvme_written_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensor:
    """A storage that was alive at the peak."""

    size_bytes: int
    category: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """The time in an interval of a phase at which the GPU holds the most memory."""

    iteration: int
    phase: str
    begins: int
    """Start of the interval, in allocations and frees since the start of the run."""
    event: int
    """The time, in the same unit."""
    gpu_bytes: int
    host_bytes: int
    host_pinned_bytes: int
    by_category: dict[str, int]
    """Parts of `gpu_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The maximum memory that the caching allocator holds during training."""

    reserved_bytes_per_gpu: int
    """Maximum with ample memory."""
    required_bytes_per_gpu: int
    """The required memory: the maximum with scarce memory, when the allocator returns every unused segment first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The time in training at which one GPU holds the most tensor memory.

    With a cluster, `allocated`, `reserved` and `required` include cuBLAS's workspaces ("library workspace" in
    `by_category`).
    """

    iteration: int
    phase: str
    allocated_bytes_per_gpu: int
    """Bytes of tensors, as counted by `torch.cuda.max_memory_allocated()`."""
    reserved_bytes_per_gpu: int
    required_bytes_per_gpu: int
    """`Reserved.required_bytes_per_gpu` for the requested setting of the allocator."""
    with_expandable_segments: Reserved
    without_expandable_segments: Reserved
    device_bytes_per_gpu: int | None
    """Reserved memory plus memory outside the allocator (CUDA context, NCCL); None without a cluster."""
    host_bytes_per_node: int
    """Maximum over all phases including loading, times the ranks of a node."""
    by_category: dict[str, int]
    by_module: dict[str, int]
    """Parts of the allocated bytes. `by_category` is another division of the same sum."""
    largest: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRunResult:
    """One rank's memory during load, initialize and a few iterations, with the parts of the peak."""

    phases: tuple[PhaseMemory, ...]
    """The phases of the executed iterations. The last iteration may repeat its predecessor, which ends the run."""
    iterations: int
    """Number of requested iterations; iterations that were not executed would repeat the last one."""
    peak: Peak
    peak_loading_gpu_bytes: int
    """The peak before the first iteration, which may exceed the peak of training."""
    peak_loading_host_bytes: int
    """The same of the memory that the host holds."""
    nvme_bytes_per_rank: int
    """Size of the files on NVMe."""
    parameters: int
    trainable_parameters: int
    world_size: int
    rank: int
    gpus_per_node: int
    versions: dict[str, str]
    config: dict[str, Any]
    """DeepSpeed's configuration, without `auto`."""
    seconds: float
    peak_by_phase: dict[str, dict[str, int]]
    """Bytes by category at the peaks of forward, backward and step."""
    timeline: tuple[TimelinePoint, ...] = ()
    """One point for each interval of the run."""
    library_workspace_bytes: int = 0
    """Size of cuBLAS's workspaces. `torch.cuda.memory_allocated` counts them in every phase; `phases` does not."""
    schedule: Schedule | None = None
    """The operations of the last iteration and their order, from which `estimators.schedule.simulate` computes its
    time."""

    def __repr__(self) -> str:
        peak = self.peak
        gpu, host = gib(peak.allocated_bytes_per_gpu), gib(peak.host_bytes_per_node)
        need = f"{gpu} GiB allocated per GPU, {host} GiB of RAM per node"
        return f"<DryRunResult of rank {self.rank} of {self.world_size}: {need}, peak in {peak.phase}>"

    def phase(self, name: str, iteration: int | None = None) -> PhaseMemory:
        """The phase of that name in the given iteration (default: the last one)."""
        matching = [phase for phase in self.phases if phase.phase == name and iteration in (None, phase.iteration)]
        return matching[-1]

    def cpu_rank_bytes(self, *, loading: bool) -> int:
        """Memory of one rank on a CPU, where the tensors of the "GPU" and of the host share the RAM. loading: with the
        phases before the first iteration. With the overhead of a cluster (`add_overhead`)."""
        peak = self.peak
        assert peak.device_bytes_per_gpu is not None
        tensors = max(phase.total_peak_bytes for phase in self.phases if loading or phase.iteration)
        return tensors + peak.device_bytes_per_gpu - peak.allocated_bytes_per_gpu

    def to_json(self) -> dict[str, Any]:
        if self.schedule is None:
            return asdict(self)
        values = asdict(replace(self, schedule=replace(self.schedule, entries=())))
        values["schedule"]["entries"] = self.schedule.entries  # `asdict` would copy 100,000 entries slowly
        return values


def add_overhead(result: DryRunResult, cluster: Cluster) -> DryRunResult:
    """The result with memory outside of tensors in its peak: library workspaces in the allocator, and memory outside
    the allocator. On a CPU the heap takes the place of the CUDA allocator."""
    workspace = total_bytes(library_workspace(cluster.gpu))
    peak = _on_heap(result) if cluster.gpu.is_cpu else result.peak

    def add_workspace(reserved: Reserved) -> Reserved:
        return Reserved(
            reserved_bytes_per_gpu=reserved.reserved_bytes_per_gpu + workspace,
            required_bytes_per_gpu=reserved.required_bytes_per_gpu + workspace,
        )

    outside = total_bytes(outside_allocator(cluster, zero_stage_in(result.config)))
    whole = replace(
        peak,
        allocated_bytes_per_gpu=peak.allocated_bytes_per_gpu + workspace,
        reserved_bytes_per_gpu=peak.reserved_bytes_per_gpu + workspace,
        required_bytes_per_gpu=peak.required_bytes_per_gpu + workspace,
        with_expandable_segments=add_workspace(peak.with_expandable_segments),
        without_expandable_segments=add_workspace(peak.without_expandable_segments),
        device_bytes_per_gpu=peak.reserved_bytes_per_gpu + workspace + outside,
        by_category={**peak.by_category, "library workspace": workspace},
        by_module={**peak.by_module, "library workspace": workspace},
    )
    return replace(result, peak=whole, library_workspace_bytes=workspace)


def _on_heap(result: DryRunResult) -> Peak:
    """The peak with glibc's heap as the allocator."""
    trained = [phase for phase in result.phases if phase.iteration]
    passes = max((phase.gpu_peak_bytes for phase in trained if phase.phase != "step"), default=0)
    persistent = min((phase.gpu_live_bytes for phase in trained if phase.iteration == trained[-1].iteration), default=0)
    peak = result.peak
    heap = heap_overhead(peak.allocated_bytes_per_gpu, passes, max(0, passes - persistent))
    reserved = peak.allocated_bytes_per_gpu + total_bytes(heap)
    held = Reserved(reserved_bytes_per_gpu=reserved, required_bytes_per_gpu=reserved)
    return replace(
        peak,
        reserved_bytes_per_gpu=reserved,
        required_bytes_per_gpu=reserved,
        with_expandable_segments=held,
        without_expandable_segments=held,
    )
