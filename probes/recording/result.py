"""The result of a dry run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ...estimators.schedule.recorded import Schedule


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
    """Each tensor counts rounded up to the CUDA allocator's 512 bytes, as in `torch.cuda.memory_allocated`."""
    host_live_bytes: int
    host_peak_bytes: int
    """Pinned and pageable memory together, exact."""
    host_pinned_live_bytes: int
    host_pinned_peak_bytes: int
    host_held_live_bytes: int
    host_held_peak_bytes: int
    """Memory of the host: pinned blocks are rounded up to powers of two and never returned."""
    total_live_bytes: int
    total_peak_bytes: int
    """GPU and host together."""
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
    """The time in a stretch of a phase at which the GPU holds the most."""

    iteration: int
    phase: str
    begins: int
    """Start of the stretch, in allocations and frees since the start of the run."""
    event: int
    """The time, likewise."""
    gpu_bytes: int
    host_bytes: int
    host_pinned_bytes: int
    by_category: dict[str, int]
    """Parts of `gpu_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The most memory that the caching allocator holds during training."""

    reserved_bytes_per_gpu: int
    """With ample memory."""
    required_bytes_per_gpu: int
    """With scarce memory, when it returns every unused segment first: the needed memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The time of training at which one GPU holds the most tensors.

    With a cluster, `allocated`, `reserved` and `required` include cuBLAS's workspaces ("library workspace" in
    `by_category`).
    """

    iteration: int
    phase: str
    allocated_bytes_per_gpu: int
    """The tensors, as `torch.cuda.max_memory_allocated()` counts them."""
    reserved_bytes_per_gpu: int
    required_bytes_per_gpu: int
    """As in `Reserved`, under the requested setting of the allocator."""
    with_expandable_segments: Reserved
    without_expandable_segments: Reserved
    device_bytes_per_gpu: int | None
    """Reserved memory and memory outside the allocator (CUDA context, NCCL); None without a cluster."""
    host_bytes_per_node: int
    """The maximum over all phases including loading, times the ranks of a node."""
    by_category: dict[str, int]
    by_module: dict[str, int]
    """Parts of the allocated bytes, as `by_category`; each adds up to them."""
    largest: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunResult:
    """One rank's memory during load, initialize and a few iterations, and the parts of the peak."""

    phases: tuple[PhaseMemory, ...]
    """The phases of the executed iterations. An iteration that repeats the one before it is the last."""
    iterations: int
    """Number of requested iterations; those not executed would repeat the last one."""
    peak: Peak
    peak_loading_gpu_bytes: int
    """The maximum before the first iteration, which may exceed the peak of training."""
    nvme_bytes_per_rank: int
    """Files on NVMe."""
    parameters: int
    trainable_parameters: int
    world_size: int
    rank: int
    gpus_per_node: int
    versions: dict[str, str]
    config: dict[str, Any]
    """The configuration of DeepSpeed, without `auto`."""
    seconds: float
    peak_by_phase: dict[str, dict[str, int]]
    """Bytes by category at the maximum of forward, backward and step."""
    timeline: tuple[TimelinePoint, ...] = ()
    """A point for each stretch of the run."""
    library_workspace_bytes: int = 0
    """cuBLAS's workspaces, which `torch.cuda.memory_allocated` counts in every phase, unlike `phases`."""
    schedule: Schedule | None = None
    """What the last iteration executed and what ordered it, for its time (`estimators.schedule.simulate`)."""

    def phase(self, name: str, iteration: int | None = None) -> PhaseMemory:
        """The phase of that name in the given iteration, by default the last one."""
        matching = [phase for phase in self.phases if phase.phase == name and iteration in (None, phase.iteration)]
        return matching[-1]

    def to_json(self) -> dict[str, Any]:
        if self.schedule is None:
            return asdict(self)
        values = asdict(replace(self, schedule=replace(self.schedule, entries=())))
        values["schedule"]["entries"] = self.schedule.entries  # `asdict` would copy 100,000 entries slowly
        return values
