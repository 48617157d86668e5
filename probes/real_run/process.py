"""One process of an observed command: whether it is a rank, its output and its events."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import environment
from .environment import Settings
from .events import EventLog, description, note_exit
from .stacks import show_on_signal


class ObservedProcess:
    """One process of the command."""

    def __init__(self, settings: Settings) -> None:
        self.folder = Path(settings.folder)
        self._events: EventLog | None = None
        self._has_error = False
        self.on_end: Callable[[], None] = lambda: None
        """Called when the script has ended without an error."""
        self._pid = os.getpid()
        # The first to be registered is the last to be called: after the handlers of the script and its libraries.
        atexit.register(self._end)

    @property
    def is_rank(self) -> bool:
        return self._events is not None

    def note(self, values: dict[str, Any]) -> None:
        """Append an event to the log of the rank. A process that it forked notes nothing."""
        if self._events is not None and os.getpid() == self._pid:
            self._events.note(values)

    def become_rank(self, number: int) -> None:
        self._pid = os.getpid()
        environment.mark_as_rank()
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            _redirect_output(self.folder / f"rank{number}.log")
        self._events = EventLog(self.folder / f"rank{number}.jsonl")
        host = socket.gethostname()
        self.note({"rank": number, "pid": self._pid, "host": host, "stacks": show_on_signal()})
        hook = sys.excepthook

        def noted(kind: Any, error: BaseException, frames: Any) -> None:
            self._note_error(error)
            hook(kind, error, frames)

        sys.excepthook = noted

    def report_children(self, module: Any) -> None:
        """Report how the ranks that this process starts have ended."""

        def reported(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def run(child: Any, *args: Any, **named: Any) -> Any:
                was_running = child.returncode is None
                result = method(child, *args, **named)
                if was_running and child.returncode is not None and not self.is_rank:
                    child.returncode = note_exit(self.folder, child.pid, child.returncode)
                    return child.returncode
                return result

            return run

        module.Popen.poll, module.Popen.wait = reported(module.Popen.poll), reported(module.Popen.wait)

    def _note_error(self, error: BaseException) -> None:
        self._has_error = True
        self.note({"error": description(error)})

    def _end(self) -> None:
        """The end of the script. Its exit code is known to the process that started this one."""
        if not self._has_error:
            # Where the script has replaced the hook of exceptions.
            error = getattr(sys, "last_value", None)
            if error is None:
                self.on_end()
                self.note({"end": 0})
            else:
                self._note_error(error)


def _redirect_output(path: Path) -> None:
    """Redirect both streams by their descriptors, to include the output of libraries and child processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
