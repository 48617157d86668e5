"""The ranks' processes: started under a supervisor, asked to stop, ended without a remainder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil

from ...probes.rank_processes import extension_lock
from ...probes.search_path import search_path
from .command import launch_line
from .environment import environment_of
from .records import Records
from .request import LaunchRequest
from .shared_memory import free_abandoned_buffers
from .supervisor import adopt_orphans, kill_descendants
from .trainer_callback import STOP_FILE

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
