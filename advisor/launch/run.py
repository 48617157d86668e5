"""One launch: starts, monitors, stops and ends the processes of the ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from rich.console import Console

from ...ds_configs.files import numbered
from ...estimators.errors import ConfigFileError
from ...probes.real_run.supervisor import supervised
from ...probes.real_run.torchrun import free_port
from ...probes.real_run.trainer import STOP_FILE
from ...probes.scratch import signals_collected
from ..text.display import Display
from .command import launch_line, observed
from .monitor import Monitor
from .records import Records
from .request import LaunchOutcome, LaunchRequest, TrainingFailure

_POLL_S = 0.2

_SECOND = "a second Ctrl-C or SIGTERM ends"

_OUTPUT = "the ranks' output is kept there"


def launch(request: LaunchRequest, *, verbose: bool = False, console: Console | None = None) -> LaunchOutcome:
    """Run the training to its end and return its outcome. No process of the training is left in any case.

    The steps and the output of every rank are kept in `request.folder` (`probes/real_run/observe.py`). The first
    Ctrl-C, SIGTERM or SIGHUP (a closed terminal) is passed on: the Trainer saves and stops after the same step on every
    rank; the ranks of another script receive SIGTERM. The second ends all at once.

    verbose: whether to show rank 0's output. console: where to show the progress, default stderr. Raises
    ConfigFileError if the folder cannot be made or holds another launch's records.
    """
    make_folder(request.folder, _OUTPUT)
    log = request.folder / "launcher.log"
    try:
        log.touch(exist_ok=False)
    except FileExistsError:
        raise ConfigFileError(
            f"{request.folder} contains the records of another launch",
            why="the records of two launches must not be mixed",
            fix="pass a new folder with --log-dir",
        ) from None
    display = Display(console or Console(stderr=True, highlight=False), "training")
    words = launch_line(request, port=None if request.rendezvous else free_port())
    with (
        signals_collected(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals,
        supervised(words, log, observed(request)) as supervisor,
        display,
    ):
        monitor = Monitor(request, display, supervisor.pid)
        failure = _watch(supervisor, monitor, display, signals, verbose=verbose)
    return monitor.outcome(supervisor.returncode, failure, stopped=bool(signals) and failure is None)


def _watch(
    supervisor: subprocess.Popen[bytes], monitor: Monitor, display: Display, signals: list[int], *, verbose: bool
) -> TrainingFailure | None:
    """Monitor the ranks until they have ended or must be ended. Returns the failure for which they must be ended, if
    any."""
    stopping: str | None = None
    while supervisor.poll() is None:
        monitor.look()
        if verbose:
            monitor.show_output()
        if failure := monitor.abort_reason():
            return failure
        if signals and stopping is None:
            monitor.warn_of_obstacle()
            stopping = _stop(monitor.records)
            if stopping:
                display.say(f"stopping: {stopping}")
        if len(signals) > 1 or stopping == "":
            display.say("ending at once")
            return None
        time.sleep(_POLL_S)
    if verbose:
        monitor.show_output()
    return None


def _stop(records: Records) -> str:
    """Make the training save and stop. Returns the method; "" if no rank runs."""
    if records.made_all_steps:
        return f"all {records.total_steps} steps are made; the script saves and ends by itself; {_SECOND} it now"
    if records.first("trainer"):
        with contextlib.suppress(OSError):  # the disk is full
            records.folder.mkdir(parents=True, exist_ok=True)  # it may have been removed
            (records.folder / STOP_FILE).touch()
            return f"the Trainer saves a checkpoint within the next steps; {_SECOND} it now"
    running = [rank.pid for rank in records.ranks if rank.pid and rank.status != "dead"]
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    saves = ", and the script decides what to save" if any(rank.step for rank in records.ranks) else ""
    how = f"SIGTERM is sent to the ranks{saves}; {_SECOND} them now"
    return how if running else ""


def new_folder(folder: Path) -> Path:
    """Make a folder that no other launch has: with a number behind its name if there is one. Raises ConfigFileError."""
    make_folder(folder.parent, _OUTPUT)
    for free in numbered(folder):
        with contextlib.suppress(FileExistsError):
            free.mkdir()
            return free
    raise AssertionError("the numbers do not end")


def make_folder(folder: Path, why: str) -> None:
    """Make a folder. why: its purpose, for the error. Raises ConfigFileError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigFileError(
            f"{folder} cannot be made ({error.strerror})",
            why=why,
            fix="pass a folder that can be written to with --log-dir",
        ) from None
