"""Findings of the doctor, and programs run with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

FindingStatus = Literal["ok", "note", "warning", "problem", "unknown"]
"""ok: no action needed. note: worth knowing. warning: works, but slower or less reliably. problem: DeepSpeed fails,
hangs or is killed. unknown: could not be examined."""

STATUSES: tuple[FindingStatus, ...] = ("problem", "warning", "note", "unknown", "ok")
"""All statuses, in descending order of severity."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's report."""

    status: FindingStatus
    what: str
    """The observation, a phrase without a full stop."""
    why: str = ""
    """Why it matters to DeepSpeed; "" if the status is "ok"."""
    fix: str = ""
    """The command or setting that corrects it; "" if there is none. Further lines are commands, one each."""
    area: str = ""
    check: str = ""
    """The name of the check, the same on every machine (`cuda-toolkit`)."""
    effect: str = ""
    """Which trainings a problem stops, and how, as a clause; "" if DeepSpeed fails."""


Findings = Iterator[DoctorFinding]

ok = partial(DoctorFinding, "ok")
note = partial(DoctorFinding, "note")
warning = partial(DoctorFinding, "warning")
problem = partial(DoctorFinding, "problem")
unknown = partial(DoctorFinding, "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """The outcome of a program. code: exit code, None if it did not start or exceeded the time limit (`late`)."""

    code: int | None
    out: str = ""
    err: str = ""
    late: bool = False


Runner = Callable[[Sequence[str], str, float], ProgramRun]
"""Runs a command with a text on stdin and a time limit in seconds."""


def run_program(command: Sequence[str], text: str, limit_s: float) -> ProgramRun:
    """Run a command in the C locale in its own process group, which is killed as a whole at the time limit."""
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
        return ProgramRun(code=None, err=str(error))
    try:
        out, err = process.communicate(text, timeout=limit_s)
        return ProgramRun(code=process.returncode, out=out, err=err)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ProgramRun(code=None, err=f"no answer within {limit_s:g} s", late=True)
