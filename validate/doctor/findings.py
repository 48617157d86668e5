"""What a check says: what was seen, how bad it is, why it matters, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingStatus = Literal["ok", "note", "warning", "problem", "unknown"]
"""ok: nothing to do. note: worth knowing. warning: works, but slower or more fragile than it need be. problem:
DeepSpeed fails, hangs or is killed because of it. unknown: could not be looked at."""

STATUSES: tuple[FindingStatus, ...] = ("problem", "warning", "note", "unknown", "ok")
"""The gravest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One line of the doctor's report.

    check: the name of what was looked at, the same on every machine (`cuda-toolkit`).
    what:  what was seen, a phrase without a full stop.
    why:   why it matters to DeepSpeed; "" where nothing has to be done.
    fix:   the command or setting that mends it; "" where there is none or nothing to mend.
    """

    check: str
    status: FindingStatus
    what: str
    why: str = ""
    fix: str = ""


def ok(check: str, what: str) -> DoctorFinding:
    return DoctorFinding(check=check, status="ok", what=what)


def note(check: str, what: str, why: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(check=check, status="note", what=what, why=why, fix=fix)


def warning(check: str, what: str, why: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(check=check, status="warning", what=what, why=why, fix=fix)


def problem(check: str, what: str, why: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(check=check, status="problem", what=what, why=why, fix=fix)


def unknown(check: str, what: str, why: str = "", fix: str = "") -> DoctorFinding:
    return DoctorFinding(check=check, status="unknown", what=what, why=why, fix=fix)
