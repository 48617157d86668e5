"""The event log of a rank: one file per rank with one JSON object per line. It shows how far the rank came, however it
ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventLog:
    """Appends the events of one rank. An event that cannot be written (a full disk) is lost, and the rank continues."""

    def __init__(self, path: Path) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            # One unbuffered write per line: the reader sees whole lines, and a killed rank loses none.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def enter(self, phase: str) -> None:
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
        return events


def note_exit(folder: Path, pid: int, code: int) -> int:
    """Append the exit status of a process, negative for a signal, to the log of its rank, if it is one. Returns the
    status for its launcher.

    Threads of gloo sometimes abort the finalization of Python (SIGABRT, "terminate called without an active
    exception"). The launcher would then end the other ranks and report a failure of a training that made all its steps,
    so a rank whose script has ended returns 0.
    """
    for path in folder.glob("rank*.jsonl"):
        events = EventLogReader(path).read_new()
        if not any(event.get("pid") == pid for event in events):
            continue
        if code == -signal.SIGABRT and "end" in events[-1]:
            code = 0
        EventLog(path).note({"exit": code})
    return code


def description(error: BaseException) -> dict[str, Any]:
    """The event of an exception that ended a rank."""
    return {
        "type": type(error).__name__,
        "message": _one_line(str(error))[:2000],
        "errno": error.errno if isinstance(error, OSError) else None,
        "details": "".join(traceback.format_exception(error))[-8000:],
    }


def _one_line(message: str) -> str:
    """A message without line breaks. Of an error that a process passed on with its own traceback (torch 2.13
    `_utils.py` ExceptionWrapper) the last line, which has the original type and message, in place of the traceback."""
    said, traceback, original = message.partition("Original Traceback (most recent call last):")
    if traceback and original.strip():
        said = f"{said.strip().rstrip('.')}: {original.strip().splitlines()[-1]}"
    return " ".join(said.split())
