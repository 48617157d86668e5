"""Versions of packages, Python and CUDA as PEP 440 orders them."""

from __future__ import annotations

import functools
import re

from packaging.version import InvalidVersion, Version


@functools.cache
def parse_version(text: str) -> Version:
    """The version; of text that PEP 440 does not know (`3.14.0+`), the numbers that it begins with, or 0."""
    try:
        return Version(text)
    except InvalidVersion:
        numbers = re.match(r"\d+(\.\d+)*", text)
        return Version(numbers[0] if numbers else "0")
