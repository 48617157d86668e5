"""The command line of this process, which records keep so that a run can be repeated."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_words: list[str] = []


def set_command_line(arguments: Sequence[str]) -> None:
    """Set the arguments of `ds-advise`."""
    _words[:] = ["ds-advise", *arguments]


def command_line() -> str:
    """The command line as a shell reads it; "" in a process of Python."""
    return shlex.join(_words)
