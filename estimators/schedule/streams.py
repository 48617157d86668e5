"""Discrete-event simulation of a GPU's streams. Each stream runs its operations in order.

Between two events, every running operation progresses at a constant rate: operations on the same lane share it
equally, and kernels are slowed down while a collective runs.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

Lane = Literal["gpu", "links", "to host", "to device", "drive"]
"""Resource of an operation: the GPU's kernels, the links between ranks, a direction of the host link, NVMe."""

_HOST_LINK: frozenset[Lane] = frozenset({"links", "to host", "to device"})

HOST = -1
"""Stands for the host in place of a span's number."""


class Span:
    __slots__ = ("after", "begins_s", "contention", "ends_s", "issued_s", "lane", "left_s", "operation", "stream")

    def __init__(
        self, operation: int, stream: int, lane: Lane, seconds: float, issued_s: float, contention: float
    ) -> None:
        self.operation = operation
        self.stream = stream
        self.lane = lane
        self.contention = contention
        self.issued_s = issued_s
        self.left_s = seconds
        """Remaining seconds of work, if alone on its lane."""
        self.begins_s = self.ends_s = 0.0
        self.after = HOST
        """The span whose end allowed this one to begin; HOST if it began as soon as it was issued."""


class _Stream:
    __slots__ = ("last", "queue", "ready_s", "running")

    def __init__(self) -> None:
        self.queue: deque[tuple[str, int]] = deque()
        """Pending items: ("run", span), ("record", event), ("wait", event)."""
        self.ready_s = 0.0
        """Time at which everything before the head of the queue was done."""
        self.last = HOST
        """The span that determined `ready_s`."""
        self.running = HOST


class Streams:
    """All streams of one GPU, simulated up to `now_s`.

    through_host: whether GPUs communicate through the host link, which collectives and copies then share.
    """

    def __init__(self, *, through_host: bool = False) -> None:
        self.spans: list[Span] = []
        self.now_s = 0.0
        self.busy_s: dict[frozenset[Lane], float] = {}
        """Seconds by set of simultaneously busy lanes."""
        self._through_host = through_host
        self._streams: dict[int, _Stream] = {}
        self._recorded: dict[int, int] = {}
        """Number of each event's latest record. A wait refers to the latest record at the time of its issue."""
        self._records = 0
        self._happened: dict[int, tuple[float, int]] = {}
        """For each record: its time, and the span that determined it."""
        self._ready: set[int] = set()
        """Idle streams with pending items."""
        self._running: list[_Stream] = []

    def run(
        self, operation: int, stream: int, lane: Lane, seconds: float, issued_s: float, *, contention: float = 0.0
    ) -> None:
        """Issue an operation.

        contention: for a collective, the relative slowdown of it and a kernel while they run together.
        """
        self._queue(stream, "run", len(self.spans))
        self.spans.append(Span(operation, stream, lane, seconds, issued_s, contention))

    def record(self, event: int, stream: int) -> None:
        self._records += 1
        self._recorded[event] = self._records
        self._queue(stream, "record", self._records)

    def wait(self, stream: int, event: int) -> None:
        """Let the stream wait for an event. An event that was never recorded counts as complete."""
        if event in self._recorded:
            self._queue(stream, "wait", self._recorded[event])

    def finish(self, event: int | None = None) -> tuple[float, int]:
        """Simulate until the event is complete, or with None until everything is done. Return the time of that, and the
        span that determined it."""
        # Number 0 stands for an event that was never recorded, which counts as complete.
        record = None if event is None else self._recorded.get(event, 0)
        self._begin()
        while self._running and (record is None or (record and record not in self._happened)):
            self._progress()
            self._begin()
        if record is None:
            return max(((stream.ready_s, stream.last) for stream in self._streams.values()), default=(0.0, HOST))
        return self._happened.get(record, (0.0, HOST))

    def _queue(self, stream: int, what: str, number: int) -> None:
        if stream not in self._streams:
            self._streams[stream] = _Stream()
        own = self._streams[stream]
        own.queue.append((what, number))
        if own.running == HOST:
            self._ready.add(stream)

    def _begin(self) -> None:
        """Advance every idle stream as far as possible."""
        happened = True
        # An event may let other streams go on, so all idle ones are tried until none moves.
        while happened:
            happened = False
            for number in tuple(self._ready):
                happened |= self._advance(number)

    def _advance(self, number: int) -> bool:
        """Advance a stream. Return whether an event was completed, for which another stream may wait."""
        stream, happened = self._streams[number], False
        queue = stream.queue
        while queue:
            what, item = queue[0]
            if what == "wait":
                if item not in self._happened:
                    return happened
                at_s, last = self._happened[item]
                if at_s > stream.ready_s:
                    stream.ready_s, stream.last = at_s, last
                queue.popleft()
            elif what == "record":
                self._happened[item] = stream.ready_s, stream.last
                happened = True
                queue.popleft()
            else:
                queue.popleft()
                span = self.spans[item]
                span.begins_s = max(stream.ready_s, span.issued_s)
                # If the stream was idle before the launch, the host was what the span waited for.
                span.after = stream.last if stream.ready_s >= span.issued_s else HOST
                stream.running = item
                self._running.append(stream)
                break
        self._ready.discard(number)
        return happened

    def _progress(self) -> None:
        """Advance the time to the next moment at which a span begins or ends."""
        spans, now = self.spans, self.now_s
        active = [stream for stream in self._running if spans[stream.running].begins_s <= now]
        coming = [spans[stream.running].begins_s for stream in self._running if spans[stream.running].begins_s > now]
        on_lane: dict[Lane, int] = {}
        for stream in active:
            lane = spans[stream.running].lane
            on_lane[lane] = on_lane.get(lane, 0) + 1
        rates = {lane: 1 / count for lane, count in on_lane.items()}
        if "gpu" in rates and "links" in rates:
            # NCCL's kernels occupy SMs and memory bandwidth, so both sides take longer.
            longer = 1 + max(spans[stream.running].contention for stream in active)
            rates |= {"gpu": rates["gpu"] / longer, "links": rates["links"] / longer}
        if self._through_host and "links" in rates and len(_HOST_LINK & rates.keys()) > 1:
            # Without NVLink a collective crosses the same PCIe link as copies to and from the host.
            rates |= {lane: rates[lane] / 2 for lane in _HOST_LINK & rates.keys()}
        until, ends = min(coming, default=float("inf")), None
        for stream in active:
            span = spans[stream.running]
            end_s = now + span.left_s / rates[span.lane]
            if end_s <= until:
                until, ends = end_s, stream
        if on_lane:
            lanes = frozenset(on_lane)
            self.busy_s[lanes] = self.busy_s.get(lanes, 0.0) + until - now
        for stream in active:
            span = spans[stream.running]
            span.left_s -= (until - now) * rates[span.lane]
        self.now_s = until
        if ends is not None:
            self._end(ends)

    def _end(self, stream: _Stream) -> None:
        self.spans[stream.running].ends_s = stream.ready_s = self.now_s
        stream.last, stream.running = stream.running, HOST
        self._running.remove(stream)
        self._ready |= {number for number, other in self._streams.items() if other is stream and stream.queue}
