"""Secrets in texts of configuration files, which no answer shows: it may be in a log that others read."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"""(?P<key>(?:api_?key|password|secret|token)["']?\s*[:=]\s*)"""
    r"""(?:"(?P<double>(?:[^"\\\n]|\\.)*)|'(?P<single>(?:[^'\\\n]|\\.)*)|(?P<bare>[^\s"'{}\[\],#]{8,}))""",
    re.IGNORECASE,
)
"""A key whose name ends like that of a secret, and the characters of its value. A short value without quotes is a
number or a constant."""


def hide_secrets(text: str) -> str:
    """The text with an asterisk for each character of the value of a key that holds a secret, such as api_key."""

    def hidden(found: re.Match[str]) -> str:
        start, end = next(found.span(name) for name in ("double", "single", "bare") if found[name] is not None)
        value = found.string[start:end]
        shown = value if value in ("", "auto") else "*" * len(value)
        return found.string[found.start() : start] + shown

    return _SECRET.sub(hidden, text)
