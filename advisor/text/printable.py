"""Text from elsewhere, as a terminal may show it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text from elsewhere without characters that would steer the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
