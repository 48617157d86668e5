"""Lines of progress, seldom enough to be read."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 5.0
"""Seconds between two lines: what is done at once needs none, and nobody should wait longer in silence."""


def seldom(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, but for lines that come within five seconds of this call or of the last one that was said."""
    last = time.monotonic()

    def say_seldom(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            last = time.monotonic()
            say(line)

    return say_seldom
