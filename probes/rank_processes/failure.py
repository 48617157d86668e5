"""Why ranks did not come to their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RankFailureKind = Literal["out_of_memory", "crash", "hang", "stopped", "killed", "timeout", "disk_full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The failure of the rank that failed first."""

    kind: RankFailureKind
    rank: int
    phase: str
    """What the rank was doing."""
    message: str
    """The true error, in one line."""
    details: str = ""
    """Its traceback, or the end of what the rank printed."""
