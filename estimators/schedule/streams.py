"""Streams of a GPU in time: what was issued to each runs in order, and what runs at the same moment shares its lane.

A discrete-event simulation. Between two moments at which something begins or ends, every running operation progresses
at a constant rate: operations on the same lane share it equally, and kernels that run during a collective lose a part
of their speed to it.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

Lane = Literal["gpu", "links", "to host", "to device", "drive"]
"""What an operation keeps busy: the GPU's kernels, the links between ranks, a direction of the host link, NVMe."""

_HOST_LINK: frozenset[Lane] = frozenset({"links", "to host", "to device"})

HOST = -1
"""In place of a span's number: the host."""


class Span:
    """One operation as it ran."""

    __slots__ = ("after", "begins_s", "contention", "ends_s", "issued_s", "lane", "left_s", "operation", "stream")

    def __init__(
        self, operation: int, stream: int, lane: Lane, seconds: float, issued_s: float, contention: float
    ) -> None:
        self.operation, self.stream, self.lane, self.contention = operation, stream, lane, contention
        self.issued_s = issued_s
        """When the host issued it."""
        self.left_s = seconds
        """Seconds of work that are left, alone on its lane."""
        self.begins_s = self.ends_s = 0.0
        self.after = HOST
        """The span whose end let this one begin; HOST: it began as soon as it was issued."""


class _Stream:
    __slots__ = ("last", "queue", "ready_s", "running")

    def __init__(self) -> None:
        self.queue: deque[tuple[str, int]] = deque()
        """What is to come: ("run", span), ("record", event), ("wait", event)."""
        self.ready_s = 0.0
        """When everything before the head of the queue was done."""
        self.last = HOST
        """The span that decided it."""
        self.running = HOST


class Streams:
    """All streams of one GPU, simulated up to `now_s`.

    through_host: GPUs exchange through the host link, which collectives and copies then share.
    """

    def __init__(self, *, through_host: bool = False) -> None:
        self.spans: list[Span] = []
        self.now_s = 0.0
        self.busy_s: dict[frozenset[Lane], float] = {}
        """Seconds by the lanes that were busy at the same moment."""
        self._through_host = through_host
        self._streams: dict[int, _Stream] = {}
        self._recorded: dict[int, int] = {}
        """By event: the number of its latest record. A wait means the record that was the latest when it was issued."""
        self._records = 0
        self._happened: dict[int, tuple[float, int]] = {}
        """By record: when, and the span that decided it."""
        self._ready: set[int] = set()
        """Streams that have something to come and run nothing."""
        self._running: list[_Stream] = []

    def run(
        self, operation: int, stream: int, lane: Lane, seconds: float, issued_s: float, *, contention: float = 0.0
    ) -> None:
        """Issue an operation.

        contention: of a collective, the part by which it and a kernel take longer while they run together.
        """
        self._queue(stream, "run", len(self.spans))
        self.spans.append(Span(operation, stream, lane, seconds, issued_s, contention))

    def record(self, event: int, stream: int) -> None:
        """Issue an event."""
        self._records += 1
        self._recorded[event] = self._records
        self._queue(stream, "record", self._records)

    def wait(self, stream: int, event: int) -> None:
        """Let the stream wait for an event; one that was never recorded has happened."""
        if event in self._recorded:
            self._queue(stream, "wait", self._recorded[event])

    def finish(self, event: int | None = None) -> tuple[float, int]:
        """Simulate until the event has happened, None: until everything is done; answers when that was, and the span
        that decided it."""
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
        """Let every stream that runs nothing go on as far as it can."""
        happened = True
        while happened:
            happened = False
            for number in tuple(self._ready):
                happened |= self._advance(number)

    def _advance(self, number: int) -> bool:
        """Whether an event happened on the way, for which another stream may wait."""
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
                span.after = stream.last if stream.ready_s >= span.issued_s else HOST
                stream.running = item
                self._running.append(stream)
                break
        self._ready.discard(number)
        return happened

    def _progress(self) -> None:
        """Go to the next moment at which a span begins or ends."""
        spans, now = self.spans, self.now_s
        active = [stream for stream in self._running if spans[stream.running].begins_s <= now]
        coming = [spans[stream.running].begins_s for stream in self._running if spans[stream.running].begins_s > now]
        on_lane: dict[Lane, int] = {}
        for stream in active:
            lane = spans[stream.running].lane
            on_lane[lane] = on_lane.get(lane, 0) + 1
        rates = {lane: 1 / count for lane, count in on_lane.items()}
        if "gpu" in rates and "links" in rates:
            longer = 1 + max(spans[stream.running].contention for stream in active)
            rates |= {"gpu": rates["gpu"] / longer, "links": rates["links"] / longer}
        if self._through_host and "links" in rates and len(_HOST_LINK & rates.keys()) > 1:
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
