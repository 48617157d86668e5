"""The phases of a run, their memory, and the analysis of the recorded run: peak, reserved memory, timeline."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ...estimators.hardware import Cluster
from .allocation_classifier import AllocationClassifier, owners
from .allocator import CachingAllocator
from .engine_hooks import BETWEEN
from .ledger import Ledger, StorageLife, gpu_bytes
from .result import DryRunResult, LiveTensor, Peak, PhaseMemory, Reserved, TimelinePoint
from .schedule import ScheduleRecorder


@dataclass(slots=True, kw_only=True)
class RecordedPhase:
    """One phase of one micro batch, by the ledger's event clock."""

    iteration: int
    name: str
    first_event: int
    gpu_peak_bytes: int = 0
    gpu_peak_event: int = 0


class PhaseRecorder:
    """Divides the run into phases. `current` is the name of the running phase; `on_phase` is called with it."""

    def __init__(
        self,
        ledger: Ledger,
        classifier: AllocationClassifier,
        schedule: ScheduleRecorder,
        on_phase: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self.ledger = ledger
        self.classifier = classifier
        self.schedule = schedule
        self.on_phase = on_phase
        self.current = "start"
        self.phases: list[PhaseMemory] = []
        self.recorded = [RecordedPhase(iteration=0, name="start", first_event=0)]
        self._steps: list[tuple[Any, ...]] = []

    def begin(self, iteration: int, name: str, part: str = "") -> None:
        """Begin a phase; the one before it has ended. part: the part of the iteration, for `current`."""
        ledger = self.ledger
        shown = "preparation" if name == BETWEEN else name
        self.current = f"{shown} of iteration {iteration}{part and f', {part}'}" if iteration else shown
        self.on_phase(self.current)
        self.schedule.begin(iteration, name)
        self.classifier.begin(name)
        ledger.begin_phase(name)
        recorded = RecordedPhase(iteration=iteration, name=name, first_event=ledger.events)
        self.recorded.append(recorded)

    def end(self) -> None:
        """End the running phase."""
        recorded = self.recorded[-1]
        recorded.gpu_peak_bytes = self.ledger.gpu.peak_bytes
        recorded.gpu_peak_event = self.ledger.gpu.peak_event
        self.phases.append(PhaseMemory(iteration=recorded.iteration, phase=recorded.name, **self.ledger.figures()))

    def join_micro_batches(self, first: int) -> None:
        """Join the phases of equal names, starting at the phase with index `first`."""
        parts: dict[str, list[PhaseMemory]] = {}
        for memory in self.phases[first:]:
            parts.setdefault(memory.phase, []).append(memory)
        self.phases[first:] = [_join_phases(part) for part in parts.values()]

    def repeats(self, longest_period: int = 1) -> bool:
        """Whether the events since the last call equal those before it: the same storages were allocated and released
        in the same order and phases, and the held bytes are equal.

        longest_period: also true if the last P steps equal the P before them, for a P up to this number, as where
            several engines take turns.
        """
        ledger = self.ledger
        # Live bytes too: an iteration that leaks has the same trace each time.
        counters = (ledger.gpu, ledger.host, ledger.host_pinned, ledger.host_held)
        self._steps.append((ledger.trace, [counter.live_bytes for counter in counters]))
        del self._steps[: -2 * longest_period]
        ledger.restart_trace()
        return any(
            len(self._steps) >= 2 * period and self._steps[-period:] == self._steps[-2 * period : -period]
            for period in range(1, longest_period + 1)
        )

    def sweep(self, module: torch.nn.Module, optimizer: Any) -> None:
        """Assign category and module to every storage held by the module or an optimizer. A storage that several
        modules share, as ZeRO's flat buffers, is of none."""
        seen: dict[int, str] = {}
        for tensor, category, name in owners(module, optimizer):
            life = self.ledger.find_storage(tensor)
            if life is None:
                continue
            owner = name.rpartition(".")[0]
            # The first owner counts: `owners` yields parameters before the buffers that hold them.
            if id(life) not in seen:
                seen[id(life)] = owner
                life.category = category
                life.owned = True
                if name:
                    life.module = owner
            elif name and owner != seen[id(life)]:
                life.module = ""

    def name_gradients(self, module: torch.nn.Module) -> None:
        """Classify each weight's gradient when autograd delivers it; earlier it cannot be identified."""

        def named(gradient: torch.Tensor) -> None:
            life = self.ledger.find_storage(gradient)
            if life is not None and not life.owned:
                life.category = "gradients"
                life.owned = True

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(named)  # type: ignore[no-untyped-call]


def _join_phases(parts: list[PhaseMemory]) -> PhaseMemory:
    """Join the micro batches of one phase: last live bytes, highest peak, sum of NVMe transfers."""
    combine: dict[str, Callable[[list[int]], int]] = {"live": lambda v: v[-1], "peak": max, "read": sum, "written": sum}
    values: dict[str, Any] = {"iteration": parts[0].iteration, "phase": parts[0].phase}
    for name in PhaseMemory.__dataclass_fields__:
        if name not in values:
            how = next(how for word, how in combine.items() if f"_{word}" in name)
            values[name] = how([getattr(part, name) for part in parts])
    return PhaseMemory(**values)


def recorded_result(
    recorder: PhaseRecorder,
    *,
    cluster: Cluster,
    rank: int,
    iterations: int,
    expandable_segments: bool,
    parameters: tuple[int, int],
    config: dict[str, Any],
    started: float,
    libraries: Sequence[str],
) -> DryRunResult:
    """The result of the recorded run.

    parameters: (parameters, trainable parameters).
    started: time of the monotonic clock at which the process began.
    libraries: those whose versions are stated, if they are loaded.
    """
    phases = tuple(recorder.phases)
    loading = [phase for phase in phases if phase.iteration == 0]
    return DryRunResult(
        phases=phases,
        iterations=iterations,
        peak=highest_peak(recorder, expandable_segments=expandable_segments, gpus_per_node=cluster.gpus_per_node),
        peak_by_phase=peak_by_phase(recorder),
        timeline=timeline(recorder),
        schedule=recorder.schedule.recorded(),
        peak_loading_gpu_bytes=max(phase.gpu_peak_bytes for phase in loading),
        peak_loading_host_bytes=max(phase.host_held_peak_bytes for phase in loading),
        nvme_bytes_per_rank=sum(recorder.ledger.nvme_files.values()),
        parameters=parameters[0],
        trainable_parameters=parameters[1],
        world_size=cluster.world_size,
        rank=rank,
        gpus_per_node=cluster.gpus_per_node,
        config=config,
        seconds=time.monotonic() - started,
        versions={
            name: str(getattr(sys.modules[name], "__version__", "")) for name in libraries if name in sys.modules
        },
    )


LARGEST = 40
POINTS_PER_PHASE = 24


def highest_peak(recorder: PhaseRecorder, *, expandable_segments: bool, gpus_per_node: int) -> Peak:
    """The highest GPU peak of all iterations with its parts; the peak of loading if there is no iteration."""
    highest = _highest(recorder)
    live = _live_storages(recorder.ledger, highest.gpu_peak_event)
    live.sort(key=lambda life: -life.size_bytes)
    plain, expandable = (
        _reserved(recorder, highest.gpu_peak_bytes, expandable_segments=setting) for setting in (False, True)
    )
    chosen = expandable if expandable_segments else plain
    return Peak(
        iteration=highest.iteration,
        phase=highest.name,
        allocated_bytes_per_gpu=highest.gpu_peak_bytes,
        reserved_bytes_per_gpu=chosen.reserved_bytes_per_gpu,
        required_bytes_per_gpu=chosen.required_bytes_per_gpu,
        with_expandable_segments=expandable,
        without_expandable_segments=plain,
        device_bytes_per_gpu=None,
        host_bytes_per_node=gpus_per_node * max(phase.host_held_peak_bytes for phase in recorder.phases),
        by_category=_sizes_by("category", live),
        by_module=_sizes_by("module", live),
        largest=tuple(
            LiveTensor(
                size_bytes=gpu_bytes(life.size_bytes),
                category=life.category,
                module=life.module,
                shape=life.shape,
                dtype=str(life.dtype).removeprefix("torch."),
                phase=recorder.recorded[life.phase].name,
            )
            for life in live[:LARGEST]
        ),
    )


def peak_by_phase(recorder: PhaseRecorder) -> dict[str, dict[str, int]]:
    """Bytes by category at the peaks of the forward passes, the backward passes and the steps."""
    names = dict.fromkeys(phase.name for phase in _training_phases(recorder))
    peaks = {name: _live_storages(recorder.ledger, _highest(recorder, name).gpu_peak_event) for name in names}
    return {name: _sizes_by("category", live) for name, live in peaks.items()}


def _highest(recorder: PhaseRecorder, name: str | None = None) -> RecordedPhase:
    phases = [phase for phase in _training_phases(recorder) if name in (None, phase.name)]
    return max(phases, key=lambda phase: phase.gpu_peak_bytes)


def _training_phases(recorder: PhaseRecorder) -> list[RecordedPhase]:
    """The phases of training; all phases if there is no training."""
    return [phase for phase in recorder.recorded if phase.iteration] or recorder.recorded


def _live_storages(ledger: Ledger, event: int) -> list[StorageLife]:
    return [life for life in ledger.storages if life.device == "gpu" and life.is_live_at(event)]


def _sizes_by(attribute: str, lives: list[StorageLife]) -> dict[str, int]:
    sizes = Counter[str]()
    for life in lives:
        sizes[getattr(life, attribute)] += gpu_bytes(life.size_bytes)
    return dict(sizes.most_common())


def _history(ledger: Ledger) -> list[StorageLife | None]:
    """Event number -> the storage that is allocated or released; None for an emptied cache."""
    history: list[StorageLife | None] = [None] * (ledger.events + 1)
    for life in ledger.storages:
        history[life.born] = life
        if life.died >= 0:
            history[life.died] = life
    return history


def _reserved(recorder: PhaseRecorder, tensor_peak_bytes: int, *, expandable_segments: bool) -> Reserved:
    """The maximum bytes that the allocator holds from the start of training, with ample and with scarce memory.

    With scarce memory the allocator returns free segments before it requests more. Expandable segments keep the pages
    with live blocks. Other segments are kept while they have a live block: the replay's capacity is the peak of the
    tensors, and the bytes beyond it are the cost of fragmentation.
    """
    reserved, touched = _max_held(recorder, CachingAllocator(expandable_segments=expandable_segments))
    if not expandable_segments:
        touched, _ = _max_held(recorder, CachingAllocator(capacity_bytes=tensor_peak_bytes))
    return Reserved(reserved_bytes_per_gpu=reserved, required_bytes_per_gpu=touched)


def _max_held(recorder: PhaseRecorder, allocator: CachingAllocator) -> tuple[int, int]:
    """Replay all allocations and frees of the GPU. Returns the maximum (reserved, touched) bytes from the start of
    training."""
    emptied = set(recorder.ledger.cache_emptied)
    starts = _training_phases(recorder)[0].first_event
    reserved = 0
    touched = 0
    # From the first event: blocks of loading shape the cache that training finds.
    for event, life in enumerate(_history(recorder.ledger)):
        if life is not None and life.device == "gpu":
            if event == life.born:
                allocator.allocate(id(life), life.size_bytes, life.stream)
            else:
                allocator.free(id(life))
        elif event in emptied:
            allocator.empty_cache()
        if event >= starts:
            reserved = max(reserved, allocator.reserved_bytes)
            touched = max(touched, allocator.touched_bytes)
    return reserved, touched


def timeline(recorder: PhaseRecorder) -> tuple[TimelinePoint, ...]:
    """Memory over the run: the time with the most GPU memory in each of `POINTS_PER_PHASE` intervals of a phase."""
    history = _history(recorder.ledger)
    gpu = 0
    host = 0
    pinned = 0
    sizes = Counter[str]()
    points = []
    ends = [phase.first_event for phase in recorder.recorded[1:]] + [recorder.ledger.events]
    for phase, end in zip(recorder.recorded, ends, strict=True):
        stretch = max(1, -(-(end - phase.first_event) // POINTS_PER_PHASE))
        for first, last in pairwise([*range(phase.first_event, end, stretch), end]):
            highest: TimelinePoint | None = None
            for event in range(first + 1, last + 1):
                life = history[event]
                if life is not None:
                    sign = 1 if event == life.born else -1
                    if life.device == "gpu":
                        gpu += sign * gpu_bytes(life.size_bytes)
                        sizes[life.category] += sign * gpu_bytes(life.size_bytes)
                    else:
                        host += sign * life.size_bytes
                        pinned += sign * life.size_bytes * life.pinned
                # An interval without a GPU allocation has a point too, for the host's memory.
                if highest is None or gpu > highest.gpu_bytes:
                    highest = TimelinePoint(
                        iteration=phase.iteration,
                        phase=phase.name,
                        begins=first,
                        event=event,
                        gpu_bytes=gpu,
                        host_bytes=host,
                        host_pinned_bytes=pinned,
                        by_category={name: size for name, size in sizes.items() if size},
                    )
            if highest is not None:
                points.append(highest)
    return tuple(points)
