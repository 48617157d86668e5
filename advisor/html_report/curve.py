"""A quantity over steps, as a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .canvas import SMALL, WIDE, frame, horizontal_axis, is_narrow, label, line, round_steps, stroke, text_width
from .markup import Markup, element, joined

_MOST_POINTS = 1000
"""Points of the line; of more, evenly spaced ones are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points by rising x; the vertical scale begins at 0."""

    title: str
    points: tuple[tuple[float, float], ...]
    x_title: str
    y_title: str
    write_y: Callable[[float], str]


def draw_curve(chart: Curve, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    height, top = 200.0 if is_narrow(width) else 240.0, 24.0
    points = _thinned(chart.points)
    highest = 1.08 * max((y for _, y in points), default=1.0) or 1.0
    rows = [value for value in round_steps(highest, 4) if value <= highest]
    left = 12 + max(text_width(chart.write_y(value), SMALL) for value in rows)
    bottom, last = height - 40, max((x for x, _ in points), default=1.0) or 1.0

    def x_of(value: float) -> float:
        return left + (width - left - 12) * value / last

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * value / highest

    lines = [
        joined(
            line(left, y_of(value), width - 12, y_of(value), "grid"),
            label(left - 6, y_of(value) + 4, chart.write_y(value), anchor="end", ink="soft", size=SMALL),
        )
        for value in rows
    ]
    steps = [value for value in round_steps(last, 4 if is_narrow(width) else 7) if value == int(value)]
    path = "M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in points)
    return frame(
        chart.title,
        width,
        height,
        label(0, 12, chart.y_title, ink="soft", size=SMALL),
        label(width - 12, height - 6, chart.x_title, anchor="end", ink="soft", size=SMALL),
        horizontal_axis(steps, x_of, top, bottom, "", lambda value: f"{value:g}"),
        *lines,
        element("path", d=path, fill="none", stroke_width=1.8, **stroke("weights")),
    )


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    every = -(-len(points) // _MOST_POINTS) or 1
    return [*points[::every], *points[-1:]] if every > 1 else points
