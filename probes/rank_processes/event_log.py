"""What a rank reports to the process that watches it: one JSON object a line, appended to the rank's own file."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventLog:
    """One rank's file, written line by line, so that it says how far the rank came however it ended.

    An event that cannot be written (a full disk) is lost: the rank goes on.
    """

    def __init__(self, path: Path) -> None:
        self._file = -1
        self.phase = "start"
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def enter(self, phase: str) -> None:
        """The rank begins a phase."""
        self.phase = phase
        self.note({"phase": phase})

    def note(self, values: Mapping[str, Any]) -> None:
        """Append an event, with its `time` in seconds of a clock that nobody sets and a machine's processes share."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            os.write(self._file, (json.dumps({"time": time.monotonic(), **values}) + "\n").encode())


class EventLogReader:
    """Follows a rank's file while it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.phase = "start"
        self.last: dict[str, Any] = {}

    def news(self) -> list[dict[str, Any]]:
        """The events since the last call. A half-written line waits for its end; a line that lacks a part (a full disk)
        is passed over."""
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
            self.last, self.phase = event, event.get("phase", self.phase)
        return events
