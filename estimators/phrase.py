"""Translatable sentences for users, and the formatting of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


class Phrase(str):
    """An English text with its template and fields, so that it can be translated later. A field may itself be a
    `Phrase`; figures, names, options and keys are plain values."""

    __slots__ = ("fields", "template")

    template: str
    """The text with `{name}` for each field. It is the key of the translation."""
    fields: dict[str, object]


def phrase(template: str, /, **fields: object) -> Phrase:
    """Fill in the fields of a template. The template must be a literal, so that all can be found in the source."""
    made = Phrase(template.format(**fields) if fields else template)
    made.template, made.fields = template, fields
    return made


filled = phrase
"""`phrase` for a template in a variable. Templates of `phrase` are literals, because a test looks them up in the
catalogue."""


def named(name: str) -> Phrase:
    """Return a name or a sentence without fields as a translatable `Phrase`; a `Phrase` is returned unchanged."""
    if isinstance(name, Phrase):
        return name
    made = Phrase(name)
    made.template, made.fields = name, {}
    return made


def listed(phrases: Sequence[str], separator: Literal[", ", "; "] = ", ") -> Phrase:
    """Join phrases with commas or semicolons."""
    first, *others = phrases
    made = named(first)
    for following in others:
        if separator == ", ":
            made = phrase("{first}, {following}", first=made, following=following)
        else:
            made = phrase("{first}; {following}", first=made, following=following)
    return made


GIB = 2**30


def whole_gib(size_bytes: int) -> int:
    """Return the size in GiB, rounded up."""
    return -(-size_bytes // GIB)


def gib(size_bytes: int) -> str:
    """Format a size in GiB with three significant digits or one decimal: `0.49`, `4.1`, `238.0`, `1,204`."""
    value = size_bytes / GIB
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.5 else f"{value:,.0f}"
