"""The exception of the user's script in a dry run, on a terminal."""

from __future__ import annotations

import sys

from rich.console import Console

from ...probes.failures.diagnosis import diagnose_text
from ..document.terminal import print_blocks
from ..text.output import ignore_closed_pipe
from .error_place import error_place
from .known_cause import cause_and_fix
from .named_fix import named_fix


def fix_of(traceback: str) -> str:
    """The fix of a known exception, as one clause for a line without a terminal; "" if it is not known."""
    return named_fix(diagnose_text(traceback))


def print_script_error(traceback: str) -> None:
    """Print the place of the exception with its message on stderr, and its cause and fix if they are known."""
    console = Console(stderr=True, highlight=False)
    found = diagnose_text(traceback)
    with ignore_closed_pipe(sys.stderr, OSError):
        print_blocks([*error_place(found), *cause_and_fix(found)], console)
