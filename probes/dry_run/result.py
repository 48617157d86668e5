"""What a dry run answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ...estimators.time.recorded_time import RecordedOperation

PHASES = ("load", "initialize", "forward", "backward", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """One rank's memory in one phase of one iteration (0: before training). Bytes of tensors unless said otherwise.

    *_live_bytes:  at the end of the phase; *_peak_bytes: the highest within it.
    gpu_*:         each tensor rounded up to the CUDA allocator's 512 bytes, as `torch.cuda.memory_allocated` counts.
    host_*:        pinned and pageable together, exact.
    host_held_peak_bytes: as the host gives them: pinned blocks rounded to powers of two and never returned.
    total_*:       GPU and host together.
    With gradient accumulation the micro batches of an iteration are taken together: last live, highest peak, summed
    NVMe.
    """

    iteration: int
    phase: str
    gpu_live_bytes: int
    gpu_peak_bytes: int
    host_live_bytes: int
    host_peak_bytes: int
    host_pinned_live_bytes: int
    host_pinned_peak_bytes: int
    host_held_peak_bytes: int
    total_live_bytes: int
    total_peak_bytes: int
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
    """The moment of a stretch of the run, within one phase, at which the GPU holds the most.

    event:       its time: allocations and frees since the start of the run.
    begins:      when the stretch does.
    by_category: parts of `gpu_bytes`.
    """

    iteration: int
    phase: str
    begins: int
    event: int
    gpu_bytes: int
    host_bytes: int
    host_pinned_bytes: int
    by_category: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What the caching allocator holds, with memory to spare (`reserved`) and without (`required`), as in `Peak`."""

    reserved_bytes_per_gpu: int
    required_bytes_per_gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment of training at which one GPU holds the most tensors.

    allocated_bytes_per_gpu: the tensors, as `torch.cuda.max_memory_allocated()` counts them.
    reserved_bytes_per_gpu:  the highest that the caching allocator holds during training (not only at this moment).
    required_bytes_per_gpu:  the same when memory is so short that it returns every unused segment first: what must be
        there.
    with_, without_expandable_segments: both figures under either setting of the allocator; the two above are for the
        one asked.
    device_bytes_per_gpu:    reserved and what no allocator sees (CUDA context, NCCL); None without a cluster.
    host_bytes_per_node:     the highest over all phases, loading included, times the ranks of a node.
    by_category, by_module:  parts of the allocated bytes; each adds up to them.
    largest:                 the largest storages alive then.

    With a cluster, `allocated`, `reserved` and `required` include cuBLAS's workspaces ("library workspace" in
    `by_category`). An extrapolated peak has no `by_module` and no `largest`.
    """

    iteration: int
    phase: str
    allocated_bytes_per_gpu: int
    reserved_bytes_per_gpu: int
    required_bytes_per_gpu: int
    with_expandable_segments: Reserved
    without_expandable_segments: Reserved
    device_bytes_per_gpu: int | None
    host_bytes_per_node: int
    by_category: dict[str, int]
    by_module: dict[str, int]
    largest: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunResult:
    """One rank's memory through load, initialize and a few iterations, and what the peak consists of.

    peak_loading_gpu_bytes: highest allocated before the first iteration, which may exceed the training peak.
    nvme_bytes_per_rank:    files on NVMe.
    config: the configuration as DeepSpeed got it, `auto` filled.
    peak_by_phase: by category, what forward, backward and step consist of when each is highest.
    extrapolated_from: depths of the shallow runs that answered for the full one; empty: it was run at full depth.
    approximate: phases whose extrapolated figures are rough; none of them is near the peak.
    not_extrapolated:  why it was run at full depth although extrapolation was asked for, "" where it was not.
    operations: what the last iteration executed, for its time (`estimators.time.recorded_time`).
    timeline: memory over the run, a point for each of evenly spaced stretches; none of an extrapolated run.
    """

    phases: tuple[PhaseMemory, ...]
    peak: Peak
    peak_loading_gpu_bytes: int
    nvme_bytes_per_rank: int
    parameters: int
    trainable_parameters: int
    world_size: int
    rank: int
    gpus_per_node: int
    versions: dict[str, str]
    config: dict[str, Any]
    seconds: float
    peak_by_phase: dict[str, dict[str, int]]
    timeline: tuple[TimelinePoint, ...] = ()
    operations: tuple[RecordedOperation, ...] = ()
    extrapolated_from: tuple[int, ...] = ()
    approximate: tuple[str, ...] = ()
    not_extrapolated: str = ""

    def phase(self, name: str, iteration: int | None = None) -> PhaseMemory:
        """The phase of that name in the given iteration, by default the last one."""
        found = [phase for phase in self.phases if phase.phase == name and iteration in (None, phase.iteration)]
        return found[-1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(values: dict[str, Any]) -> DryRunResult:
    """The result that `to_json` wrote."""
    peak = dict(values["peak"])
    peak["largest"] = tuple(LiveTensor(**{**item, "shape": tuple(item["shape"])}) for item in peak["largest"])
    for setting in ("with_expandable_segments", "without_expandable_segments"):
        peak[setting] = Reserved(**peak[setting])
    names = {field.name for field in fields(DryRunResult)}
    return DryRunResult(
        **{
            **{key: value for key, value in values.items() if key in names},
            "phases": tuple(PhaseMemory(**phase) for phase in values["phases"]),
            "peak": Peak(**peak),
            "timeline": tuple(TimelinePoint(**point) for point in values["timeline"]),
            "operations": tuple(
                RecordedOperation(**{**item, "product": tuple(item["product"])}) for item in values["operations"]
            ),
            "extrapolated_from": tuple(values["extrapolated_from"]),
            "approximate": tuple(values["approximate"]),
        }
    )
