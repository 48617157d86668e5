"""Values of a configuration as DeepSpeed's pydantic classes read them: a text may stand for a truth value or a number,
and 1 for true.

pydantic is not imported, because browsers lack it. The keys that no class reads (the batch sizes) are not converted.

Source: pydantic-core 2 (input/shared.rs).
"""

from __future__ import annotations

import re
from typing import Any

_YES, _NO = ("1", "on", "t", "true", "y", "yes"), ("0", "off", "f", "false", "n", "no")
TRUTHS = dict.fromkeys(_YES, True) | dict.fromkeys(_NO, False)
"""Words in lower case that pydantic accepts as a truth value."""

_INTEGER = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*", re.ASCII)


def as_truth(value: Any) -> bool:
    """The truth value that a value is read as. Raises ValueError for a value that pydantic rejects."""
    if isinstance(value, str) and value.lower() in TRUTHS:
        return TRUTHS[value.lower()]
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise ValueError


def as_integer(value: Any) -> int:
    """The whole number that a value is read as. Raises ValueError for a value that pydantic rejects."""
    if isinstance(value, str) and (match := _INTEGER.fullmatch(value)):
        return int(match[1])
    if isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < 2**63 and not value % 1):
        return int(value)
    raise ValueError


def as_number(value: Any) -> float:
    """The number that a value is read as. Raises ValueError for a value that pydantic rejects."""
    if isinstance(value, int | float | str) and str(value).isascii():
        try:
            return float(value)
        except OverflowError:
            raise ValueError from None
    raise ValueError


def is_true(value: Any) -> bool:
    """Whether a value is read as true."""
    try:
        return as_truth(value)
    except ValueError:
        return False
