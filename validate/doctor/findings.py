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
    """One line of the doctor's report."""

    status: FindingStatus
    what: str
    """What was seen, a phrase without a full stop."""
    why: str = ""
    """Why it matters to DeepSpeed; "" where nothing has to be done."""
    fix: str = ""
    """The command or setting that mends it; "" where there is none or nothing to mend."""
    check: str = ""
    """The name of the check that found it, the same on every machine (`cuda-toolkit`)."""


def ok(what: str) -> DoctorFinding:
    return DoctorFinding(status="ok", what=what)


def note(what: str, why: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(status="note", what=what, why=why, fix=fix)


def warning(what: str, why: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(status="warning", what=what, why=why, fix=fix)


def problem(what: str, why: str, fix: str = "") -> DoctorFinding:
    return DoctorFinding(status="problem", what=what, why=why, fix=fix)


def unknown(what: str, why: str = "", fix: str = "") -> DoctorFinding:
    return DoctorFinding(status="unknown", what=what, why=why, fix=fix)
