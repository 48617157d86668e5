"""What a recorded run says: the peak taken apart, what the allocator would reserve, the timeline."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from . import allocator
from .ledger import Ledger, StorageLife, gpu_bytes
from .phases import PhaseRecorder, RecordedPhase
from .request import Request
from .result import LiveTensor, Peak, Reserved, TimelinePoint

LARGEST = 40
POINTS_PER_PHASE = 24


def peak(recorder: PhaseRecorder, request: Request) -> Peak:
    """The highest GPU peak of all iterations, taken apart; that of loading where there are none."""
    highest = _highest(recorder)
    alive = _alive(recorder.ledger, highest.gpu_peak_event)
    by_module = Counter[str]()
    for life in alive:
        by_module[life.module] += gpu_bytes(life.size_bytes)
    alive.sort(key=lambda life: -life.size_bytes)
    replay = _Replay(recorder.ledger, _counting(recorder)[0].first_event)
    plain, expandable = (
        replay.reserved(highest.gpu_peak_bytes, expandable_segments=setting) for setting in (False, True)
    )
    chosen = expandable if request.expandable_segments else plain
    return Peak(
        iteration=highest.iteration,
        phase=highest.name,
        allocated_bytes_per_gpu=highest.gpu_peak_bytes,
        reserved_bytes_per_gpu=chosen.reserved_bytes_per_gpu,
        required_bytes_per_gpu=chosen.required_bytes_per_gpu,
        with_expandable_segments=expandable,
        without_expandable_segments=plain,
        device_bytes_per_gpu=None,
        host_bytes_per_node=min(request.gpus_per_node, request.world_size)
        * max(phase.host_held_peak_bytes for phase in recorder.phases),
        by_category=_by_category(alive),
        by_module=dict(by_module.most_common()),
        largest=tuple(
            LiveTensor(
                size_bytes=gpu_bytes(life.size_bytes),
                category=life.category,
                module=life.module,
                shape=life.shape,
                dtype=str(life.dtype).removeprefix("torch."),
                phase=recorder.recorded[life.phase].name,
            )
            for life in alive[:LARGEST]
        ),
    )


def peak_by_phase(recorder: PhaseRecorder) -> dict[str, dict[str, int]]:
    """Bytes by category at the highest moment of the forward passes, the backward passes and the steps."""
    names = dict.fromkeys(phase.name for phase in _counting(recorder))
    return {name: _by_category(_alive(recorder.ledger, _highest(recorder, name).gpu_peak_event)) for name in names}


def _highest(recorder: PhaseRecorder, name: str | None = None) -> RecordedPhase:
    phases = [phase for phase in _counting(recorder) if name in (None, phase.name)]
    return max(phases, key=lambda phase: phase.gpu_peak_bytes)


def _counting(recorder: PhaseRecorder) -> list[RecordedPhase]:
    """The phases of training, or all where there is none."""
    return [phase for phase in recorder.recorded if phase.iteration] or recorder.recorded


def _alive(ledger: Ledger, event: int) -> list[StorageLife]:
    return [life for life in ledger.storages if life.device == "gpu" and life.alive_at(event)]


def _by_category(lives: list[StorageLife]) -> dict[str, int]:
    sizes = Counter[str]()
    for life in lives:
        sizes[life.category] += gpu_bytes(life.size_bytes)
    return dict(sizes.most_common())


def _history(ledger: Ledger) -> list[StorageLife | None]:
    """By event: the storage that is born or dies in it; None where the cache was emptied."""
    history: list[StorageLife | None] = [None] * (ledger.events + 1)
    for life in ledger.storages:
        history[life.born] = life
        if life.died >= 0:
            history[life.died] = life
    return history


class _Replay:
    """The recorded allocations and frees, replayed through the caching allocator."""

    def __init__(self, ledger: Ledger, training_starts: int) -> None:
        emptied = set(ledger.cache_emptied)
        self._events: list[allocator.Event] = []
        self._before = 0
        for event, life in enumerate(_history(ledger)):
            if life is not None and life.device == "gpu":
                key = id(life)
                self._events.append(
                    allocator.Allocate(key, life.size_bytes, life.stream) if event == life.born else allocator.Free(key)
                )
            elif event in emptied:
                self._events.append(allocator.EmptyCache())
            if event == training_starts:
                self._before = len(self._events)

    def reserved(self, tensor_peak_bytes: int, *, expandable_segments: bool) -> Reserved:
        """Highest bytes that the allocator holds from the start of training on, with memory to spare and without.

        Without, it returns what it can before it asks for more. Expandable segments keep the pages that live blocks lie
        on. Others keep every segment with a live block in it: the replay runs with room for the tensors alone, and what
        it holds beyond them is what fragmentation costs.
        """

        most = allocator.most_held(self._events, self._before, expandable_segments=expandable_segments)
        required = most.touched_bytes
        if not expandable_segments:
            required = allocator.most_held(self._events, self._before, capacity_bytes=tensor_peak_bytes).reserved_bytes
        return Reserved(reserved_bytes_per_gpu=most.reserved_bytes, required_bytes_per_gpu=required)


def timeline(recorder: PhaseRecorder) -> tuple[TimelinePoint, ...]:
    """Memory over the run: of each of `POINTS_PER_PHASE` stretches of every phase, the moment with the most on the
    GPU."""
    history = _history(recorder.ledger)
    gpu, host, pinned, sizes = 0, 0, 0, Counter[str]()
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
