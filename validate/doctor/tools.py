"""Other programs, run with a time limit and never failing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a program left. code: its exit code, None where it could not be started or did not end in time (`late`)."""

    code: int | None
    out: str = ""
    err: str = ""
    late: bool = False


Runner = Callable[[Sequence[str], str, float], Ran]
"""Runs a command with this text on its stdin for at most so many seconds."""


def run_tool(command: Sequence[str], text: str, limit_s: float) -> Ran:
    """Run a command in the C locale, in a process group of its own that is killed whole at the limit."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, ValueError) as error:
        return Ran(code=None, err=str(error))
    try:
        out, err = process.communicate(text, timeout=limit_s)
        return Ran(code=process.returncode, out=out, err=err)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Ran(code=None, err=f"no answer within {limit_s:g} s", late=True)
