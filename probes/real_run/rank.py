"""One rank as a process, and its event log: `python -m ds_advise.probes.real_run.rank FOLDER RANK WORKER`.

FOLDER holds the rank's task and its event log. WORKER is a module with a function `work(folder, rank, log)`,
which returns a dict with a `report`.

The event log is one file per rank with one JSON object per line. It shows how far the rank came, however it ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


class EventLog:
    """Appends the events of one rank. An event that cannot be written (a full disk) is lost, and the rank continues."""

    def __init__(self, path: Path) -> None:
        self._file = -1
        self.phase = "start"
        with contextlib.suppress(OSError):
            # One unbuffered write per line: the reader sees whole lines, and a killed rank loses none.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.note({"phase": phase})

    def note(self, values: Mapping[str, Any]) -> None:
        """Append an event with its `time` in seconds of the monotonic clock, which all processes of a machine share."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            os.write(self._file, (json.dumps({"time": time.monotonic(), **values}) + "\n").encode())


class EventLogReader:
    """Follows the event log of a rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.phase = "start"
        self.last: dict[str, Any] = {}

    def read_new(self) -> list[dict[str, Any]]:
        """The events since the last call. An incomplete last line is read later; a damaged line is skipped."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                whole, newline, _ = stream.read().rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + len(newline)
        events: list[dict[str, Any]] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        for event in events:
            self.last = event
            self.phase = event.get("phase", self.phase)
        return events


def main() -> NoReturn:
    """Run the worker, write its result or its error as the last event, and end the process."""
    folder = Path(sys.argv[1])
    rank = int(sys.argv[2])
    die_with_parent(os.getppid())
    log = EventLog(folder / f"rank{rank}.jsonl")
    try:
        log.enter("import")
        log.note(importlib.import_module(sys.argv[3]).work(folder, rank, log))
    except BaseException as error:
        log.note(
            {
                "error": {
                    "kind": "out_of_memory" if _is_out_of_memory(error) else "crash",
                    "phase": log.phase,
                    "message": _one_line(error),
                    "details": traceback.format_exc()[-8000:],
                }
            }
        )
        os._exit(1)
    os._exit(0)  # the other ranks are done too; exit handlers of process groups would only wait for each other


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let Linux end this process by a signal when its parent ends, even if killed. The parent may have ended
    already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means exhausted memory: CUDA and Python have classes for it; torch's CPU allocator raises a
    RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "allocate memory" in str(error)
        or "out of memory" in str(error).lower()
    )


def _one_line(error: BaseException) -> str:
    """The error's message and that of its cause, in one line."""
    cause = f" ({_one_line(error.__cause__)})" if error.__cause__ is not None else ""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return (text or type(error).__name__)[:500] + cause


if __name__ == "__main__":
    main()
