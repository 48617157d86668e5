"""What a recorded run says: the peak taken apart, what the allocator would reserve, the timeline."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from . import allocator
from .ledger import Ledger, gpu_bytes
from .request import Request
from .result import LiveTensor, Peak, TimelinePoint
from .training import Recorder

LARGEST = 40
POINTS_PER_PHASE = 24


def peak(recorder: Recorder, request: Request) -> Peak:
    """The highest GPU peak of all iterations, taken apart."""
    training = [phase for phase in recorder.recorded if phase.iteration > 0]
    highest = max(training, key=lambda phase: phase.gpu_peak_bytes)
    alive = [block for block in recorder.ledger.blocks
             if block.device == "gpu" and block.alive_at(highest.gpu_peak_event)]
    by_category, by_module = Counter[str](), Counter[str]()
    for block in alive:
        by_category[block.category] += gpu_bytes(block.size_bytes)
        by_module[block.module] += gpu_bytes(block.size_bytes)
    alive.sort(key=lambda block: -block.size_bytes)
    ranks_per_node = min(request.gpus_per_node, request.world_size)
    replay = _Replay(recorder.ledger, training[0].first_event, expandable_segments=request.expandable_segments)
    return Peak(
        iteration=highest.iteration, phase=highest.name, allocated_bytes_per_gpu=highest.gpu_peak_bytes,
        reserved_bytes_per_gpu=replay.reserved_peak(), required_bytes_per_gpu=replay.required_peak(highest.gpu_peak_bytes),
        device_bytes_per_gpu=None,
        host_bytes_per_node=ranks_per_node * max(phase.host_held_peak_bytes for phase in recorder.phases),
        by_category=dict(by_category.most_common()), by_module=dict(by_module.most_common()),
        largest=tuple(LiveTensor(size_bytes=gpu_bytes(block.size_bytes), category=block.category, module=block.module,
                                 shape=block.shape, dtype=str(block.dtype).removeprefix("torch."),
                                 phase=recorder.recorded[block.phase].name) for block in alive[:LARGEST]))


class _Replay:
    """The recorded allocations and frees, replayed through the caching allocator."""

    def __init__(self, ledger: Ledger, training_starts: int, *, expandable_segments: bool) -> None:
        events: list[allocator.Event | None] = [None] * (ledger.events + 1)
        for key, block in enumerate(ledger.blocks):
            if block.device == "gpu":
                events[block.born] = allocator.Allocate(key, block.size_bytes, block.stream)
                if block.died >= 0:
                    events[block.died] = allocator.Free(key)
        for event in ledger.cache_emptied:
            events[event] = allocator.EmptyCache()
        self._before = sum(event is not None for event in events[:training_starts + 1])
        self._events = [event for event in events if event is not None]
        self._expandable_segments = expandable_segments

    def reserved_peak(self) -> int:
        """Highest bytes that the allocator holds from the start of training on, with memory to spare."""
        return self._peak()

    def required_peak(self, tensor_peak_bytes: int) -> int:
        """The same when memory is short, so that it returns what it can before it asks for more.

        Expandable segments keep the pages that live blocks lie on. Others keep every segment with a live block in it: the
        replay runs with room for the tensors alone, and what it holds beyond them is what fragmentation costs.
        """
        if self._expandable_segments:
            return self._peak(touched=True)
        return self._peak(capacity_bytes=tensor_peak_bytes)

    def _peak(self, *, capacity_bytes: int | None = None, touched: bool = False) -> int:
        return allocator.reserved_peaks(self._events, [self._before], expandable_segments=self._expandable_segments,
                                        capacity_bytes=capacity_bytes, touched=touched)[-1]


def timeline(recorder: Recorder) -> tuple[TimelinePoint, ...]:
    """The GPU's bytes over the run, as the highest of each of `POINTS_PER_PHASE` stretches of every phase."""
    changes = [0] * (recorder.ledger.events + 2)
    for block in recorder.ledger.blocks:
        if block.device == "gpu":
            changes[block.born] += gpu_bytes(block.size_bytes)
            if block.died >= 0:
                changes[block.died] -= gpu_bytes(block.size_bytes)
    points = []
    live, event = 0, 0
    ends = [phase.first_event for phase in recorder.recorded[1:]] + [recorder.ledger.events]
    for phase, end in zip(recorder.recorded, ends, strict=True):
        stretch = max(1, -(-(end - phase.first_event) // POINTS_PER_PHASE))
        bounds = [*range(phase.first_event, end, stretch), end]
        for _, last in pairwise(bounds):
            highest = live
            while event < last:
                event += 1
                live += changes[event]
                highest = max(highest, live)
            points.append(TimelinePoint(iteration=phase.iteration, phase=phase.name, gpu_bytes=highest))
    return tuple(points)
