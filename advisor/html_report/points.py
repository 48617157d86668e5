"""Points over two logarithmic axes as SVG; a named point has its letter beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from ..document.charts import Point, Points, log_ticks
from . import canvas as svg
from .canvas import SMALL, TEXT, Markup, Scale

_HEIGHT, _NARROW_HEIGHT = 260.0, 220.0
"""Heights of the axes in pixels."""

_PAD = 14.0
"""Space between the outermost points and the ends of the axes."""

_LETTER = 10.0
"""Room of a letter in pixels, and the distance from the middle of its point, in both directions."""


def draw_points(chart: Points, width: int) -> Markup:
    """Return the chart as SVG."""
    tall = _NARROW_HEIGHT if svg.is_narrow(width) else _HEIGHT
    xs, ys = [point.x for point in chart.points], [point.y for point in chart.points]
    x_names, y_names = log_ticks(xs, chart.x_unit), log_ticks(ys, chart.y_unit)
    left = 10 + max(svg.text_width(name, SMALL) for name in y_names.values())
    others = [("other", "not in the table")] if any(not point.mark for point in chart.points) else []
    key, used = svg.legend(others, width, 16)
    top, right = 30.0 + used, width - 12.0
    bottom = top + tall
    x_of = _scale(xs, left + _PAD, right - _PAD)
    y_of = _scale(ys, bottom - _PAD, top + _PAD)
    lines = [svg.line(left, y_of(log(value)), right, y_of(log(value))) for value in y_names]
    lines += [svg.line(x_of(log(value)), top, x_of(log(value)), bottom) for value in x_names]
    names = [svg.small(left - 6, y_of(log(value)) + 4, name, anchor="end") for value, name in y_names.items()]
    return svg.frame(
        chart.title,
        width,
        bottom + 24,
        svg.small(0, 11, chart.title),
        key,
        *lines,
        *names,
        *_apart(x_names, x_of, bottom + 16, right),
        *_marks(chart.in_drawing_order, x_of, y_of, right),
    )


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Return the scale of the logarithms of values."""
    low, high = log(min(values)), log(max(values))
    return Scale(low, high if high > low else low + 1, start, end)


def _apart(names: Mapping[float, str], x_of: Scale, y: float, right: float) -> list[Markup]:
    """Return the names of an axis that overlap no name before them."""
    drawn, free = list[Markup](), 0.0
    for value, name in names.items():
        half = svg.text_width(name, SMALL) / 2
        middle = min(x_of(log(value)), right - half)
        if middle - half >= free:
            drawn.append(svg.small(middle, y, name, anchor="middle"))
            free = middle + half + 6
    return drawn


def _marks(points: Sequence[Point], x_of: Scale, y_of: Scale, right: float) -> list[Markup]:
    """Return the points in their order. Each letter has the first free place around its point: one without a point or
    a letter, else one with a point without a letter."""
    at_points = [(x_of(log(point.x)), y_of(log(point.y))) for point in points]
    taken = [place for place, point in zip(at_points, points, strict=True) if point.mark]
    drawn = list[Markup]()
    for point in points:
        x, y = x_of(log(point.x)), y_of(log(point.y))
        ink = "good" if point.chosen else "weights" if point.mark else "other"
        drawn.append(svg.element("circle", cx=x, cy=y, r=5 if point.chosen else 3.5, **svg.fill(ink)))
        if not point.mark:
            continue
        beside = [(x + _LETTER, y), (x - _LETTER, y), (x, y - _LETTER - 1), (x, y + _LETTER + 1)]
        corners = [(x + step, y + rise) for step in (_LETTER, -_LETTER) for rise in (-_LETTER, _LETTER)]
        free = [place for place in (*beside, *corners) if place[0] < right and not _is_taken(place, taken)]
        at = min(free or beside, key=lambda place: _is_taken(place, at_points))  # the first of the best
        taken.append(at)
        ink = "good" if point.chosen else "text"
        look: dict[str, Any] = {"anchor": "middle", "ink": ink, "bold": point.chosen, "size": SMALL}
        drawn.append(svg.label(at[0], at[1] + TEXT / 3, point.mark, **look))
    return drawn


def _is_taken(place: tuple[float, float], taken: Sequence[tuple[float, float]]) -> bool:
    return any(abs(place[0] - x) < _LETTER and abs(place[1] - y) < _LETTER for x, y in taken)
