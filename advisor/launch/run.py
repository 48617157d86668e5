"""`launch`: one training from its start to its end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from ...estimators.errors import ConfigFileError
from .display import Display
from .monitor import Monitor
from .processes import RankProcesses
from .request import LaunchOutcome, LaunchRequest, TrainingFailure

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
