"""What a measurement answers, in JSON's types."""

from __future__ import annotations

from typing import Any, TypedDict


class Outcome(TypedDict, total=False):
    """Parts of a record; `outcome` is "measured" by default."""

    outcome: str
    value: dict[str, Any]
    reason: str
