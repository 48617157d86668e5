"""Charts of stacked bars with a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from . import canvas as svg
from .canvas import GIB, WIDE, Markup, Scale, Unit

_SHADES = (1.0, 0.78, 0.6)
"""Opacities of adjacent parts of one colour."""

_LEAST_WIDTH = 0.4
"""Least width of a drawn part in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a bar. ink: a name of the palette. hint: text shown on hover."""

    name: str
    value: float
    ink: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of the chart. note: figure at the bar's end. words: description for screen readers."""

    label: str
    parts: tuple[Part, ...]
    note: str
    words: str = ""
    chosen: bool = False
    faded: bool = False

    @cached_property
    def value(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class StackedBars:
    """Bars in their order, on a common scale from 0."""

    title: str
    bars: tuple[Bar, ...]
    unit: Unit = GIB
    limit: float | None = None
    limit_words: str = ""
    ends_at: float | None = None
    """End of the scale, at which longer bars are cut; None selects the longest bar."""
    inks: tuple[str, ...] = ()
    """Families in the order of the legend and of each bar's parts."""


def draw_stacked_bars(chart: StackedBars, width: int = WIDE) -> Markup:
    """Return the chart as SVG. In a narrow chart, the label of a row stands above its bar."""
    narrow, longest = svg.is_narrow(width), max((bar.value for bar in chart.bars), default=0.0)
    scale = (max(longest, chart.limit or 0.0) if chart.ends_at is None else chart.ends_at) or 1.0
    limit = chart.limit if chart.limit is not None and chart.limit <= scale else None
    left = 0.0 if narrow else min(190.0, 26 + max((svg.text_width(bar.label) for bar in chart.bars), default=0))
    right = 10 if narrow else 12 + max((svg.text_width(bar.note) for bar in chart.bars), default=0)
    row = 40 if narrow else 28
    inks = [part.ink for bar in chart.bars for part in bar.parts if part.value > 0]
    keys, used = svg.legend([ink for ink in dict.fromkeys((*chart.inks, *inks)) if ink in inks], width)
    top = used + (4 if limit is None else 20)
    tops = [top + row * index for index in range(len(chart.bars))]
    bottom = top + row * len(chart.bars)
    x_of = Scale(0, scale, left, width - right)
    values = svg.ticks(svg.round_steps(scale, 4 if narrow else 7, chart.unit.size), chart.unit.write, chart.unit.title)
    # In a narrow chart, figures stand above the bars: the line does not cross them.
    stretches = [(y + 18, y + 36) for y in tops] if narrow else [(top - 4, bottom)]
    return svg.frame(
        chart.title,
        width,
        bottom + 24,
        keys,
        svg.horizontal_axis(values, x_of, top, bottom),
        *(_row(bar, chart.inks, limit, x_of, y, width) for bar, y in zip(chart.bars, tops, strict=True)),
        None if limit is None else svg.vertical_limit(x_of(limit), chart.limit_words, top - 8, stretches, width),
    )


def _row(bar: Bar, inks: Sequence[str], limit: float | None, x_of: Scale, y: float, width: int) -> Markup:
    """Return one bar with its label and figure; it can have the keyboard focus."""
    narrow, scale = svg.is_narrow(width), x_of.last
    thick, above, height = (14, 20, 38) if narrow else (16, 6, 28)
    end = x_of(min(bar.value, scale))
    ink = ("text" if bar.chosen else "soft") if bar.faded else "good" if bar.chosen else "text"
    opacity = 0.42 if bar.faded and not bar.chosen else None
    marks = (
        [svg.element("rect", x=0, y=y + 1, width=width, height=height - 2, **svg.fill("band"))] if bar.chosen else []
    )
    marks.append(svg.element("g", *_parts(bar, inks, x_of, y + above, thick), opacity=opacity))
    if bar.value > scale:  # two slanted lines mark a bar that is cut
        tear = f"M{end - 9:.1f} {y + above + thick + 2:.1f}l5 {-thick - 4}h4l-5 {thick + 4}z"
        marks.append(svg.element("path", d=tear, **svg.fill("paper")))
    if bar.chosen:
        marks.append(svg.element("path", d=f"M4 {y + (4.5 if narrow else 9):g}l8 5-8 5z", **svg.fill(ink)))
    if narrow:
        marks.append(svg.label(16 if bar.chosen else 2, y + 14, bar.label, ink=ink, bold=bar.chosen, size=12.5))
        marks.append(svg.label(width - 2, y + 14, bar.note, anchor="end", ink=ink, bold=bar.chosen, size=12.5))
    else:
        at = end + 8
        if limit is not None and at - 2 < x_of(limit) < at + svg.text_width(bar.note) + 4:
            at = x_of(limit) + 8  # keeps the limit's line from crossing the figure
        marks.append(svg.label(16, y + 19, bar.label, ink=ink, bold=bar.chosen))
        marks.append(svg.label(at, y + 19, bar.note, ink=ink, bold=bar.chosen))
    return svg.element(
        "g", *marks, tabindex="0", role="img", aria_label=bar.words or f"{bar.label}: {bar.note}", class_="row"
    )


def _parts(bar: Bar, inks: Sequence[str], x_of: Scale, y: float, thick: float) -> list[Markup]:
    order = {ink: index for index, ink in enumerate(inks)}
    drawn, before, seen = [], 0.0, Counter[str]()
    for part in sorted(bar.parts, key=lambda part: (order.get(part.ink, len(order)), -part.value)):
        begins, ends = (x_of(min(value, x_of.last)) for value in (before, before + part.value))
        before += part.value
        if ends - begins < _LEAST_WIDTH:
            continue
        shade = _SHADES[seen[part.ink] % len(_SHADES)]
        seen[part.ink] += 1
        drawn.append(
            svg.element(
                "rect",
                svg.element("title", part.hint) if part.hint else None,
                x=begins,
                y=y,
                width=ends - begins - (0.8 if ends - begins > 3 else 0),
                height=thick,
                fill_opacity=None if shade == 1 else shade,
                **svg.fill(part.ink),
            )
        )
    return drawn
