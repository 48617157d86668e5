"""What the ranks of this node have told so far, read from their files as they grow."""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ....probes.kernel_files import read_text
from ....probes.rank_processes.event_log import EventLogReader

_RECENT = 20
"""Steps over which the speed is told."""

_SLOWER = 1.25
"""A rank whose forward pass takes so many times the others' median is slow: jitter stays below, a throttled or shared
GPU does not."""


@dataclass
class RankRecord:
    """One rank, from the events of its file. Their keys, each in the events that have something to say of it:

    rank, pid, host, limits   the first event: who writes; limits: the finite resource limits by name.
    step          optimizer step that was completed; with it tokens (of this rank, in that step) and forward_s.
    step, loss    the loss of that step, which a GPU tells later than the step.
    allocated_bytes, allocated_peak_bytes, reserved_bytes, reserved_peak_bytes   of torch's allocator, at times.
    trainer       {total_steps, output_dir}: the Hugging Face Trainer begins.
    checkpoint    the folder of a checkpoint that the Trainer has saved.
    stop_at       the step after which the Trainer will save and stop.
    error         {type, message, errno, details}: the exception that ended the script.
    end           the script's exit code, where it ended by itself.
    """

    path: Path
    number: int = 0
    pid: int = 0
    step: int = 0
    """The last optimizer step that it completed."""
    first_step: int | None = None
    """The first that it told, beyond 1 where it resumed."""
    losses: dict[int, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    trainer: dict[str, Any] | None = None
    checkpoint: Path | None = None
    stop_at: int | None = None
    error: dict[str, Any] | None = None
    error_at: float = 0.0
    end: int | None = None
    limits: dict[str, int] = field(default_factory=dict)
    gone_at: float | None = None
    """When its process was first seen to be gone."""
    first_step_at: float | None = None
    step_times: list[float] = field(default_factory=list)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    forward_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _last_at: float | None = None

    def __post_init__(self) -> None:
        self._reader = EventLogReader(self.path)

    def read(self) -> None:
        """Take in the events that were added."""
        for event in self._reader.news():
            self._take(event)

    def look(self) -> None:
        """Whether its process is still there."""
        if self.pid and self.gone_at is None and self.end is None and not _lives(self.pid):
            self.gone_at = time.monotonic()

    def _take(self, line: dict[str, Any]) -> None:
        if "pid" in line:
            self.number, self.limits = line["rank"], line["limits"]
            self.pid = line["pid"] if line["host"] == socket.gethostname() else 0  # of another node in a shared folder
        if "loss" in line:
            self.losses[line["step"]] = line["loss"]
        if "tokens" in line:
            self._take_step(line)
        self.memory |= {name: value for name, value in line.items() if name.endswith("_bytes")}
        if "checkpoint" in line:
            self.checkpoint = Path(line["checkpoint"])
        if "error" in line:
            self.error, self.error_at = line["error"], line["time"]
        self.trainer = line.get("trainer", self.trainer)
        self.stop_at = line.get("stop_at", self.stop_at)
        self.end = line.get("end", self.end)

    def _take_step(self, line: dict[str, Any]) -> None:
        self.step = line["step"]
        self.first_step = self.first_step or self.step
        if self._last_at is None:
            self.first_step_at = line["time"]
        else:
            self.step_times.append(line["time"] - self._last_at)
        self._last_at = line["time"]
        self.recent.append((line["time"], line["tokens"]))
        if "forward_s" in line:
            self.forward_s.append(line["forward_s"])


def _lives(pid: int) -> bool:
    state = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(state) and state[0] not in ("Z", "X")


class Records:
    """All ranks of this node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks: dict[Path, RankRecord] = {}

    def read(self) -> None:
        for path in self._folder.glob("rank*.jsonl"):
            self._ranks.setdefault(path, RankRecord(path))
        for rank in self._ranks.values():
            rank.read()
            rank.look()

    @property
    def ranks(self) -> list[RankRecord]:
        return sorted(self._ranks.values(), key=lambda rank: rank.number)

    @property
    def step(self) -> int:
        """The last step that all of them completed."""
        return min((rank.step for rank in self._ranks.values()), default=0)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, mean over the ranks) of the steps that all of them told."""
        ranks = self.ranks
        steps = set.intersection(*(set(rank.losses) for rank in ranks)) if ranks else set()
        return [(step, fmean(rank.losses[step] for rank in ranks)) for step in sorted(steps)]

    def last_losses(self, count: int) -> list[float]:
        """Of the last steps, of the rank that told the fewest."""
        ranks = self.ranks
        return list(min(ranks, key=lambda rank: len(rank.losses)).losses.values())[-count:] if ranks else []

    @property
    def step_s(self) -> float | None:
        """Seconds of a step, the first left out: median over the whole training, of the slowest rank."""
        return max((median(rank.step_times) for rank in self._ranks.values() if rank.step_times), default=None)

    def tokens_per_s(self, ranks_in_all: int) -> float | None:
        """Of the whole job lately; the other nodes' ranks count like these."""
        ranks = [rank for rank in self._ranks.values() if len(rank.recent) > 1]
        if not ranks:
            return None
        tokens = fmean(sum(count for _, count in list(rank.recent)[1:]) for rank in ranks)
        span_s = fmean(rank.recent[-1][0] - rank.recent[0][0] for rank in ranks)
        return tokens * ranks_in_all / span_s if tokens and span_s else None

    def recent_step_s(self) -> float | None:
        """Seconds of a step lately."""
        spans = [
            (rank.recent[-1][0] - rank.recent[0][0]) / (len(rank.recent) - 1)
            for rank in self._ranks.values()
            if len(rank.recent) > 1
        ]
        return max(spans, default=None)

    def highest(self, name: str) -> int | None:
        """The highest of the ranks' counters of torch's allocator, None where there is none."""
        return max((rank.memory[name] for rank in self._ranks.values() if name in rank.memory), default=None)

    def first(self, name: str) -> Any:
        """What the first rank that told it says: `trainer`, `checkpoint`, `stop_at`."""
        return next((value for rank in self.ranks if (value := getattr(rank, name)) is not None), None)

    def slow_rank(self) -> tuple[int, float] | None:
        """(rank, times the others' forward pass) of one that holds the others up; None while there is none to be
        seen."""
        passes = {
            rank.number: median(rank.forward_s) for rank in self._ranks.values() if len(rank.forward_s) == _RECENT
        }
        if len(passes) < 2:
            return None
        number = max(passes, key=lambda rank: passes[rank])
        others = median(value for rank, value in passes.items() if rank != number)
        return (number, passes[number] / others) if others and passes[number] > _SLOWER * others else None
