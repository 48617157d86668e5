"""A change to a file of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Value = str | int | float | bool | None | Mapping[str, Any]
"""What is written under a key. None takes the key out."""

KeyPath = tuple[str, ...]
"""The names that lead to a key, the outermost first."""
