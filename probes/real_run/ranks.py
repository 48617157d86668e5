"""The ranks of an observed command on this node, read from their event logs as they grow, and the one that failed
first."""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from ..failures.messages import find_message
from . import extension_lock
from .events import EventLogReader

_STATES = {"T": "stopped", "t": "tracing-stop", "Z": "dead", "X": "dead"}
"""States of a process in /proc other than running and waiting -> psutil's names."""

_ASKED_EVERY_S = 5.0
"""How long the answer to who builds an extension is kept."""

_STUCK_S = 30.0
"""How long a rank waits for an extension that nobody builds before its run is ended: between two builds a lock is free
at once."""

_LAUNCHERS_SIGNAL = -signal.SIGTERM
"""Exit status of the ranks that a launcher ends after the first failure."""


@dataclass
class Rank:
    """State of one rank, from the events in its file. Keys of the events:

    rank, pid, host   of the rank; the first event.
    stacks        whether it shows its stack on a signal (`stacks.py`).
    phase         the phase that begins.
    initialized   an engine was made, and none has made a step yet.
    engine_ranks  the ranks that train together, with `engine`.
    engine        {zero_stage, micro_batch_size, gradient_accumulation_steps} of DeepSpeed's engine, once.
    data_parallel_size   ranks with batches of their own, with `engine`.
    dtype         in which the engine computes, such as `bfloat16`, with `engine`.
    step          the completed optimizer step, with this rank's tokens in it.
    step, loss    the loss of a step, which a GPU reports later than the step itself.
    step, phases  {name: {seconds, allocated_bytes, ...}} of the phases of a step, which a GPU reports later.
    allocated_peak_bytes, reserved_peak_bytes   of torch's allocator, with each step.
    trainer       {total_steps, output_dir}: the start of the Hugging Face Trainer.
    checkpoint    the folder of a checkpoint that the Trainer has saved.
    report        the counters of the process, with the configuration: the end of a probe.
    plain, takes_config   torch's data parallelism that takes the module in place of DeepSpeed (`plain_training.py`).
    waits_for     the lock file of an extension that another process builds; "" when it is free.
    error         {type, message, errno, details}: the exception that ended the script.
    end           0: the script ended by itself.
    exit          exit status of the process, negative for a signal, from the process that started it.
    """

    log: EventLogReader
    number: int
    pid: int = 0
    """Process id; 0 for a process of another node, whose records are in a shared folder."""
    phase: str = "start"
    steps: dict[int, tuple[float, int]] = field(default_factory=dict)
    """(end time, tokens) of every completed optimizer step. The first step of a resumed training is greater than 1."""
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(step, loss) of the optimizer steps of all engines."""
    phases: list[tuple[int, dict[str, dict[str, Any]]]] = field(default_factory=list)
    """(step, its phases) of all engines."""
    checkpoints: list[str] = field(default_factory=list)
    """The folders of the checkpoints, in their order."""
    latest: dict[str, Any] = field(default_factory=dict)
    """The last value of every key of the events."""
    error_at: float = 0.0
    exit_at: float = 0.0
    waits_at: float = 0.0
    """When it began to wait for an extension, like `error_at`."""

    def read(self) -> None:
        for event in self.log.read_new():
            if "pid" in event:
                self.pid = event["pid"] if event["host"] == socket.gethostname() else 0
            if "loss" in event:
                self.losses.append((event["step"], event["loss"]))
            if "phases" in event:
                self.phases.append((event["step"], event["phases"]))
            if "checkpoint" in event:
                self.checkpoints.append(event["checkpoint"])
            if "tokens" in event:
                self.steps[event["step"]] = event["time"], event["tokens"]
            self.phase = event.get("phase", self.phase)
            self.error_at = event["time"] if "error" in event else self.error_at
            self.exit_at = event["time"] if "exit" in event else self.exit_at
            self.waits_at = event["time"] if "waits_for" in event else self.waits_at
            self.latest |= event

    @property
    def step(self) -> int:
        """The last optimizer step that the rank completed."""
        return next(reversed(self.steps), 0)

    @property
    def error(self) -> dict[str, Any] | None:
        return self.latest.get("error")

    @property
    def error_text(self) -> str:
        """Type and message of the error; "" for none."""
        return f"{self.error['type']}: {self.error['message']}" if self.error else ""

    @property
    def place(self) -> str:
        """Its phase; between `initialize` and the first forward pass "preparation", as of its data, and "after step N"
        between two steps."""
        if self.phase == "initialize" and "initialized" in self.latest:
            return "preparation"
        return f"after {self.phase}" if self.step and self.phase == f"step {self.step}" else self.phase

    @property
    def lost_another(self) -> bool:
        """Whether its error is that another rank is lost."""
        message = find_message(self.error_text)
        return message is not None and message.id in ("remote-lost", "nccl-system-error")

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None for a rank that runs, or whose end nobody reported."""
        return self.latest.get("exit")

    @property
    def report(self) -> dict[str, Any] | None:
        """The events, with the rank's report; None before the report."""
        return self.latest if "report" in self.latest else None

    @property
    def status(self) -> str:
        """The status of the process by psutil's name: running, stopped, or dead if it is gone."""
        if not self.pid:
            return "running"
        with contextlib.suppress(OSError):  # a process of psutil reads more, and every rank is asked many times
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            return _STATES.get(state.split()[0], "running")
        return "dead"

    @property
    def is_suspended(self) -> bool:
        return self.status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    @property
    def obstacle(self) -> str:
        """Why it cannot go on, as far as its process shows; "" for nothing."""
        if self.is_suspended:
            return f"rank {self.number} was suspended (SIGSTOP)"
        if (builder := self._builder) is not None:
            lock = self.latest["waits_for"]
            name = Path(lock).parent.name
            if builder:
                return f"rank {self.number} waits until {builder} has built {name} ({lock})"
            return f"rank {self.number} waits until {name} is built, and no process of this machine builds it"
        if self.error is not None:
            return f"rank {self.number} failed: {_clause(self.error_text)}"
        return f"rank {self.number} is gone" if self.is_lost else ""

    @property
    def remedy(self) -> str:
        """What ends its wait for an extension that nobody builds; "" without such a wait."""
        if self._builder != "":
            return ""
        return f"`rm {shlex.quote(self.latest['waits_for'])}`, unless another machine builds it"

    @property
    def is_stuck(self) -> bool:
        """Whether it has waited for long for an extension that nobody builds, whose lock is as old as the wait."""
        waited_s = time.monotonic() - self.waits_at
        if waited_s < _STUCK_S or not self.remedy:
            return False
        with contextlib.suppress(OSError):  # a newer lock is that of a build of another machine
            return Path(self.latest["waits_for"]).stat().st_mtime <= time.time() - waited_s
        return False

    @property
    def awaits_build(self) -> bool:
        """Whether it waits for an extension that a living process builds."""
        return bool(self._builder)

    @property
    def _builder(self) -> str | None:
        """Who builds the extension that it waits for; "" for nobody, None if it waits for none."""
        lock = self.latest.get("waits_for")
        return _builder(lock, int(time.monotonic() / _ASKED_EVERY_S)) if lock else None

    @property
    def is_lost(self) -> bool:
        """Whether the process is gone, and neither it nor its launcher said so."""
        return "end" not in self.latest and self.report is None and self.status == "dead"

    @property
    def has_failed(self) -> bool:
        return self.error is not None or bool(self.exit_code) or self.is_lost


@functools.lru_cache(maxsize=8)
def _builder(lock: str, _when: int) -> str | None:
    """Who builds under a lock, "" for nobody, None if the lock is gone. All processes are looked through, so all ranks
    ask once for each time."""
    try:
        return extension_lock.builder(Path(lock))
    except OSError:
        return None


class Ranks:
    """The ranks whose records are in a folder: `rank<R>.log` and `rank<R>.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_file: dict[Path, Rank] = {}
        self._sizes: dict[Path, int] = {}
        self.losses = list[tuple[int, float]]()
        """(step, mean over the ranks) of the losses that every rank has reported."""
        self.heard_at = time.monotonic()
        """Time at which a rank or the launcher last recorded or printed anything."""

    def read(self) -> None:
        for path in self.folder.glob("rank*.jsonl"):
            self._by_file.setdefault(path, Rank(EventLogReader(path), int(path.stem.removeprefix("rank"))))
        for rank in self._by_file.values():
            rank.read()
        new = (rank.losses[len(self.losses) :] for rank in self._by_file.values())
        self.losses += [(same[0][0], fmean(loss for _, loss in same)) for same in zip(*new, strict=False)]
        with contextlib.suppress(OSError):  # the folder may be removed
            sizes = {path: path.stat().st_size for path in (*self._by_file, *self.folder.glob("*.log"))}
            if sizes != self._sizes:
                self._sizes = sizes
                self.heard_at = time.monotonic()

    @property
    def ranks(self) -> list[Rank]:
        """The ranks in their order."""
        return sorted(self._by_file.values(), key=lambda rank: rank.number)

    @property
    def slowest(self) -> Rank | None:
        """The rank that has come least far; None before the first one has started."""
        return min(self.ranks, key=lambda rank: (_progress(rank), rank.number), default=None)

    @property
    def obstacle(self) -> str:
        """Why the ranks cannot go on; "" for nothing. A rank that failed comes before those that wait for it."""
        found = [rank for rank in self.ranks if rank.obstacle]
        failed = first_failed(found) or next((rank for rank in found if rank.is_lost), None)
        return (failed or found[0]).obstacle if found else ""

    @property
    def left(self) -> Rank | None:
        """The first rank that waits for an extension which nobody builds now."""
        return next((rank for rank in self.ranks if rank.remedy), None)

    @property
    def stuck(self) -> Rank | None:
        """The first rank that waits for an extension which nobody will build."""
        return next((rank for rank in self.ranks if rank.is_stuck), None)

    @property
    def awaits_build(self) -> bool:
        """Whether a rank waits for an extension that a living process builds."""
        return any(rank.awaits_build for rank in self.ranks)

    @property
    def phase(self) -> str:
        """The phase of the slowest rank."""
        return "start" if self.slowest is None else self.slowest.phase

    @property
    def step(self) -> int:
        """The last step that all ranks have completed."""
        return min((rank.step for rank in self.ranks), default=0)

    @property
    def total_steps(self) -> int | None:
        """The optimizer steps of the whole training, by the Trainer; None for another loop."""
        trainer = self.first("trainer")
        return int(trainer["total_steps"]) if trainer else None

    @property
    def made_all_steps(self) -> bool:
        return self.total_steps is not None and self.step >= self.total_steps

    def first(self, name: str) -> Any:
        """The last value of a key from the first rank that has the key, such as `engine`, `trainer` or `checkpoint`."""
        return next((rank.latest[name] for rank in self.ranks if name in rank.latest), None)

    def speed(self, world_size: int, last: int | None = None) -> tuple[float | None, float | None]:
        """(tokens per step, seconds per step) of the whole job, or (None, None) before the second step.

        Both are medians over the `last` steps, or over all but the first. Tokens: the mean of the ranks, padding
        included; the ranks of other nodes are assumed to have as many. Seconds: those of the slowest rank.
        """
        # One more than `last`: n end times have n - 1 intervals. From the end, so that a long training costs no more.
        latest = [list(islice(reversed(rank.steps.values()), last and last + 1)) for rank in self.ranks]
        steps = [each[::-1] for each in latest if len(each) > 1]
        if not steps:
            return None, None
        tokens = fmean(median(count for _, count in each[1:]) for each in steps) * world_size
        return tokens or None, max(
            median(after - before for (before, _), (after, _) in pairwise(each)) for each in steps
        )


_LONGEST = 100
"""Most characters of an error among the figures of a line."""


def _clause(error: str) -> str:
    """The first sentence of an error, without a full stop: what follows, as of the allocator, is printed at the end."""
    clause = error.splitlines()[0].partition(". ")[0].rstrip(".")
    return clause if len(clause) <= _LONGEST else f"{clause[:_LONGEST].rstrip()} ..."


_PHASES = ("start", "join", "load", "initialize", "step")


def _progress(rank: Rank) -> tuple[int, int]:
    """How far the rank is: (index of the phase, number of the step)."""
    name, _, number = rank.phase.partition(" ")
    return _PHASES.index(name) if name in _PHASES else len(_PHASES), int(number or 0)


def first_failed(ranks: Sequence[Rank], lost: Sequence[Rank] = ()) -> Rank | None:
    """The rank that failed first; None if none is known to have failed.

    A killed rank reports nothing, and the others then fail because it is lost. A rank that raises an error reports it,
    and the launcher then ends the others, which report nothing. The first failure is therefore the earliest error that
    is not the loss of another rank; else the earliest death by a signal that is not the launcher's; else the rank that
    was gone before any other had ended, in whatever way, if all ranks of the training are known; else the earliest
    error or exit code. lost: ranks that are gone without a report; one of them is the first unless another has exited
    by itself, after which the rest are ended.
    """
    raised = sorted((rank for rank in ranks if rank.error is not None), key=lambda rank: rank.error_at)
    ended = sorted((rank for rank in ranks if rank.error is None and rank.exit_code), key=lambda rank: rank.exit_at)
    own = [rank for rank in raised if not rank.lost_another]
    killed = [rank for rank in ended if (rank.exit_code or 0) < 0 and rank.exit_code != _LAUNCHERS_SIGNAL]
    exited = [rank for rank in ended if (rank.exit_code or 0) > 0]
    gone = sorted((rank for rank in ranks if rank.exit_code is not None), key=lambda rank: rank.exit_at)[:1]
    # With ranks of other nodes, the launcher may have ended this one because of them.
    left = [rank for rank in gone if rank.error is None and rank.latest.get("engine_ranks") == len(ranks)]
    return next(iter((*own, *killed, *(() if exited else lost), *(left if raised else ()), *raised, *exited)), None)
