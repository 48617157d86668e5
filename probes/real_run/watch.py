"""Start a command whose ranks are observed (`environment.py`), monitor the ranks by their event logs, and end them
together.

The command has a supervisor (`supervisor.py`), which ends it with all processes that it started: ninja gives each
compiler a process group of its own. Nothing outlives `watch`: on success, failure, an exception and Ctrl-C it ends the
supervisor and waits for it. If the watching process is killed, the supervisor ends with it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ..scratch import interrupts_deferred
from .events import EventLogReader
from .result import RankFailure, RankFailureKind
from .supervisor import start_supervised

_POLL_S = 0.05
_COMPILER_CHECK_S = 1.0
"""Interval between checks for compilers, in seconds."""
_SIGNAL_OFFSET = 128
_GRACE_S = 2.0
"""Time after the first failure in which event logs of other failed ranks are awaited."""
_LAUNCHER_LOG = "launcher.log"

COMPILERS = frozenset(
    ("ninja", "c++", "g++", "clang++", "cc1plus", "as", "ld", "nvcc", "cudafe++", "cicc", "ptxas", "hipcc")
)
"""Names of processes that build DeepSpeed's extensions at their first use."""

_MAY_COMPILE = ("start", "join", "load", "initialize")
_PHASES = (*_MAY_COMPILE, "step")

OnProgress = Callable[[str], None]


@dataclass
class WatchedRank:
    """One rank, as its event log shows it."""

    log: EventLogReader
    number: int
    pid: int = 0
    phase: str = "start"
    events: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    error_at: float = 0.0
    exit_code: int | None = None
    """Negative for a signal; None for a rank that runs, or whose end nobody reported."""
    report: dict[str, Any] | None = None
    """The event with the rank's report."""
    ended: bool = False
    """Whether its script has ended by itself."""

    def read_events(self) -> bool:
        """Read the new events; whether there are any."""
        new = self.log.read_new()
        for event in new:
            self.pid = event.get("pid", self.pid)
            self.phase = event.get("phase", self.phase)
            self.exit_code = event.get("exit", self.exit_code)
            self.ended |= "end" in event
            if "error" in event:
                self.error, self.error_at = event["error"], event["time"]
            if "report" in event:
                self.report = event
        self.events += new
        return bool(new)

    @property
    def progress(self) -> tuple[int, int]:
        """How far the rank is: (index of the phase, number of the step)."""
        name, _, number = self.phase.partition(" ")
        return _PHASES.index(name) if name in _PHASES else len(_PHASES), int(number or 0)

    @property
    def status(self) -> str:
        """psutil's status of the process; "dead" if it is gone."""
        with contextlib.suppress(psutil.Error):
            found = str(psutil.Process(self.pid).status() if self.pid else psutil.STATUS_RUNNING)
            return "dead" if found == psutil.STATUS_ZOMBIE else found
        return "dead"

    @property
    def is_lost(self) -> bool:
        """Whether the process is gone, and neither it nor its launcher said so."""
        return not self.ended and self.report is None and self.status == "dead"

    @property
    def has_failed(self) -> bool:
        return self.error is not None or bool(self.exit_code) or self.is_lost

    def failure(self, kind: RankFailureKind, message: str, folder: Path) -> RankFailure:
        """The rank's failure, with the end of its output ("" if the file is gone)."""
        details = _end_of(folder / f"rank{self.number}.log")
        return RankFailure(kind=kind, rank=self.number, phase=self.phase, message=message, details=details)


class _Job:
    """A command that runs, with the ranks that have appeared."""

    def __init__(self, supervisor: subprocess.Popen[bytes], folder: Path) -> None:
        self.supervisor, self.folder = supervisor, folder
        self.ranks: dict[Path, WatchedRank] = {}
        self.heard_at = time.monotonic()
        """Time at which a rank last recorded or printed anything."""
        self._printed: dict[str, int] = {}
        self._checked_at = 0.0
        self._compiles = False

    def read(self) -> None:
        for path in self.folder.glob("rank*.jsonl"):
            self.ranks.setdefault(path, WatchedRank(EventLogReader(path), int(path.stem.removeprefix("rank"))))
        printed = {path.name: path.stat().st_size for path in self.folder.glob("*.log")}
        heard = sum(rank.read_events() for rank in self.ranks.values())
        if heard or printed != self._printed:
            self.heard_at, self._printed = time.monotonic(), printed

    @property
    def slowest(self) -> WatchedRank | None:
        return min(self.ranks.values(), key=lambda rank: (rank.progress, rank.number), default=None)

    @property
    def phase(self) -> str:
        return "start" if self.slowest is None else self.slowest.phase

    @property
    def is_done(self) -> bool:
        """Whether every rank has reported."""
        reports = [rank.report for rank in self.ranks.values()]
        return bool(reports) and all(each is not None and len(reports) >= each["processes"] for each in reports)

    @property
    def compiles(self) -> bool:
        """Whether an extension of DeepSpeed is being built, which takes minutes."""
        if time.monotonic() - self._checked_at > _COMPILER_CHECK_S:  # it walks through all processes
            self._checked_at, self._compiles = time.monotonic(), False
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(self.supervisor.pid).children(recursive=True)
                self._compiles = any(child.name() in COMPILERS for child in children)
        return self._compiles

    def failure(self, stall_s: float, deadline: float) -> RankFailure | None:
        """The failure of the rank that failed first; None if no rank has failed."""
        code = self.supervisor.poll()
        if code is not None:
            self.read()  # the exit code is read first, so that the last event is not missed
        if code is not None or any(rank.has_failed for rank in self.ranks.values()):
            return self._first_failure() if not self.is_done else None
        for rank in self.ranks.values():
            # The others would wait for it forever.
            if rank.status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                return rank.failure("stopped", f"rank {rank.number} was suspended (SIGSTOP)", self.folder)
        now, slowest = time.monotonic(), self.slowest or WatchedRank(EventLogReader(self.folder), 0)
        if now > deadline:
            message = f"not done in time; rank {slowest.number} was in phase {slowest.phase}"
            return slowest.failure("timeout", message, self.folder)
        if now - self.heard_at > stall_s:
            if self.compiles:
                self.heard_at = now
            else:
                message = f"rank {slowest.number} made no progress for {stall_s:.0f} s"
                return slowest.failure("hang", message, self.folder)
        return None

    def _first_failure(self) -> RankFailure:
        """The earliest failure. A killed rank reports nothing, and the others then fail because it is missing."""
        lost = [rank for rank in self.ranks.values() if rank.is_lost] if self.supervisor.poll() is None else []
        patience = time.monotonic() + _GRACE_S
        while time.monotonic() < patience and not all(rank.error or rank.exit_code for rank in self.ranks.values()):
            if self.supervisor.poll() is not None:
                patience = 0.0
            time.sleep(_POLL_S)
            self.read()
        ranks = sorted(self.ranks.values(), key=lambda rank: rank.number)
        failed = sorted((rank for rank in ranks if rank.error), key=lambda rank: rank.error_at)
        # The launcher ends the remaining ranks with SIGTERM.
        killed = [rank for rank in ranks if not rank.error and (rank.exit_code or 0) < 0 and rank.exit_code != -15]
        for rank in killed:
            assert rank.exit_code is not None, "it has one"
            cause = ", as the kernel does when memory runs out" if rank.exit_code == -signal.SIGKILL else ""
            name = signal.Signals(-rank.exit_code).name
            return rank.failure("killed", f"rank {rank.number} was killed by {name}{cause}", self.folder)
        if lost and not failed and not any(rank.exit_code for rank in ranks):
            return lost[0].failure("killed", f"rank {lost[0].number} is gone", self.folder)
        for rank in sorted(failed, key=lambda rank: not is_out_of_memory(rank.error or {})):
            error = rank.error or {}
            return RankFailure(
                kind="out_of_memory" if is_out_of_memory(error) else "crash",
                rank=rank.number,
                phase=rank.phase,
                message=error["message"][:500] or error["type"],
                details=error["details"],
            )
        first = next((rank for rank in ranks if rank.exit_code), ranks[0] if ranks else None)
        code = self.supervisor.poll() if first is None or first.exit_code is None else first.exit_code
        code = 0 if code is None else code
        if first is None:
            log = _end_of(self.folder / _LAUNCHER_LOG)
            last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
            message = f"the command ended with exit code {code} before a rank started" + (f": {last}" if last else "")
            return RankFailure(kind="crash", rank=0, phase="start", message=message, details=log)
        if not code:
            message = "the command ended without an optimizer step of a DeepSpeed engine"
            return first.failure("crash", message, self.folder)
        return first.failure("crash", f"rank {first.number} ended with exit code {code}", self.folder)


def watch(
    words: Sequence[str],
    folder: Path,
    *,
    environment: Mapping[str, str],
    working_folder: Path,
    stall_s: float,
    timeout_s: float,
    on_progress: OnProgress = lambda _phase: None,
) -> tuple[list[WatchedRank], RankFailure | None]:
    """Start the command and wait until every rank has reported. Returns the ranks in their order, and the first
    failure.

    folder: of the records. environment: of `observed_environment`. stall_s: maximum time without an event or a line of
    output of any rank; more is a hang. timeout_s: limit of the whole.
    """
    deadline = time.monotonic() + timeout_s
    supervisor = None
    try:
        with interrupts_deferred():
            supervisor = start_supervised(words, folder / _LAUNCHER_LOG, environment, working_folder)
        job, shown = _Job(supervisor, folder), {"start"}
        while True:
            job.read()
            title = job.phase
            if title in _MAY_COMPILE and job.compiles:
                title = f"{title}, compiling DeepSpeed's extensions"
            if title not in shown:
                shown.add(title)
                on_progress(title)
            if job.is_done or (failure := job.failure(stall_s, deadline)) is not None:
                return sorted(job.ranks.values(), key=lambda rank: rank.number), None if job.is_done else failure
            time.sleep(_POLL_S)
    finally:
        with interrupts_deferred():
            if supervisor is not None:
                if supervisor.poll() is None:
                    supervisor.terminate()
                supervisor.wait()


def is_out_of_memory(error: Mapping[str, Any]) -> bool:
    """Whether a rank's error means exhausted memory: CUDA and Python have classes for it; torch's CPU allocator raises
    a RuntimeError."""
    message = error["message"].lower()
    return (
        error["type"] in ("MemoryError", "OutOfMemoryError")
        or "allocate memory" in message
        or "out of memory" in message
    )


def _end_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")[-4000:]
    return ""
