"""Sentences for users that can be translated after they are made; and how sizes are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


class Phrase(str):
    """An English text with its template and fields. A field may be a `Phrase`; figures, names, options and keys are
    not."""

    __slots__ = ("fields", "template")

    template: str
    """The text with `{name}` for each field: the key of a translation."""
    fields: dict[str, object]


def phrase(template: str, /, **fields: object) -> Phrase:
    """A text with its fields filled in. The template is a literal, so that all can be found in the source."""
    made = Phrase(template.format(**fields) if fields else template)
    made.template, made.fields = template, fields
    return made


filled = phrase
"""`phrase` with a template that is a variable. Templates of `phrase` are literals, which a test looks up in the
catalogue."""


def named(name: str) -> Phrase:
    """A name or a sentence without fields, which a catalogue may translate; a phrase as it is."""
    if isinstance(name, Phrase):
        return name
    made = Phrase(name)
    made.template, made.fields = name, {}
    return made


def listed(phrases: Sequence[str], separator: Literal[", ", "; "] = ", ") -> Phrase:
    """Phrases with commas or semicolons between."""
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
    """GiB, rounded up: what must be there for the bytes."""
    return -(-size_bytes // GIB)


def gib(size_bytes: int) -> str:
    """GiB with three significant digits or one decimal: `0.49`, `4.1`, `238.0`, `1,204`."""
    value = size_bytes / GIB
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.5 else f"{value:,.0f}"
