"""Checks of a ds_config (`lint`) and of a machine (`doctor`), and DeepSpeed's own memory estimate."""

from __future__ import annotations

import functools
import re

from packaging.version import InvalidVersion, Version


@functools.cache
def parse_version(text: str) -> Version:
    """The PEP 440 version; for other text (`3.14.0+`) its leading numbers, or 0 without any."""
    try:
        return Version(text)
    except InvalidVersion:
        numbers = re.match(r"\d+(\.\d+)*", text)
        return Version(numbers[0] if numbers else "0")
