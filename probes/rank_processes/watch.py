"""The ranks as processes: started together, watched, ended together.

Every rank has a session of its own, so that ending it ends whatever it started (compilers, workers). Nothing outlives
`watch`: on success, on failure, on an exception and on Ctrl-C all sessions are killed and waited for; and a rank whose
    watcher
is killed dies with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ..search_path import search_path
from . import extension_lock
from .event_log import EventLogReader
from .failure import RankFailure

_POLL_S = 0.05
_OTHERS_S = 2.0
"""After the first sign of a failure, how long to wait for the event logs of ranks that failed before it or with it."""

_COMPILERS = frozenset(("ninja", "c++", "g++", "clang++", "cc1plus", "ld", "nvcc", "cicc", "ptxas", "hipcc"))

OnProgress = Callable[[str], None]


class _Rank:
    """One process, its event log, and what it printed."""

    def __init__(self, number: int, folder: Path, worker: str, environment: Mapping[str, str]) -> None:
        self.number = number
        self.output = folder / f"rank{number}.txt"
        self.log = EventLogReader(folder / f"rank{number}.jsonl")
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", worker, str(folder), str(number), str(os.getpid())],
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                start_new_session=True,
                env=dict(environment),
            )
        self.heard = time.monotonic()

    def listen(self) -> bool:
        news = self.log.news()
        if news:
            self.heard = time.monotonic()
        return bool(news)

    def is_compiling(self) -> bool:
        """Whether it builds one of DeepSpeed's extensions, which takes minutes and is no hang."""
        with contextlib.suppress(psutil.Error):
            return any(
                child.name() in _COMPILERS for child in psutil.Process(self.process.pid).children(recursive=True)
            )
        return False

    @property
    def done(self) -> bool:
        return "report" in self.log.last

    def is_stopped(self) -> bool:
        """Whether somebody suspended it (SIGSTOP); it would keep the others waiting for ever."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        except (OSError, IndexError):
            return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def printed(self) -> str:
        """The end of what it printed; "" where its file is gone."""
        with contextlib.suppress(OSError):
            return self.output.read_text(encoding="utf-8", errors="replace")[-4000:]
        return ""


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits meanwhile: a process that is started is known, and one that is to be ended is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watch(
    numbers: Sequence[int], folder: Path, *, worker: str, stall_s: float, timeout_s: float, on_progress: OnProgress
) -> tuple[list[dict[str, Any]], RankFailure | None]:
    """Start the ranks and wait for them; answers the last line of every event log, or the failure that came first.

    worker:    the module that is run as `python -m worker FOLDER RANK PARENT`; it ends its event log with `report` or
        `error`.
    stall_s:   a phase of one rank that takes longer is a hang. timeout_s: bounds the whole.
    """
    deadline = time.monotonic() + timeout_s
    environment = {
        **os.environ,
        "PATH": search_path(),
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    ranks: list[_Rank] = []
    try:
        for number in numbers:
            with _uninterrupted():
                ranks.append(_Rank(number, folder, worker, environment))
        told = ""
        while True:
            heard = [rank.listen() for rank in ranks]
            slowest = min((rank.log.phase for rank in ranks), key=_order)
            if any(heard) and slowest != told:
                told = slowest
                on_progress(told)
            failure = _failure(ranks, stall_s, deadline)
            if failure is not None:
                return [], failure
            if all(rank.done for rank in ranks):
                return [rank.log.last for rank in ranks], None
            time.sleep(_POLL_S)
    finally:
        with _uninterrupted():
            for rank in ranks:
                rank.kill()
            extension_lock.remove_abandoned()


def _order(phase: str) -> tuple[int, int]:
    """Phases in the order in which a rank enters them."""
    name, _, number = phase.partition(" ")
    names = ("start", "import", "join", "load", "initialize", "step", "report")
    return names.index(name) if name in names else len(names), int(number or 0)


def _failure(ranks: list[_Rank], stall_s: float, deadline: float) -> RankFailure | None:
    """The first sign of a failure, traced to the rank that failed first."""
    ended = [rank for rank in ranks if rank.process.poll() is not None and not rank.done]
    told = [rank for rank in ranks if "error" in rank.log.last]
    if ended or told:
        return _first(ranks)
    now = time.monotonic()
    for rank in ranks:
        if rank.is_stopped():
            return RankFailure(
                kind="stopped",
                rank=rank.number,
                phase=rank.log.phase,
                message=f"rank {rank.number} was suspended (SIGSTOP)",
            )
    if now > deadline:
        late = min(ranks, key=lambda rank: _order(rank.log.phase))
        return RankFailure(
            kind="timeout",
            rank=late.number,
            phase=late.log.phase,
            message=f"not done in time; rank {late.number} was at {late.log.phase}",
        )
    silent = [rank for rank in ranks if now - rank.heard > stall_s and not rank.done]
    if silent and any(rank.is_compiling() for rank in ranks):
        for rank in ranks:  # those that do not compile wait for the one that does
            rank.heard = now
    elif silent:
        last = min(silent, key=lambda rank: (_order(rank.log.phase), rank.heard))
        return RankFailure(
            kind="hang",
            rank=last.number,
            phase=last.log.phase,
            details=last.printed(),
            message=f"rank {last.number} made no progress for {stall_s:.0f} s",
        )
    return None


def _first(ranks: list[_Rank]) -> RankFailure:
    """The failure with the earliest time. A rank that was killed says nothing, and the others then fail for want of
    it."""
    patience = time.monotonic() + _OTHERS_S
    while time.monotonic() < patience and not all(
        rank.process.poll() is not None or "error" in rank.log.last for rank in ranks
    ):
        for rank in ranks:
            rank.listen()
        time.sleep(_POLL_S)
    for rank in ranks:
        rank.listen()
    silent = [
        rank
        for rank in ranks
        if rank.process.poll() is not None
        and rank.process.returncode != 0
        and not {"error", "report"} & rank.log.last.keys()
    ]
    if silent:
        return _died(silent[0])
    told = [rank for rank in ranks if "error" in rank.log.last]
    memory = [rank for rank in told if rank.log.last["error"]["kind"] == "out_of_memory"]
    first = min(memory or told, key=lambda rank: rank.log.last["time"])
    return RankFailure(rank=first.number, **first.log.last["error"])


def _died(rank: _Rank) -> RankFailure:
    """A process that ended without a word: the signal tells why."""
    code = rank.process.returncode
    if code < 0:
        name = signal.Signals(-code).name
        by_whom = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
        return RankFailure(
            kind="killed",
            rank=rank.number,
            phase=rank.log.phase,
            details=rank.printed(),
            message=f"rank {rank.number} was killed by {name}{by_whom}",
        )
    lost = "" if rank.output.exists() else f"; the probe's folder {rank.output.parent} was removed meanwhile"
    return RankFailure(
        kind="crash",
        rank=rank.number,
        phase=rank.log.phase,
        details=rank.printed(),
        message=f"rank {rank.number} ended with exit code {code}{lost}",
    )
