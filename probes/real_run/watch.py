"""Start the ranks as processes, monitor them by their event logs, and end them together.

Every rank has a supervisor (`supervisor.py`), which ends it with all processes that it started: ninja gives each
compiler a process group of its own. Nothing outlives `watch`: on success, failure, an exception and Ctrl-C it ends all
supervisors and waits for them. If the watching process is killed, they end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from ..machine import search_path
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

COMPILERS = frozenset(
    ("ninja", "c++", "g++", "clang++", "cc1plus", "as", "ld", "nvcc", "cudafe++", "cicc", "ptxas", "hipcc")
)
"""Names of processes that build DeepSpeed's extensions at their first use."""

_PHASES = ("start", "import", "join", "load", "initialize", "step", "report")
_COMPILE = ("join", "load")

OnProgress = Callable[[str], None]


class _Rank:
    def __init__(self, number: int, folder: Path, worker: str, environment: Mapping[str, str]) -> None:
        self.number = number
        self.output = folder / f"rank{number}.txt"
        self.log = EventLogReader(folder / f"rank{number}.jsonl")
        command = [sys.executable, "-m", f"{__package__}.rank", str(folder), str(number), worker]
        self.process = start_supervised(command, self.output, environment, folder)
        self.exit_code: int | None = None
        self.last_event_at = time.monotonic()

    def read_events(self) -> bool:
        """Read the rank's new events. The exit code is read first, so that the last event is not missed."""
        self.exit_code = self.process.poll()
        if self.exit_code is not None and self.exit_code > _SIGNAL_OFFSET:  # as the supervisor reports a signal
            self.exit_code = _SIGNAL_OFFSET - self.exit_code
        if self.log.read_new():
            self.last_event_at = time.monotonic()
            return True
        return False

    @property
    def done(self) -> bool:
        return "report" in self.log.last

    @property
    def error(self) -> dict[str, Any] | None:
        return self.log.last.get("error")

    @property
    def progress(self) -> tuple[int, int]:
        """The rank's progress: (index of the phase, number of the step)."""
        name, _, number = self.log.phase.partition(" ")
        return _PHASES.index(name) if name in _PHASES else len(_PHASES), int(number or 0)

    def is_compiling(self) -> bool:
        """Whether the rank builds one of DeepSpeed's extensions, which takes minutes."""
        with contextlib.suppress(psutil.Error):
            return any(child.name() in COMPILERS for child in psutil.Process(self.process.pid).children(recursive=True))
        return False

    def is_stopped(self) -> bool:
        """Whether the rank is suspended (SIGSTOP); the others would wait for it forever."""
        suspended = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        with contextlib.suppress(psutil.Error):
            return any(child.status() in suspended for child in psutil.Process(self.process.pid).children())
        return False

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    def failure(self, kind: RankFailureKind, message: str) -> RankFailure:
        """The rank's failure, with the end of its output ("" if the file is gone)."""
        details = ""
        with contextlib.suppress(OSError):
            details = self.output.read_text(encoding="utf-8", errors="replace")[-4000:]
        return RankFailure(kind=kind, rank=self.number, phase=self.log.phase, message=message, details=details)

    def exit_failure(self) -> RankFailure:
        """The rank's failure if it ended without a report or an error."""
        assert self.exit_code is not None, "it has ended"
        if self.exit_code < 0:
            cause = ", as the kernel does when memory runs out" if -self.exit_code == signal.SIGKILL else ""
            name = signal.Signals(-self.exit_code).name
            return self.failure("killed", f"rank {self.number} was killed by {name}{cause}")
        lost = "" if self.output.exists() else f"; the probe's folder {self.output.parent} was removed"
        return self.failure("crash", f"rank {self.number} ended with exit code {self.exit_code}{lost}")


def watch(
    numbers: Sequence[int],
    folder: Path,
    *,
    worker: str,
    stall_s: float,
    timeout_s: float,
    on_progress: OnProgress = lambda _phase: None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[dict[str, Any]], RankFailure | None]:
    """Start the ranks and wait for them. Returns the last event of every rank, or the first failure.

    worker: the module whose `work(folder, rank, log)` each rank runs.
    stall_s: maximum duration of a rank's phase; a longer one is a hang. timeout_s: limit of the whole.
    environment: variables of the ranks in addition to those of this process.
    """
    deadline = time.monotonic() + timeout_s
    variables = {
        **os.environ,
        "PATH": search_path(),
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        **environment,
    }
    ranks: list[_Rank] = []
    try:
        for number in numbers:
            with interrupts_deferred():
                ranks.append(_Rank(number, folder, worker, variables))
        shown, checked_at, compiles = "", 0.0, False
        while True:
            for rank in ranks:
                rank.read_events()
            phase = min(ranks, key=lambda rank: rank.progress).log.phase
            if phase in _COMPILE and time.monotonic() - checked_at > _COMPILER_CHECK_S:
                checked_at = time.monotonic()
                compiles = any(rank.is_compiling() for rank in ranks)
            title = f"{phase}, compiling DeepSpeed's extensions" if phase in _COMPILE and compiles else phase
            if title not in (shown, "start"):
                shown = title
                on_progress(title)
            failure = _failure(ranks, stall_s, deadline)
            if failure is not None:
                return [], failure
            if all(rank.done for rank in ranks):
                return [rank.log.last for rank in ranks], None
            time.sleep(_POLL_S)
    finally:
        with interrupts_deferred():
            for rank in ranks:
                rank.kill()


def _failure(ranks: list[_Rank], stall_s: float, deadline: float) -> RankFailure | None:
    """The failure of the rank that failed first; None if no rank has failed."""
    if any(rank.error or (rank.exit_code is not None and not rank.done) for rank in ranks):
        return _first_failure(ranks)
    for rank in ranks:
        if rank.is_stopped():
            return rank.failure("stopped", f"rank {rank.number} was suspended (SIGSTOP)")
    now = time.monotonic()
    if now > deadline:
        late = min(ranks, key=lambda rank: rank.progress)
        return late.failure("timeout", f"not done in time; rank {late.number} was in phase {late.log.phase}")
    silent = [rank for rank in ranks if now - rank.last_event_at > stall_s and not rank.done]
    # Only when a rank is silent: looking for compilers walks through all processes.
    if silent and any(rank.is_compiling() for rank in ranks):
        for rank in ranks:  # the others wait for the rank that compiles
            rank.last_event_at = now
    elif silent:
        # The others wait for the rank that is furthest behind, whose last event may be later than theirs.
        last = min((rank for rank in ranks if not rank.done), key=lambda rank: (rank.progress, rank.last_event_at))
        return last.failure("hang", f"rank {last.number} made no progress for {stall_s:.0f} s")
    return None


def _first_failure(ranks: list[_Rank]) -> RankFailure:
    """The earliest failure. A killed rank reports nothing, and the others then fail because it is missing."""
    patience = time.monotonic() + _GRACE_S
    while not all(rank.exit_code is not None or rank.error for rank in ranks) and time.monotonic() < patience:
        time.sleep(_POLL_S)
        for rank in ranks:
            rank.read_events()
    for rank in ranks:
        if rank.exit_code is not None and not rank.error and not rank.done:
            return rank.exit_failure()
    failed = [rank for rank in ranks if rank.error]
    out_of_memory = [rank for rank in failed if rank.error and rank.error["kind"] == "out_of_memory"]
    first = min(out_of_memory or failed, key=lambda rank: rank.log.last["time"])
    return RankFailure(rank=first.number, **first.log.last["error"])
