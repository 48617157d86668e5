"""Elements of SVG and HTML from plain data; every text and every attribute is escaped."""

from __future__ import annotations

import html
from typing import TypeAlias

Attribute: TypeAlias = str | float | bool | None
"""A value of an attribute; None and False leave it out, True writes it empty."""

_LEAVES = frozenset(("rect", "path", "line", "circle", "polyline", "use", "meta", "link", "br", "hr", "input", "col"))
"""Elements without an end tag where they hold nothing."""

_SPACES = "\n\t\N{NO-BREAK SPACE}"
"""What Python does not call printable, and yet has its place in a text."""


class Markup(str):
    """Text that is markup already, and is not escaped again."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Text for an element or an attribute; what nobody can see in it becomes replacement characters."""
    allowed = str(text)
    if not allowed.isprintable():
        allowed = "".join(
            char if char.isprintable() or char in _SPACES else "\N{REPLACEMENT CHARACTER}" for char in allowed
        )
    return Markup(html.escape(allowed, quote=True))


def number(value: float) -> str:
    """A coordinate with at most two decimals: `12`, `3.5`, `0.25`."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name: str, /, *children: str | None, **attributes: Attribute) -> Markup:
    """One element; `class_` is `class`, and `stroke_width` is `stroke-width`. Children that are no `Markup` are
    text."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    inner = joined(*children)
    if not inner and name in _LEAVES:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inner}</{name}>")


def joined(*children: str | None) -> Markup:
    """Children one after the other; None is nothing."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escaped(child) for child in children if child is not None)
    )


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    name = {"viewBox": "viewBox", "preserveAspectRatio": "preserveAspectRatio"}.get(key, name)
    if value is True:
        return f' {name}=""'
    return f' {name}="{number(value) if isinstance(value, int | float) else escaped(value)}"'
