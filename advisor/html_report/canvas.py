"""Elements of SVG and HTML from plain data; every text and every attribute is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from .palette import INKS, style

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


WIDE, NARROW = 720, 340
"""Widths of a picture in pixels: on a screen or paper, and on a telephone."""

TEXT, SMALL = 13, 11.5
"""Sizes of letters."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

Anchor = Literal["start", "middle", "end"]


def is_narrow(width: int) -> bool:
    return width < 480


_WIDTHS = {**dict.fromkeys("iljtf.,:;|' -", 0.36), **dict.fromkeys("mwMW", 0.95)}


@lru_cache(maxsize=1024)
def text_width(text: str, size: float = TEXT) -> float:
    """Pixels of a text, roughly, and rather too many: a browser's sans-serif font is not known."""
    return size * sum(_WIDTHS.get(char, 0.7 if char.isupper() else 0.62) for char in text)


def label(
    x: float,
    y: float,
    text: str,
    *,
    anchor: Anchor = "start",
    ink: str = "text",
    size: float = TEXT,
    bold: bool = False,
) -> Markup:
    """Text whose baseline is at y."""
    return element(
        "text",
        text,
        x=x,
        y=y,
        text_anchor=None if anchor == "start" else anchor,
        font_size=size,
        font_weight="600" if bold else None,
        **fill(ink),
    )


def box(x: float, y: float, width: float, height: float, ink: str, *, opacity: float = 1, hint: str = "") -> Markup:
    """A filled rectangle; `hint` is shown where a pointer rests on it."""
    title = element("title", hint) if hint else None
    return element(
        "rect",
        title,
        x=x,
        y=y,
        width=max(0, width),
        height=height,
        fill_opacity=None if opacity == 1 else opacity,
        **fill(ink),
    )


def line(x1: float, y1: float, x2: float, y2: float, ink: str, *, dashed: bool = False, width: float = 1) -> Markup:
    return element(
        "line",
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        stroke_width=None if width == 1 else width,
        stroke_dasharray="5 4" if dashed else None,
        **stroke(ink),
    )


def fill(ink: str) -> dict[str, str]:
    return {"class_": f"f-{ink}", "fill": INKS[ink].light}


def stroke(ink: str) -> dict[str, str]:
    return {"class_": f"s-{ink}", "stroke": INKS[ink].light}


def round_steps(highest: float, count: int, unit: float = 1) -> list[float]:
    """About `count` values from 0 to at most `highest`, round when counted in units: steps of 1, 2, 2.5 or 5 times a
    power of ten of them."""
    highest /= unit
    if highest <= 0 or not math.isfinite(highest):
        return [0.0]
    rough = highest / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [index * step * unit for index in range(int(highest / step + 1e-9) + 1)]


def horizontal_axis(
    values: Sequence[float],
    x_of: Callable[[float], float],
    top: float,
    bottom: float,
    unit: str,
    write: Callable[[float], str],
) -> Markup:
    """Grid lines with their values under them; the last value carries the unit."""
    marks = []
    for index, value in enumerate(values):
        words = f"{write(value)} {unit}" if index == len(values) - 1 else write(value)
        x = x_of(value)
        marks.append(line(x, top, x, bottom, "grid"))
        marks.append(label(x, bottom + 15, words, anchor="start" if x < 4 else "middle", ink="soft", size=SMALL))
    return joined(*marks)


def legend(inks: Sequence[str], width: int, y: float) -> tuple[Markup, float]:
    """A line or more of coloured squares with their words, and the height that they take."""
    marks, x, top = [], 0.0, y
    for ink in inks:
        words = INKS[ink].title
        taken = 16 + text_width(words, SMALL) + 14
        if x and x + taken > width:
            x, y = 0.0, y + 18
        marks.append(element("rect", x=x, y=y, width=10, height=10, rx=2, **fill(ink)))
        marks.append(label(x + 15, y + 9, words, ink="soft", size=SMALL))
        x += taken
    return joined(*marks), y + 22 - top


def frame(title: str, width: int, height: float, *parts: Markup | None) -> Markup:
    """The picture as an SVG element, named for those who do not see it."""
    return element(
        "svg",
        element("title", title),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {number(height)}",
        width=width,
        height=number(height),
        role="graphics-document",
        aria_label=title,
        class_="picture",
        font_family=FONT,
    )


def standing_alone(picture: Markup, heading: str) -> str:
    """A picture as a file of its own: on paper, with its style sheet and a heading."""
    start, rest = picture.split(">", 1)
    body, _ = rest.rsplit("</svg>", 1)
    size = start.split('viewBox="')[1].split('"')[0].split()
    width, height = float(size[2]), float(size[3])
    margin, above = 16, 34
    whole = element(
        "svg",
        element("style", Markup(style())),
        box(0, 0, width + 2 * margin, height + above + 2 * margin, "paper"),
        label(margin, margin + 14, heading, bold=True, size=15),
        element("g", Markup(body), transform=f"translate({margin} {margin + above})"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width + 2 * margin)} {number(height + above + 2 * margin)}",
        width=number(width + 2 * margin),
        height=number(height + above + 2 * margin),
        font_family=FONT,
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole}\n'
