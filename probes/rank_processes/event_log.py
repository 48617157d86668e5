"""What a rank tells the process that watches it: one JSON object a line, appended to the rank's own file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class EventLog:
    """One rank's file, written line by line, so that it says how far the rank came however it ended."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a", encoding="utf-8", buffering=1)
        self.phase = "start"

    def enter(self, phase: str) -> None:
        """The rank begins a phase."""
        self.phase = phase
        self.note({"phase": phase})

    def note(self, values: dict[str, Any]) -> None:
        self._stream.write(json.dumps({"time": time.time(), **values}) + "\n")


class EventLogReader:
    """Follows a rank's file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.phase = "start"
        self.last: dict[str, Any] = {}

    def news(self) -> bool:
        """Read what was added; answers whether there was anything."""
        if not self._path.exists():
            return False
        with self._path.open(encoding="utf-8") as stream:
            stream.seek(self._offset)
            text = stream.read()
        whole, _, _ = text.rpartition("\n")
        if not whole:
            return False
        self._offset += len(whole.encode()) + 1
        for line in whole.splitlines():
            self.last = json.loads(line)
            self.phase = self.last.get("phase", self.phase)
        return True
