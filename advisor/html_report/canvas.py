"""Elements of SVG and HTML, and the parts of every chart: colours, text, lines, scales, axes, legend, frame.

Every text and attribute is escaped, and the drawing is a function of the data alone. Colours are plain attributes in
the markup, so every SVG program draws them; the style sheet replaces them on a dark screen.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias


class Ink(NamedTuple):
    """Light and dark value of a named colour."""

    light: str
    dark: str


INKS: Final[Mapping[str, Ink]] = {
    "weights": Ink("#3f74b5", "#6ea3e0"),
    "gradients": Ink("#5a9a52", "#7fbf77"),
    "optimizer": Ink("#d98c3a", "#e0a45e"),
    "activations": Ink("#3f9c9c", "#63bcbc"),
    "loss": Ink("#8a6fb0", "#ab93d0"),
    "generation": Ink("#b54fa8", "#da86d0"),
    "buffers": Ink("#c4607f", "#dd87a2"),
    "runtime": Ink("#8b929c", "#858d99"),
    "compute": Ink("#3f74b5", "#6ea3e0"),
    "memory": Ink("#5a9a52", "#7fbf77"),
    "links": Ink("#8a6fb0", "#ab93d0"),
    "pcie": Ink("#3f9c9c", "#63bcbc"),
    "host": Ink("#d98c3a", "#e0a45e"),
    "nvme": Ink("#c4607f", "#dd87a2"),
    "launch": Ink("#8b929c", "#858d99"),
    "other": Ink("#b3b8bf", "#6a717b"),
    "text": Ink("#1f2328", "#e6e9ed"),
    "soft": Ink("#5f6873", "#9aa4b0"),
    "grid": Ink("#e3e6ea", "#31363e"),
    "band": Ink("#f0f4fa", "#1f2733"),
    "paper": Ink("#ffffff", "#15181d"),
    "good": Ink("#1f7a3d", "#5cc27e"),
    "limit": Ink("#b3261e", "#ff8a80"),
}
"""Colours by name. Each family of components has the hue of its colour in a terminal."""


def dark_rules() -> str:
    """Return CSS rules that replace each light colour by its dark one."""
    return "\n".join(
        f".f-{name}{{fill:{ink.dark}}} .s-{name}{{stroke:{ink.dark}}} .b-{name}{{background:{ink.dark}}}"
        for name, ink in INKS.items()
    )


def dark_style(condition: str) -> str:
    """Return the dark style sheet under the condition of a media query."""
    return f"@media {condition} {{\n{dark_rules()}\n}}"


WIDE, NARROW = 720, 340
"""Widths of a chart in pixels: for screens and paper, and for phones."""

TEXT, SMALL = 13, 11.5
"""Font sizes in pixels."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

Attribute: TypeAlias = str | float | bool | None
"""Value of an attribute. None and False omit the attribute, True writes it empty."""

Anchor = Literal["start", "middle", "end"]

_LEAVES = frozenset(
    ("rect", "path", "line", "circle", "polyline", "use", "meta", "link", "br", "wbr", "hr", "input", "col")
)
"""Elements that are self-closing if they are empty."""

_SPACES = "\n\t\N{NO-BREAK SPACE}"
"""White space that Python counts as unprintable and that is kept in texts."""


class Markup(str):
    """Text that is already markup and is not escaped again."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Return text escaped for an element or an attribute; unprintable characters become replacement characters."""
    allowed = str(text)
    if not allowed.isprintable():
        allowed = "".join(
            char if char.isprintable() or char in _SPACES else "\N{REPLACEMENT CHARACTER}" for char in allowed
        )
    return Markup(html.escape(allowed, quote=True))


def number(value: float) -> str:
    """Return a coordinate with at most two decimals: `12`, `3.5`, `0.25`."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name: str, /, *children: str | None, **attributes: Attribute) -> Markup:
    """Return one element. `class_` becomes `class`, and `stroke_width` becomes `stroke-width`. Children that are not
    `Markup` are escaped."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    inner = joined(*children)
    if not inner and name in _LEAVES:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inner}</{name}>")


def joined(*children: str | None) -> Markup:
    """Return the concatenated children; None is skipped."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escaped(child) for child in children if child is not None)
    )


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key if key in ("viewBox", "preserveAspectRatio") else key.rstrip("_").replace("_", "-")
    if value is True:
        return f' {name}=""'
    return f' {name}="{number(value) if isinstance(value, int | float) else escaped(value)}"'


def is_narrow(width: int) -> bool:
    return width < 480


_WIDTHS = {**dict.fromkeys("iljtf.,:;|' -", 0.36), **dict.fromkeys("mwMW", 0.95)}
_CHINESE = "\u3000"
"""First of the characters that are as wide as high."""


@lru_cache(maxsize=1024)
def text_width(text: str, size: float = TEXT) -> float:
    """Return the width of a text in pixels: an upper estimate, since the browser's sans-serif font is unknown."""
    widths = (_WIDTHS.get(char, 1.0 if char >= _CHINESE else 0.7 if char.isupper() else 0.62) for char in text)
    return size * sum(widths)


def fill(ink: str) -> dict[str, str]:
    return {"class_": f"f-{ink}", "fill": INKS[ink].light}


def stroke(ink: str) -> dict[str, str]:
    return {"class_": f"s-{ink}", "stroke": INKS[ink].light}


def outline(ink: str) -> dict[str, Attribute]:
    """Return the attributes of a form that is not filled."""
    colours = {**fill("paper"), **stroke(ink)}
    return {**colours, "class_": f"f-paper s-{ink}", "stroke_width": 1.8}


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
    """Return text with its baseline at y."""
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


def small(x: float, y: float, text: str, *, anchor: Anchor = "start", ink: str = "soft") -> Markup:
    """Return a label of an axis or legend."""
    return label(x, y, text, anchor=anchor, ink=ink, size=SMALL)


def line(x1: float, y1: float, x2: float, y2: float, ink: str = "grid") -> Markup:
    """Return a grid line, or a dashed line for a limit."""
    width, dashes = (1.5, "5 4") if ink == "limit" else (None, None)
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return element("line", **ends, stroke_width=width, stroke_dasharray=dashes, **stroke(ink))


class Scale(NamedTuple):
    """Linear map from values to pixels: `first` to `start`, and `last` to `end`."""

    first: float
    last: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.first) / (self.last - self.first)


def round_steps(highest: float, count: int, unit: float = 1) -> list[float]:
    """Return about `count` values from 0 to at most `highest`: multiples of 1, 2, 2.5 or 5 times a power of ten
    units, at least three if `count` is."""
    highest /= unit
    if highest <= 0 or not math.isfinite(highest):
        return [0.0]
    rough = highest / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10)]
    step = next(step for step in steps if step >= rough * 0.999)
    step = min(step, max((each for each in steps if 2 * each <= highest), default=step))
    return [index * step * unit for index in range(int(highest / step + 1e-9) + 1)]


Ticks = Sequence[tuple[float, str]]
"""Axis values with their labels."""


def ticks(values: Sequence[float], write: Callable[[float], str], unit: str = "") -> Ticks:
    """Return values with their labels; the last label includes the unit."""
    *others, last = ((value, write(value)) for value in values)
    return [*others, (last[0], f"{last[1]} {unit}".rstrip())]


def horizontal_axis(values: Ticks, x_of: Scale, top: float, bottom: float) -> Markup:
    """Return grid lines with their values below."""
    return joined(
        *(line(x_of(value), top, x_of(value), bottom) for value, _ in values),
        *(
            small(x_of(value), bottom + 15, text, anchor="start" if x_of(value) < 4 else "middle")
            for value, text in values
        ),
    )


def vertical_limit(x: float, words: str, y: float, stretches: Iterable[tuple[float, float]], width: int) -> Markup:
    """Return dashed lines over stretches of the height, with a centred label above each, inside the chart."""
    half = text_width(words, SMALL) / 2
    middle = min(max(x, half + 2), width - half - 2)
    return joined(
        *(line(x, begins, x, ends, "limit") for begins, ends in stretches),
        small(middle, y, words, anchor="middle", ink="limit"),
    )


def legend(entries: Iterable[tuple[str, str]], width: int, top: float = 0.0) -> tuple[Markup | None, float]:
    """Return (titles on one or more lines from `top`, their height). entries: (the ink of a square in front of the
    title, or "" for none; the title)."""
    marks, x, y = list[Markup](), 0.0, 0.0
    for ink, words in entries:
        taken = 16 * bool(ink) + text_width(words, SMALL) + 14
        if x and x + taken > width:
            x, y = 0.0, y + 18
        if ink:
            marks.append(element("rect", x=x, y=top + y, width=10, height=10, rx=2, **fill(ink)))
        marks.append(small(x + 15 * bool(ink), top + y + 9, words))
        x += taken
    return (joined(*marks), y + 22) if marks else (None, 0.0)


def frame(title: str, width: int, height: float, *parts: Markup | None) -> Markup:
    """Return the chart as an SVG element with a title for screen readers."""
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


def picture_size(picture: Markup) -> tuple[float, float]:
    """Return width and height of a chart."""
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', picture)
    assert size is not None
    return float(size[1]), float(size[2])


def _folded_heading(heading: str, width: float) -> list[str]:
    """Return the heading in lines, broken between its parts."""
    lines = [""]
    for part in heading.split(" · "):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if lines[-1] and text_width(longer, 15) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return lines


def standing_alone(picture: Markup, heading: str) -> str:
    """Return a chart as a file of its own: with a background, a heading, and a style sheet for dark screens."""
    long, tall = picture_size(picture)
    margin, lines = 16, _folded_heading(heading, long)
    above = 14 + 20 * len(lines)
    width, height = long + 2 * margin, tall + above + 2 * margin
    whole = element(
        "svg",
        element("style", Markup(dark_style("(prefers-color-scheme: dark)"))),
        element("rect", width=width, height=height, **fill("paper")),
        *(label(margin, margin + 14 + 20 * index, line, bold=True, size=15) for index, line in enumerate(lines)),
        element("g", picture, transform=f"translate({margin} {margin + above})"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        font_family=FONT,
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole}\n'
