"""Checks of a ds_config (`lint`) and of a machine (`doctor`), and DeepSpeed's own memory estimate."""

from __future__ import annotations

import functools
import re

from packaging.version import InvalidVersion, Version


@functools.cache
def parse_version(text: str) -> Version:
    """The version as PEP 440 orders it; of other text (`3.14.0+`) the leading numbers, or 0."""
    try:
        return Version(text)
    except InvalidVersion:
        numbers = re.match(r"\d+(\.\d+)*", text)
        return Version(numbers[0] if numbers else "0")
