"""Sentences for people that can still be said in another language once they are made."""

from __future__ import annotations

from collections.abc import Sequence


class Phrase(str):
    """An English text that remembers what it was made of; to everybody who does not ask it is that text.

    A field may be a `Phrase` in turn. Figures, names, options and keys are fields that are none.
    """

    __slots__ = ("fields", "template")

    template: str
    """The text with `{name}` for each field: what a catalogue translates."""
    fields: dict[str, object]


def phrase(template: str, /, **fields: object) -> Phrase:
    """A text with its fields filled in. The template is a literal, so that every one can be found in the source."""
    made = Phrase(template.format(**fields) if fields else template)
    made.template, made.fields = template, fields
    return made


def named(name: str) -> Phrase:
    """A name of the program's own that a catalogue may translate: of a part of memory or of a step."""
    made = Phrase(name)
    made.template, made.fields = name, {}
    return made


def listed(phrases: Sequence[Phrase]) -> Phrase:
    """Phrases with commas between."""
    made = phrases[0]
    for following in phrases[1:]:
        made = phrase("{first}, {following}", first=made, following=following)
    return made


GIB = 2**30


def gib(size_bytes: int) -> str:
    """GiB with three significant digits or one decimal: `0.49`, `4.1`, `238.0`, `1,204`."""
    value = size_bytes / GIB
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.5 else f"{value:,.0f}"
