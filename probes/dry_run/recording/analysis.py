"""What a recorded run says: the peak taken apart, what the allocator would reserve, the timeline."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from ..request import Request
from ..result import LiveTensor, Peak, Reserved, TimelinePoint
from ..training import PhaseRecorder, RecordedPhase
from . import allocator
from .ledger import Block, Ledger, gpu_bytes

LARGEST = 40
POINTS_PER_PHASE = 24


def peak(recorder: PhaseRecorder, request: Request) -> Peak:
    """The highest GPU peak of all iterations, taken apart."""
    highest = _highest(recorder)
    alive = _alive(recorder.ledger, highest.gpu_peak_event)
    by_module = Counter[str]()
    for block in alive:
        by_module[block.module] += gpu_bytes(block.size_bytes)
    alive.sort(key=lambda block: -block.size_bytes)
    training_starts = next(phase.first_event for phase in recorder.recorded if phase.iteration > 0)
    replay = _Replay(recorder.ledger, training_starts)
    plain, expandable = (
        replay.reserved(highest.gpu_peak_bytes, expandable_segments=setting) for setting in (False, True)
    )
    asked = expandable if request.expandable_segments else plain
    return Peak(
        iteration=highest.iteration,
        phase=highest.name,
        allocated_bytes_per_gpu=highest.gpu_peak_bytes,
        reserved_bytes_per_gpu=asked.reserved_bytes_per_gpu,
        required_bytes_per_gpu=asked.required_bytes_per_gpu,
        with_expandable_segments=expandable,
        without_expandable_segments=plain,
        device_bytes_per_gpu=None,
        host_bytes_per_node=min(request.gpus_per_node, request.world_size)
        * max(phase.host_held_peak_bytes for phase in recorder.phases),
        by_category=_by_category(alive),
        by_module=dict(by_module.most_common()),
        largest=tuple(
            LiveTensor(
                size_bytes=gpu_bytes(block.size_bytes),
                category=block.category,
                module=block.module,
                shape=block.shape,
                dtype=str(block.dtype).removeprefix("torch."),
                phase=recorder.recorded[block.phase].name,
            )
            for block in alive[:LARGEST]
        ),
    )


def peak_by_phase(recorder: PhaseRecorder) -> dict[str, dict[str, int]]:
    """Bytes by category at the highest moment of the forward passes, the backward passes and the steps."""
    names = dict.fromkeys(phase.name for phase in recorder.recorded if phase.iteration > 0)
    return {name: _by_category(_alive(recorder.ledger, _highest(recorder, name).gpu_peak_event)) for name in names}


def _highest(recorder: PhaseRecorder, name: str | None = None) -> RecordedPhase:
    return max(
        (phase for phase in recorder.recorded if phase.iteration > 0 and name in (None, phase.name)),
        key=lambda phase: phase.gpu_peak_bytes,
    )


def _alive(ledger: Ledger, event: int) -> list[Block]:
    return [block for block in ledger.blocks if block.device == "gpu" and block.alive_at(event)]


def _by_category(blocks: list[Block]) -> dict[str, int]:
    sizes = Counter[str]()
    for block in blocks:
        sizes[block.category] += gpu_bytes(block.size_bytes)
    return dict(sizes.most_common())


def _history(ledger: Ledger) -> list[Block | None]:
    """By event: the block that is born or dies in it; None where the cache was emptied."""
    history: list[Block | None] = [None] * (ledger.events + 1)
    for block in ledger.blocks:
        history[block.born] = block
        if block.died >= 0:
            history[block.died] = block
    return history


class _Replay:
    """The recorded allocations and frees, replayed through the caching allocator."""

    def __init__(self, ledger: Ledger, training_starts: int) -> None:
        emptied = set(ledger.cache_emptied)
        self._events: list[allocator.Event] = []
        self._before = 0
        for event, block in enumerate(_history(ledger)):
            if block is not None and block.device == "gpu":
                key = id(block)
                self._events.append(
                    allocator.Allocate(key, block.size_bytes, block.stream)
                    if event == block.born
                    else allocator.Free(key)
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

        def highest(*, capacity_bytes: int | None = None, touched: bool = False) -> int:
            return allocator.reserved_peaks(
                self._events,
                [self._before],
                expandable_segments=expandable_segments,
                capacity_bytes=capacity_bytes,
                touched=touched,
            )[-1]

        return Reserved(
            reserved_bytes_per_gpu=highest(),
            required_bytes_per_gpu=highest(
                touched=expandable_segments, capacity_bytes=None if expandable_segments else tensor_peak_bytes
            ),
        )


def timeline(recorder: PhaseRecorder) -> tuple[TimelinePoint, ...]:
    """Memory over the run: of each of `POINTS_PER_PHASE` stretches of every phase, the moment with the most on the
    GPU."""
    history = _history(recorder.ledger)
    gpu, host, pinned, sizes = 0, 0, 0, Counter[str]()
    points = []
    ends = [phase.first_event for phase in recorder.recorded[1:]] + [recorder.ledger.events]
    event = 0
    for phase, end in zip(recorder.recorded, ends, strict=True):
        stretch = max(1, -(-(end - phase.first_event) // POINTS_PER_PHASE))
        for first, last in pairwise([*range(phase.first_event, end, stretch), end]):
            point = None
            for event in range(first + 1, last + 1):
                block = history[event]
                if block is not None:
                    sign = 1 if event == block.born else -1
                    if block.device == "gpu":
                        gpu += sign * gpu_bytes(block.size_bytes)
                        sizes[block.category] += sign * gpu_bytes(block.size_bytes)
                    else:
                        host += sign * block.size_bytes
                        pinned += sign * block.size_bytes * block.pinned
                if point is None or gpu > point[1]:
                    point = (event, gpu, host, pinned, {name: size for name, size in sizes.items() if size})
            if point is not None:
                points.append(
                    TimelinePoint(
                        iteration=phase.iteration,
                        phase=phase.name,
                        begins=first,
                        event=point[0],
                        gpu_bytes=point[1],
                        host_bytes=point[2],
                        host_pinned_bytes=point[3],
                        by_category=point[4],
                    )
                )
    return tuple(points)
