"""What the ranks of this node have reported so far, read from their event logs as they grow."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ...probes.kernel_files import read_text
from ...probes.rank_processes.event_log import EventLogReader

_RECENT = 20
"""Steps over which the speed is measured."""

_SLOWER = 1.25
"""A rank whose forward pass takes so many times the others' median is slow: jitter stays below, a throttled or shared
GPU does not."""

_SPANS = 3
"""Spans of `_RECENT` steps, one after the other, in each of which the same rank must be slow: on a machine with other
work it is one rank now and another then."""


@dataclass
class RankRecord:
    """One rank, from the events of its file. Their keys, each in the events that have something to say of it:

    rank, pid, host, limits   the first event: who writes; limits: the finite resource limits by name.
    engine        {zero_stage, micro_batch_size, gradient_accumulation_steps} of DeepSpeed's engine, once.
    step          optimizer step that was completed; with it tokens (of this rank, in that step) and forward_s.
    step, loss    the loss of that step, which a GPU reports later than the step.
    allocated_bytes, allocated_peak_bytes, reserved_bytes, reserved_peak_bytes   of torch's allocator, at times.
    trainer       {total_steps, output_dir}: the Hugging Face Trainer begins.
    checkpoint    the folder of a checkpoint that the Trainer has saved.
    stop_at       the step after which the Trainer will save and stop.
    error         {type, message, errno, details}: the exception that ended the script.
    end           the script's exit code, where it ended by itself.
    """

    log: EventLogReader
    number: int = 0
    pid: int = 0
    step: int = 0
    """The last optimizer step that it completed."""
    first_step: int | None = None
    """The first that it reported, beyond 1 where it resumed."""
    losses: dict[int, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    engine: dict[str, int] | None = None
    trainer: dict[str, Any] | None = None
    checkpoint: Path | None = None
    stop_at: int | None = None
    error: dict[str, Any] | None = None
    error_at: float = 0.0
    end: int | None = None
    gone_at: float | None = None
    """When its process was first seen to be gone: the same for all that one look finds gone."""
    first_step_at: float | None = None
    step_times: list[float] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    """Tokens of the same steps, all but the first."""
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """(when a step ended, its tokens)."""
    forward_s: deque[float] = field(default_factory=lambda: deque(maxlen=_SPANS * _RECENT))

    def read(self, now: float) -> None:
        """Take in the events that were added, and see whether its process is still there."""
        for event in self.log.news():
            self._take(event)
        if self.pid and self.gone_at is None and self.end is None and not _is_alive(self.pid):
            self.gone_at = now

    @property
    def span_s(self) -> float:
        """From the end of the first of the recent steps to the end of the last."""
        return self.recent[-1][0] - self.recent[0][0]

    def _take(self, event: dict[str, Any]) -> None:
        if "pid" in event:
            # A process id of another node in a shared folder says nothing here.
            self.number, self.pid = event["rank"], event["pid"] if event["host"] == socket.gethostname() else 0
        if "loss" in event:
            self.losses[event["step"]] = event["loss"]
        if "tokens" in event:
            self._take_step(event)
        self.memory |= {name: value for name, value in event.items() if name.endswith("_bytes")}
        if "checkpoint" in event:
            self.checkpoint = Path(event["checkpoint"])
        if "error" in event:
            self.error, self.error_at = event["error"], event["time"]
        self.engine = event.get("engine", self.engine)
        self.trainer = event.get("trainer", self.trainer)
        self.stop_at = event.get("stop_at", self.stop_at)
        self.end = event.get("end", self.end)

    def _take_step(self, event: dict[str, Any]) -> None:
        self.step = event["step"]
        self.first_step = self.first_step or self.step
        if self.recent:
            self.step_times.append(event["time"] - self.recent[-1][0])
            self.step_tokens.append(event["tokens"])
        else:
            self.first_step_at = event["time"]
        self.recent.append((event["time"], event["tokens"]))
        if "forward_s" in event:
            self.forward_s.append(event["forward_s"])


def _is_alive(pid: int) -> bool:
    state = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(state) and state[0] not in ("Z", "X")


class Records:
    """All ranks of this node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_file: dict[Path, RankRecord] = {}
        self._written: dict[Path, int] = {}
        self.heard_at = time.monotonic()
        """When a rank was last seen to have noted or printed anything."""

    def read(self) -> None:
        for path in self._folder.glob("rank*.jsonl"):
            self._by_file.setdefault(path, RankRecord(EventLogReader(path)))
        now = time.monotonic()
        for rank in self._by_file.values():
            rank.read(now)
        with contextlib.suppress(OSError):  # of a folder that somebody removes
            written = {path: path.stat().st_size for path in self._folder.glob("rank*")}
            if written != self._written:
                self._written, self.heard_at = written, time.monotonic()

    @property
    def ranks(self) -> list[RankRecord]:
        return sorted(self._by_file.values(), key=lambda rank: rank.number)

    @property
    def step(self) -> int:
        """The last step that all of them completed."""
        return min((rank.step for rank in self.ranks), default=0)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, mean over the ranks) of the steps whose loss all of them reported."""
        ranks = self.ranks
        steps = set.intersection(*(set(rank.losses) for rank in ranks)) if ranks else set()
        return [(step, fmean(rank.losses[step] for rank in ranks)) for step in sorted(steps)]

    def last_losses(self, count: int) -> list[float]:
        """The losses of the last steps, of the rank that reported the fewest."""
        fewest = min((rank.losses for rank in self.ranks), key=len, default=dict[int, float]())
        return list(fewest.values())[-count:]

    @property
    def step_s(self) -> float | None:
        """Seconds of a step, the first left out: median over the whole training, of the slowest rank."""
        return max((median(rank.step_times) for rank in self.ranks if rank.step_times), default=None)

    def tokens_per_step(self, world_size: int) -> float | None:
        """Tokens of a step of the whole job, padding too: median over the whole training, mean of the ranks; the other
        nodes' ranks count like these."""
        medians = [median(rank.step_tokens) for rank in self.ranks if rank.step_tokens]
        return fmean(medians) * world_size if any(medians) else None

    def recent_step_s(self) -> float | None:
        """Seconds of a step lately, of the slowest rank."""
        return max((rank.span_s / (len(rank.recent) - 1) for rank in self._timed_ranks), default=None)

    def recent_tokens_per_s(self, world_size: int) -> float | None:
        """Tokens per second of the whole job lately; the other nodes' ranks count like these."""
        ranks = self._timed_ranks
        tokens = sum(count for rank in ranks for _, count in list(rank.recent)[1:])
        span_s = sum(rank.span_s for rank in ranks)
        return tokens * world_size / span_s if tokens and span_s else None

    @property
    def _timed_ranks(self) -> list[RankRecord]:
        return [rank for rank in self.ranks if len(rank.recent) > 1]

    def highest(self, name: str) -> int | None:
        """The highest of the ranks' counters of torch's allocator, None where there is none."""
        return max((rank.memory[name] for rank in self.ranks if name in rank.memory), default=None)

    def first(self, name: str) -> Any:
        """What the first rank that reported it says: `engine`, `trainer`, `checkpoint`, `first_step`, `stop_at`."""
        return next((value for rank in self.ranks if (value := getattr(rank, name)) is not None), None)

    def slow_rank(self) -> tuple[int, float] | None:
        """(rank, times the others' forward pass) of one that held the others up in all of the last spans; None where
        none is seen."""
        times = {rank.number: list(rank.forward_s) for rank in self.ranks}
        if len(times) < 2 or any(len(passes) < _SPANS * _RECENT for passes in times.values()):
            return None
        spans = [_slowest(times, slice(first, first + _RECENT)) for first in range(0, _SPANS * _RECENT, _RECENT)]
        if len({number for number, _ in spans}) > 1:
            return None
        number, least = min(spans, key=lambda span: span[1])
        return (number, least) if least > _SLOWER else None


def _slowest(times: Mapping[int, Sequence[float]], span: slice) -> tuple[int, float]:
    """(rank, times the others' forward pass) of the slowest in a span of steps."""
    passes = {number: median(own[span]) for number, own in times.items()}
    number = max(passes, key=lambda rank: passes[rank])
    others = median(value for rank, value in passes.items() if rank != number)
    return number, passes[number] / others if others else 0.0
