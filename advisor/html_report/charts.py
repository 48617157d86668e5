"""Charts as SVG: stacked bars with a limit, lines over a common axis, and points (`points`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..document.charts import Bar, Drawing, Limit, Lines, Panel, Points, StackedBars
from . import canvas as svg
from .areas import NamesBelow, areas
from .canvas import SMALL, WIDE, Anchor, Markup, Scale
from .points import draw_points

_SHADES = (1.0, 0.78, 0.6)
"""Opacities of adjacent parts of one colour."""

_LEAST_WIDTH = 0.4
"""Least width of a drawn part in pixels."""

_MOST_POINTS = 1000
"""Largest number of points of a line; longer lines are thinned evenly."""

_BETWEEN_LABELS = 6.0
"""Least space between two labels of an axis in pixels."""

_MOST_NAME_ROWS, _NAME_ROW = 2, 14.0
"""Most rows of names of stretches, and the height of a row in pixels."""

_NARROW_TEXT, _NOTE_BELOW = 12.5, 15.0
"""Font size of a narrow chart's labels in pixels, and the height of a line of them."""

_GAP = 34.0
"""Height of the space between two panels."""


def draw(chart: Drawing | Sequence[Drawing], width: int = WIDE) -> Markup:
    """Return a chart as SVG; several charts stand one below the other."""
    if isinstance(chart, Sequence):
        parts, top = list[Markup](), 0.0
        for each in (draw(one, width) for one in chart):
            parts.append(svg.element("g", each, transform=f"translate(0 {top:g})"))
            top += svg.picture_size(each)[1]
        return svg.frame("; ".join(one.title for one in chart), width, top, *parts)
    if isinstance(chart, StackedBars):
        return _draw_bars(chart, width)
    return draw_points(chart, width) if isinstance(chart, Points) else _draw_lines(chart, width)


def _draw_bars(chart: StackedBars, width: int) -> Markup:
    """Return the chart as SVG. In a narrow chart, the label of a row stands above its bar."""
    narrow, longest = svg.is_narrow(width), max((bar.value for bar in chart.bars), default=0.0)
    scale = (chart.ends_at or max(longest, chart.limit.value if chart.limit else 0.0)) or 1.0
    limit = chart.limit if chart.limit is not None and chart.limit.value <= scale else None
    left = 0.0 if narrow else min(280.0, 26 + max((svg.text_width(bar.label) for bar in chart.bars), default=0))
    right = 10 if narrow else 12 + max((svg.text_width(bar.note) for bar in chart.bars), default=0)
    below = _NOTE_BELOW if narrow and any(_meets(bar, width) for bar in chart.bars) else 0.0
    row = 40 + below if narrow else 28
    inks = {part.ink for bar in chart.bars for part in bar.parts if part.value > 0}
    keys, used = svg.legend([family for family in chart.families.items() if family[0] in inks], width)
    top = used + (4 if limit is None else 20)
    tops = [top + row * index for index in range(len(chart.bars))]
    bottom = top + row * len(chart.bars)
    x_of = Scale(0, scale, left, width - right)
    values = svg.ticks(svg.round_steps(scale, 4 if narrow else 7, chart.unit.size), chart.unit.write, chart.unit.title)
    # In a narrow chart, figures stand above the bars: the line does not cross them.
    stretches = [(y + below + 18, y + below + 36) for y in tops] if narrow else [(top - 4, bottom)]
    return svg.frame(
        chart.title,
        width,
        bottom + 24,
        keys,
        svg.horizontal_axis(values, x_of, top, bottom),
        *(_row(bar, [*chart.families], limit, x_of, y, width, below) for bar, y in zip(chart.bars, tops, strict=True)),
        None if limit is None else svg.vertical_limit(x_of(limit.value), limit.words, top - 8, stretches, width),
    )


def _meets(bar: Bar, width: int) -> bool:
    """Whether the label and the figure of a bar in a narrow chart have no room beside each other."""
    return 26 + svg.text_width(bar.label, _NARROW_TEXT) + svg.text_width(bar.note, _NARROW_TEXT) > width


def _row(bar: Bar, inks: Sequence[str], limit: Limit | None, x_of: Scale, y: float, width: int, below: float) -> Markup:
    """Return one bar with its label and figure; it can have the keyboard focus. below: how far the figure stands below
    the label in a narrow chart; 0 puts it beside the label."""
    narrow, scale = svg.is_narrow(width), x_of.last
    thick, above, height = (14, 20 + below, 38 + below) if narrow else (16, 6.0, 28.0)
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
        left = 16 if bar.chosen else 2
        marks.append(svg.label(left, y + 14, bar.label, ink=ink, bold=bar.chosen, size=_NARROW_TEXT))
        x, side = (left, "start") if below else (width - 2, "end")
        look: dict[str, Any] = {"anchor": side, "ink": ink, "bold": bar.chosen, "size": _NARROW_TEXT}
        marks.append(svg.label(x, y + 14 + below, bar.note, **look))
    else:
        at = end + 8
        if limit is not None and at - 2 < x_of(limit.value) < at + svg.text_width(bar.note) + 4:
            at = x_of(limit.value) + 8  # keeps the limit's line from crossing the figure
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
                svg.element("title", f"{part.hint}\n{part.source}".strip()) if part.hint else None,
                x=begins,
                y=y,
                width=ends - begins - (0.8 if ends - begins > 3 else 0),
                height=thick,
                fill_opacity=None if shade == 1 else shade,
                **svg.fill(part.ink),
            )
        )
    return drawn


def _apart(chart: Lines, x_of: Scale) -> list[tuple[int, str]]:
    """Return the labels of an axis that are written: that of the chart's own value, and those that overlap no other."""
    labels, written = chart.labels or (), list[int]()
    for index in sorted(range(len(labels)), key=lambda index: index != chart.own):
        at, half = x_of(chart.xs[index]), svg.text_width(labels[index], SMALL) / 2
        others = ((x_of(chart.xs[other]), svg.text_width(labels[other], SMALL) / 2) for other in written)
        if all(abs(at - other) >= half + wide + _BETWEEN_LABELS for other, wide in others):
            written.append(index)
    return [(index, labels[index]) for index in written]


def _draw_lines(chart: Lines, width: int) -> Markup:
    """Return the panels, one below the other, with the names of stretches below areas, otherwise above."""
    narrow, alone, right = svg.is_narrow(width), len(chart.panels) == 1, width - 12.0
    tall = (150.0 if narrow else 190.0) if alone else 110.0
    scales = [_panel_ticks(panel, tall) for panel in chart.panels]
    left = 12 + max(svg.text_width(text, SMALL) for _, ticks in scales for _, text in ticks)
    pad = 18 if chart.labels else 0
    last = max(chart.xs[-1], chart.x_limit.value if chart.x_limit else 0)
    x_of = Scale(0 if chart.labels is None else chart.xs[0], last or 1, left + pad, right - pad)
    is_timeline = any(panel.areas for panel in chart.panels)
    names, numbers = ([], {}) if is_timeline else _placed_names(chart.spans, x_of)
    below = NamesBelow.of(chart, x_of) if is_timeline else None
    keys, used = svg.legend([*chart.families.items(), *(below.key if below else ())], width)
    number_keys, more = svg.legend([("", f"{number} {name}") for name, number in numbers.items()], width, used)
    used += more
    rows = max((name.row + 1 for name in names), default=0)
    top = used + 24.0 + _NAME_ROW * rows + 14 * (chart.x_limit is not None)
    axes = [_panel_axis(scale, top + row * (tall + _GAP), tall, left, right) for row, scale in enumerate(scales)]
    bottom = top + len(axes) * (tall + _GAP) - _GAP
    parts = [keys, number_keys]
    if chart.labels is None:
        steps = svg.round_steps(last, 4 if narrow else 7, chart.x_unit.size)
        whole = [value for value in steps if float(value).is_integer()]
        parts.append(svg.horizontal_axis(svg.ticks(whole, chart.x_unit.write), x_of, top, bottom))
    if chart.x_limit is not None:
        x, words = x_of(chart.x_limit.value), chart.x_limit.words
        above = top - 6 - _NAME_ROW * rows
        parts.append(svg.vertical_limit(x, words, above, _beside_names(x, names, above + 4, top, bottom), width))
    for index, words in _apart(chart, x_of):
        ink = "text" if index == chart.own else "soft"
        parts.append(svg.small(x_of(chart.xs[index]), bottom + 16, words, anchor="middle", ink=ink))
    parts += _span_names(names, x_of, top, bottom)
    for panel, (lines, y_of) in zip(chart.panels, axes, strict=True):
        parts += [svg.small(0, y_of.end - (top - used - 12 if y_of.end == top else 10), panel.title), lines]
        parts += areas(panel, chart.xs, x_of, y_of) if panel.areas else _line(panel, chart, x_of, y_of)
        if panel.limit is not None:
            y = y_of(panel.limit.value)
            anchor: Anchor
            place, anchor = (right, "end") if panel.areas else (left + 4, "start")  # the peak is named at the left
            parts.append(svg.line(left, y, right, y, "limit"))
            parts.append(svg.small(place, y - 5, panel.limit.words, anchor=anchor, ink="limit"))
    if below is not None:
        parts += below.drawn(x_of, top, bottom)
        bottom += below.height
    parts.append(svg.small(right, bottom + 34, chart.x_title, anchor="end"))
    return svg.frame(chart.title, width, bottom + 42, *parts)


def _panel_ticks(panel: Panel, tall: float) -> tuple[float, svg.Ticks]:
    """Return (the end of the scale of a panel's values, its ticks)."""
    highest = 1.1 * max([*panel.sums, panel.limit.value if panel.limit else 0]) or 1.0
    return highest, svg.ticks(svg.round_steps(highest, 4 if tall > 110 else 3, panel.unit.size), panel.unit.write)


def _panel_axis(
    scale: tuple[float, svg.Ticks], top: float, tall: float, left: float, right: float
) -> tuple[Markup, Scale]:
    """Return (grid lines with their values at the left, the scale of the values)."""
    highest, ticks = scale
    y_of = Scale(0, highest, top + tall, top)
    lines = (svg.line(left, y_of(value), right, y_of(value)) for value, _ in ticks)
    names = (svg.small(left - 6, y_of(value) + 4, text, anchor="end") for value, text in ticks)
    return svg.joined(*lines, *names), y_of


def _line(panel: Panel, chart: Lines, x_of: Scale, y_of: Scale) -> Iterator[Markup]:
    """Yield a line, with a point at each position that has a hint."""
    ((ink, values),) = panel.layers.items()
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    every = -(-len(known) // _MOST_POINTS)
    shown = [*known[::every], *known[-1:]] if every > 1 else known
    path = "L".join(f"{x_of(chart.xs[index]):.1f} {y_of(value):.1f}" for index, value in shown)
    yield svg.element("path", d=f"M{path}", fill="none", stroke_width=1.8, **svg.stroke(ink))
    for index, value in shown if chart.hints else ():
        colour, radius = ("good", 6) if index == chart.own else (ink, 4)
        look = svg.outline(colour) if index in chart.hollow else svg.fill(colour)
        hint = chart.hints[index]
        yield svg.element(
            "circle",
            svg.element("title", hint),
            cx=x_of(chart.xs[index]),
            cy=y_of(value),
            r=radius,
            tabindex="0",
            role="img",
            aria_label=hint,
            **look,
        )


class _Name(NamedTuple):
    """The name of a stretch: where the stretch and the name begin and the name ends, and its row, 0 at the bottom."""

    x: float
    begins: float
    ends: float
    row: int
    words: str


def _placed_names(spans: Sequence[tuple[float, str]], x_of: Scale) -> tuple[list[_Name], dict[str, int]]:
    """Return (the names of the stretches, the numbers that stand for them): numbers if the names need more than
    `_MOST_NAME_ROWS` rows. No stretch stays without either, since it would seem to belong to the one before."""
    names = [*_in_rows([(x_of(begin), name) for begin, name in spans], x_of.end)]
    if max((name.row for name in names), default=0) < _MOST_NAME_ROWS:
        return names, {}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for _, name in spans), start=1)}
    return [*_in_rows([(x_of(begin), str(numbers[name])) for begin, name in spans], x_of.end)], numbers


def _in_rows(names: Sequence[tuple[float, str]], end: float) -> Iterator[_Name]:
    """Yield each name at the beginning of its stretch, in the lowest row with room."""
    free = list[float]()
    for x, words in names:
        long = svg.text_width(words, SMALL)
        begins = min(x + (4 if len(words) > 1 else 1), end + 18 - long)
        row = next((row for row, taken in enumerate(free) if begins >= taken), len(free))
        free[row : row + 1] = [begins + long + min(8, long / 2)]
        yield _Name(x, begins, begins + long, row, words)


def _span_names(names: Sequence[_Name], x_of: Scale, top: float, bottom: float) -> Iterator[Markup]:
    """Yield the name of each stretch above its beginning, and a line at it."""
    for name in names:
        if name.x > x_of.start:
            yield svg.line(name.x, top - 4, name.x, bottom, "soft")
        yield svg.small(name.begins, top - 8 - _NAME_ROW * name.row, name.words, ink="text")


def _beside_names(
    x: float, names: Sequence[_Name], above: float, top: float, bottom: float
) -> Iterator[tuple[float, float]]:
    """Yield the parts of a vertical line from above to bottom that cross no name."""
    crossed = sorted((name.row for name in names if name.begins - 2 < x < name.ends + 2), reverse=True)
    for row in crossed:
        baseline = top - 8 - _NAME_ROW * row
        if baseline - 10 > above:
            yield above, baseline - 10
        above = baseline + 3
    yield above, bottom
