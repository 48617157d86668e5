"""The reports of this node's ranks, read from their event logs as they grow."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ...probes.machine import read_text
from ...probes.real_run.events import EventLogReader
from ..verification.prediction import STEP_PHASES, PhaseFigures


@dataclass
class RankRecord:
    """State of one rank, from the events in its file. Keys of the events:

    rank, pid, host   of the rank; the first event.
    engine_ranks  the ranks that train together, with `engine`.
    engine        {zero_stage, micro_batch_size, gradient_accumulation_steps} of DeepSpeed's engine, once.
    step          the completed optimizer step, with this rank's tokens in it.
    step, loss    the loss of a step, which a GPU reports later than the step itself.
    step, phases  {name: {seconds, allocated_bytes, ...}} of the phases of a step, which a GPU reports later.
    allocated_peak_bytes, reserved_peak_bytes   of torch's allocator, with each step.
    trainer       {total_steps, output_dir}: the start of the Hugging Face Trainer.
    checkpoint    the folder of a checkpoint that the Trainer has saved.
    error         {type, message, errno, details}: the exception that ended the script.
    end           0: the script ended by itself.
    exit          exit status of the process, negative for a signal, from the process that started it.
    """

    log: EventLogReader
    number: int = 0
    pid: int = 0
    """Process id; 0 for a process of another node, whose records are in a shared folder."""
    steps: dict[int, tuple[float, int]] = field(default_factory=dict)
    """(end time, tokens) of every completed optimizer step. The first step of a resumed training is greater than 1."""
    losses: dict[int, float] = field(default_factory=dict)
    phases: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)
    """The phases of every step."""
    latest: dict[str, Any] = field(default_factory=dict)
    """The last value of every key of the events."""
    error_at: float = 0.0
    gone_at: float | None = None
    """Time at which its process was first found to have ended, equal for all ranks found in the same check; None
    before."""

    def read(self, now: float) -> None:
        for event in self.log.read_new():
            self._take(event)
        if self.pid and self.gone_at is None and "end" not in self.latest:
            state = read_text(Path(f"/proc/{self.pid}/stat")).rpartition(")")[2].split()
            if not state or state[0] in ("Z", "X"):
                self.gone_at = now

    @property
    def step(self) -> int:
        """The last optimizer step that the rank completed."""
        return next(reversed(self.steps), 0)

    @property
    def error(self) -> dict[str, Any] | None:
        return self.latest.get("error")

    def _take(self, event: dict[str, Any]) -> None:
        if "pid" in event:
            self.number = event["rank"]
            self.pid = event["pid"] if event["host"] == socket.gethostname() else 0
        if "loss" in event:
            self.losses[event["step"]] = event["loss"]
        if "phases" in event and "step" in event:
            self.phases[event["step"]] = event["phases"]
        if "tokens" in event:
            self.steps[event["step"]] = event["time"], event["tokens"]
        if "error" in event:
            self.error_at = event["time"]
        self.latest |= event
        if "end" in self.latest and self.latest.get("exit", 0) > 0:
            self.latest["end"] = self.latest["exit"]


class Records:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_file: dict[Path, RankRecord] = {}
        self._sizes: dict[Path, int] = {}
        self.heard_at = time.monotonic()
        """Time at which a rank last recorded or printed anything."""

    def read(self) -> None:
        for path in self.folder.glob("rank*.jsonl"):
            self._by_file.setdefault(path, RankRecord(EventLogReader(path)))
        now = time.monotonic()
        for rank in self._by_file.values():
            rank.read(now)
        with contextlib.suppress(OSError):  # the folder may be removed
            sizes = {path: path.stat().st_size for path in self.folder.glob("rank*")}
            if sizes != self._sizes:
                self._sizes = sizes
                self.heard_at = time.monotonic()

    @property
    def ranks(self) -> list[RankRecord]:
        return sorted(self._by_file.values(), key=lambda rank: rank.number)

    @property
    def step(self) -> int:
        """The last step that all ranks have completed."""
        return min((rank.step for rank in self.ranks), default=0)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, mean over the ranks) of each step for which every rank has reported a loss."""
        ranks = self.ranks
        steps = set.intersection(*(set(rank.losses) for rank in ranks)) if ranks else set()
        return [(step, fmean(rank.losses[step] for rank in ranks)) for step in sorted(steps)]

    @property
    def first_step(self) -> int | None:
        return next((next(iter(rank.steps)) for rank in self.ranks if rank.steps), None)

    def last_losses(self, count: int) -> list[float]:
        """The most recent losses of the rank that has reported the fewest."""
        fewest = min((rank.losses for rank in self.ranks), key=len, default=dict[int, float]())
        return list(fewest.values())[-count:]

    def speed(self, world_size: int, last: int | None = None) -> tuple[float | None, float | None]:
        """(tokens per step, seconds per step) of the whole job, or (None, None) before the second step.

        Both are medians over the `last` steps, or over all but the first. Tokens: the mean of the ranks, padding
        included; the ranks of other nodes are assumed to have as many. Seconds: those of the slowest rank.
        """
        done = [list(rank.steps.values()) for rank in self.ranks if len(rank.steps) > 1]
        # One more than `last`: n end times have n - 1 intervals.
        steps = [each[-last - 1 if last else 0 :] for each in done]
        if not steps:
            return None, None
        tokens = fmean(median(count for _, count in each[1:]) for each in steps) * world_size
        return tokens or None, max(
            median(after - before for (before, _), (after, _) in pairwise(each)) for each in steps
        )

    def highest(self, name: str) -> int | None:
        """The maximum over the ranks of a counter of torch's allocator; None if there is none."""
        return max((rank.latest[name] for rank in self.ranks if name in rank.latest), default=None)

    @property
    def phases(self) -> tuple[PhaseFigures, ...]:
        """The phases of a step: the median time of the slowest rank, and the highest memory of all ranks."""
        return tuple(found for name in STEP_PHASES if (found := self._phase(name)) is not None)

    def _phase(self, name: str) -> PhaseFigures | None:
        ranks = [[each[name] for each in rank.phases.values() if name in each] for rank in self.ranks]
        ranks = [steps for steps in ranks if steps]
        if not ranks:
            return None
        peak = max(step.get("allocated_bytes", 0) for steps in ranks for step in steps)
        return PhaseFigures(
            name=name,
            # The first step compiles and allocates.
            seconds=max(median(step["seconds"] for step in steps[1:] or steps) for steps in ranks),
            peak_bytes=int(peak) or None,
        )

    def first(self, name: str) -> Any:
        """The last value of a key from the first rank that has the key, such as `engine`, `trainer` or `checkpoint`."""
        return next((rank.latest[name] for rank in self.ranks if name in rank.latest), None)
