"""Secrets in configurations, which no answer shows: it may be in a log that others read."""

from __future__ import annotations

import re

_NAME = "(?:api_?key|password|secret|token)"
_SECRET = re.compile(
    rf"""(?P<key>{_NAME}["']?\s*[:=]\s*)"""
    r"""(?:"(?P<double>(?:[^"\\\n]|\\.)*)|'(?P<single>(?:[^'\\\n]|\\.)*)|[\[{](?P<block>[^\]}\n]*)"""
    r"""|(?P<bare>[^\s"'{}\[\],#]{8,}))""",
    re.IGNORECASE,
)
"""A key whose name ends like that of a secret, and the characters of its value. A short value without quotes is a
number or a constant."""


def is_secret(name: str) -> bool:
    """Whether a key of this name holds a secret, such as api_key."""
    return re.search(f"{_NAME}$", name, re.IGNORECASE) is not None


def hide_secrets(text: str) -> str:
    """The text with an asterisk for each character of the value of a key that holds a secret. Lists and objects keep
    their form."""

    def hidden(found: re.Match[str]) -> str:
        kind = next(name for name in ("double", "single", "block", "bare") if found[name] is not None)
        start, end = found.span(kind)
        value = found.string[start:end]
        shown = re.sub(r"""[^\s"',:{\[]""" if kind == "block" else r"[\s\S]", "*", value)
        return found.string[found.start() : start] + (value if value in ("", "auto") else shown)

    return _SECRET.sub(hidden, text)
