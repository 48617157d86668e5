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
from dataclasses import replace
from pathlib import Path

from ..run_errors import way_to_deepspeed
from .error_kinds import kind_of_error
from .events import EventLogReader
from .output import last_line, tail
from .ranks import Rank, Ranks, first_failed
from .result import RankFailure, RankFailureKind
from .sampling import MemorySampler
from .stacks import missing_in_collective, positions, stall_fix
from .supervisor import supervised

_POLL_S = 0.2
_GRACE_S, _LOST_GRACE_S = 2.0, 25.0
"""Times after the first failure in which the failures of other ranks are awaited (`_Job._await_others`). After 30 s
torchrun kills ranks that ignore its SIGTERM (torch 2.13 distributed/elastic/multiprocessing/api.py)."""
_LAUNCHER_LOG = "launcher.log"

_DETAILS = 4000
"""Most characters of the end of an output in a failure."""

OnProgress = Callable[[Ranks, MemorySampler], None]
"""Function called about once a second, and when the phase of the slowest rank changes."""


class _Job:
    """A command that runs, with the ranks that have appeared."""

    def __init__(self, supervisor: subprocess.Popen[bytes], folder: Path, *, gpus: bool) -> None:
        self.supervisor, self.records = supervisor, Ranks(folder)
        self.memory = MemorySampler(supervisor.pid, gpus=gpus)
        self.started = time.monotonic()

    @property
    def is_done(self) -> bool:
        """Whether every rank has reported."""
        reports = [rank.report for rank in self.records.ranks]
        return bool(reports) and all(each is not None and len(reports) >= each["processes"] for each in reports)

    def failure(self, stall_s: float, timeout_s: float) -> RankFailure | None:
        """The failure of the rank that failed first; None if no rank has failed."""
        code = self.supervisor.poll()
        if code is not None:
            self.records.read()  # the exit code is read first, so that the last event is not missed
        if code is not None or any(rank.has_failed for rank in self.records.ranks):
            return self._first_failure() if not self.is_done else None
        for rank in self.records.ranks:
            # The others would wait for it forever.
            if rank.is_suspended:
                return self._failure(rank, "stopped", rank.obstacle)
        if (stuck := self.records.stuck) is not None:
            return replace(self._failure(stuck, "hang", stuck.obstacle), fix=stuck.remedy)
        now, slowest = time.monotonic(), self.records.slowest or Rank(EventLogReader(self.records.folder), 0)
        if now > self.started + timeout_s:
            message = f"not done within {timeout_s:.0f} s; rank {slowest.number} was in phase {slowest.phase}"
            return self._failure(slowest, "timeout", message)
        if now - self.records.heard_at > stall_s:
            if self.memory.compiles or self.records.awaits_build:
                self.records.heard_at = now
            elif slowest.obstacle:
                return replace(self._failure(slowest, "hang", slowest.obstacle), fix=slowest.remedy)
            else:
                stalled = f"rank {slowest.number} made no progress for {stall_s:.0f} s"
                found = positions(self.records.ranks, self.records.folder)
                where = [conclusion] if (conclusion := missing_in_collective(found)) else map(str, found)
                failure = self._failure(slowest, "hang", "; ".join((stalled, *where)))
                return replace(failure, fix=stall_fix(found))
        return None

    def _first_failure(self) -> RankFailure:
        """The failure of the rank that failed first, once the others have had the time to report theirs."""
        # After the end of the command, or of another rank, the supervisor or the launcher ends the rest.
        is_first = self.supervisor.poll() is None and all(rank.exit_code is None for rank in self.records.ranks)
        lost = [rank for rank in self.records.ranks if rank.is_lost] if is_first else []
        self._await_others()
        ranks = self.records.ranks
        first = first_failed(ranks, [rank for rank in lost if rank.exit_code is None])
        if first is None and not ranks:
            code, log = self.supervisor.poll() or 0, self.records.folder / _LAUNCHER_LOG
            message, last = f"the command ended with exit code {code} before a rank started", last_line(log)
            message += f": {last}" if last else ""
            return RankFailure(kind="crash", rank=0, phase="start", message=message, details=tail(log)[-_DETAILS:])
        # If the launcher's signal ended all of them, one of them had it from another process, before the others.
        first = first or min(
            (rank for rank in ranks if rank.exit_code), key=lambda rank: rank.exit_at, default=ranks[0]
        )
        if first.error is not None:
            ran_out = kind_of_error(first.error) in ("gpu_out_of_memory", "host_out_of_memory")
            return RankFailure(
                kind="out_of_memory" if ran_out else "crash",
                rank=first.number,
                phase=first.place,
                message=first.error_text[:500].removesuffix(": "),
                details=first.error["details"],
            )
        if first in lost and first.exit_code is None:
            return self._failure(first, "killed", f"rank {first.number} is gone")
        code = (self.supervisor.poll() or 0) if first.exit_code is None else first.exit_code
        if code < 0:
            cause = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
            name = signal.Signals(-code).name
            who = "the launcher" if first.exit_code is None else f"rank {first.number}"
            return self._failure(first, "killed", f"{who} was killed by {name}{cause}")
        if not code:
            return self._no_step(first)
        return self._failure(first, "crash", f"rank {first.number} ended with exit code {code}")

    def _no_step(self, first: Rank) -> RankFailure:
        """The result of a command that ended by itself, without an optimizer step of an engine."""
        called, made = self.records.first("plain"), any("initialized" in rank.latest for rank in self.records.ranks)
        why, fix = ("", "") if made else way_to_deepspeed(takes_config=bool(self.records.first("takes_config")))
        message = f"it trains by torch's {called}, without a DeepSpeed engine" if called else ""
        message = message or ("its DeepSpeed engine was not trained" if made else "it made no DeepSpeed engine")
        failure = self._failure(first, "no_step", f"{message}, and {why}" if why else message)
        return replace(failure, fix=fix)

    def _await_others(self) -> None:
        """Wait until every rank that has appeared has reported its end, at most `_GRACE_S`. While the only failures are
        that another rank is lost, their cause is still to be reported, perhaps by a rank without a record yet: wait for
        it until the command ends, at most `_LOST_GRACE_S`."""
        began = time.monotonic()
        has_ended = False
        while not has_ended:
            ranks = self.records.ranks
            failed = [rank for rank in ranks if rank.has_failed]
            lacks_cause = bool(failed) and all(rank.lost_another for rank in failed)
            if not lacks_cause and all(rank.error or rank.exit_code for rank in ranks):
                break
            if time.monotonic() - began > (_LOST_GRACE_S if lacks_cause else _GRACE_S):
                break
            has_ended = self.supervisor.poll() is not None
            time.sleep(_POLL_S)
            self.records.read()

    def _failure(self, rank: Rank, kind: RankFailureKind, message: str) -> RankFailure:
        """A failure with the end of the rank's output ("" if the file is gone)."""
        details = tail(self.records.folder / f"rank{rank.number}.log")[-_DETAILS:]
        return RankFailure(kind=kind, rank=rank.number, phase=rank.place, message=message, details=details)


def watch(
    words: Sequence[str],
    folder: Path,
    *,
    environment: Mapping[str, str],
    working_folder: Path,
    stall_s: float,
    timeout_s: float,
    gpus: bool = False,
    on_progress: OnProgress = lambda _ranks, _memory: None,
) -> tuple[list[Rank], RankFailure | None, MemorySampler]:
    """Start the command and wait until every rank has reported. Returns the ranks in their order, the first failure,
    and the memory with its peaks.

    folder: of the records. environment: of `observed_environment`. stall_s: maximum time without an event or a line of
    output of any rank; more is a hang. timeout_s: limit of the whole. gpus: whether to sample the GPUs' memory too.
    """
    with supervised(words, folder / _LAUNCHER_LOG, environment, working_folder) as supervisor:
        job, shown = _Job(supervisor, folder, gpus=gpus), None
        while True:
            job.records.read()
            if job.memory.sample() or job.records.phase != shown:
                shown = job.records.phase
                with contextlib.suppress(Exception):  # who watches must not end the run
                    on_progress(job.records, job.memory)
            if job.is_done or (failure := job.failure(stall_s, timeout_s)) is not None:
                return job.records.ranks, None if job.is_done else failure, job.memory
            time.sleep(_POLL_S)
