"""The end of what a process printed into a log."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

_TAIL_BYTES = 20_000

_LONGEST = 500
"""Most characters of a line."""

_WARNING = re.compile(r":\d+: \w*Warning: ")
"""The line of a Python warning, which the line of code that raised it follows."""


def tail(path: Path) -> str:
    """The end of a log, "" if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """The last line of a log that is not of a warning."""
    lines = [line.strip() for line in tail(path).splitlines() if line.strip()]
    kept = [line for before, line in pairwise(["", *lines]) if not (_WARNING.search(before) or _WARNING.search(line))]
    return kept[-1][:_LONGEST] if kept else ""
