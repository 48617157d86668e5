"""The ranks' processes: started under a supervisor, asked to stop, ended without a remainder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.console import Console

from ...estimators.errors import ConfigFileError
from ...probes.rank_processes import extension_lock
from ...probes.search_path import search_path
from .command import environment_of, launch_line
from .monitor import Display, Monitor
from .observe import STOP_FILE
from .records import Records
from .request import LaunchOutcome, LaunchRequest, TrainingFailure
from .supervisor import adopt_orphans, free_abandoned_buffers, kill_descendants

_BY_TRAINER = "the Trainer saves a checkpoint within the next steps; once more ends it now"
_BY_SIGTERM = "SIGTERM goes to the ranks, which save what they have been written to save; once more ends them now"


class RankProcesses:
    """The launcher with its ranks, all of them descendants of one supervisor (`ranks/supervisor.py`).

    Raises OSError where the supervisor cannot be started.
    """

    def __init__(self, request: LaunchRequest) -> None:
        self._folder = request.folder
        words = launch_line(request, port=None if request.rendezvous else _free_port())
        self._others = frozenset(child.pid for child in psutil.Process().children())
        adopt_orphans(True)
        with (request.folder / "launcher.log").open("wb") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.supervisor", str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PATH": search_path(), **environment_of(request)},
            )
        self.pid = self._supervisor.pid

    @property
    def exit_code(self) -> int | None:
        """The launcher's exit code, None while it runs."""
        return self._supervisor.poll()

    def stop(self, records: Records) -> str:
        """Tell the training to save and stop. Answers what was done, "" where there was nobody to tell."""
        if records.first("trainer"):
            (self._folder / STOP_FILE).touch()
            return _BY_TRAINER
        running = [rank.pid for rank in records.ranks if rank.pid and rank.gone_at is None]
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return _BY_SIGTERM if running else ""

    def end(self) -> None:
        """End whatever is left of them; the supervisor takes all with it, unless it was killed itself."""
        if self._supervisor.poll() is None:
            self._supervisor.terminate()
        if self._supervisor.wait() < 0:
            kill_descendants(self._others)
            free_abandoned_buffers()
        adopt_orphans(False)
        extension_lock.remove_abandoned()


def _free_port() -> int:
    """A TCP port that nobody listens on at the moment, so that two trainings on one machine do not meet."""
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])


_POLL_S = 0.1


def launch(request: LaunchRequest, *, verbose: bool = False, console: Console | None = None) -> LaunchOutcome:
    """Run the training to its end and report how it ended; whatever happens, no process of it is left.

    Every rank runs the script through `ranks/rank.py`, so its steps are seen and its output is kept in
    `request.folder`. Ctrl-C and SIGTERM are passed on once: the Trainer saves and stops after the same step on every
    rank; another script gets SIGTERM, and what it does then is its own business. A second one ends all at once.

    verbose: show rank 0's output. console: where the progress is shown, default stderr.

    Raises ConfigFileError where the folder cannot be made or holds another launch's records.
    """
    _make_folder(request.folder)
    display = Display(console or Console(stderr=True, highlight=False))
    monitor = Monitor(request, display)
    with _signals_kept() as signals:
        processes = RankProcesses(request)
        try:
            with display:
                failure = _watch(processes, monitor, display, signals, verbose=verbose)
        finally:
            processes.end()
    return monitor.outcome(processes.exit_code or 0, failure, stopped=bool(signals) and failure is None)


def _watch(
    processes: RankProcesses, monitor: Monitor, display: Display, signals: list[int], *, verbose: bool
) -> TrainingFailure | None:
    """Watch until the ranks have ended or must be ended. Answers the failure for which they must, None otherwise."""
    passed_on, stopping = False, ""
    while processes.exit_code is None:
        monitor.look(processes.pid)
        if verbose:
            monitor.show_output()
        if failure := monitor.futility():
            return failure
        if signals and not passed_on:
            passed_on, stopping = True, processes.stop(monitor.records)
            if stopping:
                display.say(f"ds-advise: stopping: {stopping}")
        if len(signals) > 1 or (signals and not stopping):
            display.say("ds-advise: ending at once")
            return None
        time.sleep(_POLL_S)
    if verbose:
        monitor.show_output()
    return None


@contextlib.contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """The Ctrl-C and SIGTERM that arrived: they are only counted, and answered by the loop that watches."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    kept = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda received, _: signals.append(received)) for number in kept}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_folder(folder: Path) -> None:
    """Make the folder of one launch: records of another would be read as this one's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.glob("rank*.jsonl"))
    except OSError as error:
        raise ConfigFileError(
            f"{folder} cannot be made ({error.strerror})",
            why="the ranks' output is kept there",
            fix="pass a folder that can be written to with --log-dir",
        ) from None
    if used:
        raise ConfigFileError(
            f"{folder} holds the records of another launch",
            why="they would be mixed with this one's",
            fix="pass a new folder with --log-dir",
        )
