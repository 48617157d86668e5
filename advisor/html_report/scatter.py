"""Points of two quantities of which one is to be high and the other low, and the front that no point beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .canvas import SMALL, WIDE, fill, frame, horizontal_axis, is_narrow, label, line, round_steps, stroke, text_width
from .markup import Markup, element, joined

_LEAST_NAMED = 0.3
"""Points of the front below this share of its highest have no name: they crowd at the foot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point; x is to be low and y high. hint: what a pointer that rests on it tells."""

    label: str
    x: float
    y: float
    hint: str
    chosen: bool = False
    faded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Points on two scales that begin at 0."""

    title: str
    points: tuple[Point, ...]
    x_title: str
    y_title: str
    write_x: Callable[[float], str]
    write_y: Callable[[float], str]
    x_counts_in: float = 1
    """The horizontal axis has values that are round when counted in this, such as the bytes of a GiB."""
    limit: float | None = None
    limit_words: str = ""
    x_ends_at: float | None = None
    """The end of the horizontal scale; points beyond it are left out."""


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in one quantity without losing in the other, by rising x and y."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def draw_scatter(chart: Scatter, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    narrow = is_narrow(width)
    height = 230.0 if narrow else 300.0
    end = chart.x_ends_at or 1.05 * max((point.x for point in chart.points), default=1.0) or 1.0
    shown = [point for point in chart.points if point.x <= end]
    top_value = 1.12 * max((point.y for point in shown), default=1.0) or 1.0
    rows = [value for value in round_steps(top_value, 5) if value <= top_value]
    left = 12 + max(text_width(chart.write_y(value), SMALL) for value in rows)
    top, bottom, right = 34.0, height - 40, 12.0

    def x_of(value: float) -> float:
        return left + (width - left - right) * value / end

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * value / top_value

    lines = [
        joined(
            line(left, y_of(value), width - right, y_of(value), "grid"),
            label(left - 6, y_of(value) + 4, chart.write_y(value), anchor="end", ink="soft", size=SMALL),
        )
        for value in rows
    ]
    steps = [value for value in round_steps(end, 4 if narrow else 7, chart.x_counts_in) if value <= end]
    best = front(shown)
    return frame(
        chart.title,
        width,
        height,
        label(0, 12, chart.y_title, ink="soft", size=SMALL),
        label(width - right, height - 6, chart.x_title, anchor="end", ink="soft", size=SMALL),
        horizontal_axis(steps, x_of, top, bottom, "", chart.write_x),
        *lines,
        _limit(chart, x_of, top, bottom, end, width),
        _front(best, x_of, y_of),
        *(_point(point, x_of, y_of, point in best) for point in sorted(shown, key=lambda point: point.chosen)),
        *_labels(best, x_of, y_of, left, width - right, narrow),
    )


def _limit(
    chart: Scatter, x_of: Callable[[float], float], top: float, bottom: float, end: float, width: int
) -> Markup | None:
    if chart.limit is None or chart.limit > end:
        return None
    x = x_of(chart.limit)
    half = text_width(chart.limit_words, SMALL) / 2
    return joined(
        line(x, top - 4, x, bottom, "limit", dashed=True, width=1.5),
        label(
            min(max(x, half + 2), width - half - 2),
            top - 8,
            chart.limit_words,
            anchor="middle",
            ink="limit",
            size=SMALL,
        ),
    )


def _front(best: Sequence[Point], x_of: Callable[[float], float], y_of: Callable[[float], float]) -> Markup | None:
    """Steps from point to point: between two of them nothing better is to be had."""
    if len(best) < 2:
        return None
    path = f"M{x_of(best[0].x):.1f} {y_of(best[0].y):.1f}"
    path += "".join(f"H{x_of(point.x):.1f}V{y_of(point.y):.1f}" for point in best[1:])
    return element("path", d=path, fill="none", stroke_width=1.5, stroke_opacity=0.7, **stroke("weights"))


def _point(point: Point, x_of: Callable[[float], float], y_of: Callable[[float], float], on_front: bool) -> Markup:
    ink = "good" if point.chosen else "weights"
    paint: dict[str, str | float] = {**fill(ink)}
    if point.faded and not point.chosen:
        paint = {"class_": "f-paper s-soft", "fill": fill("paper")["fill"], "stroke": stroke("soft")["stroke"]}
    return element(
        "circle",
        element("title", point.hint),
        cx=x_of(point.x),
        cy=y_of(point.y),
        r=7 if point.chosen else 5 if on_front else 3.5,
        fill_opacity=1 if point.chosen or on_front or point.faded else 0.45,
        tabindex="0" if on_front or point.chosen else None,
        role="img",
        aria_label=point.hint,
        **paint,
    )


def _labels(
    best: Sequence[Point],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
    least: float,
    most: float,
    narrow: bool,
) -> list[Markup]:
    """Names of the front's points, the chosen first, each where nothing is written yet."""
    taken: list[tuple[float, float, float, float]] = []
    drawn = []
    size = SMALL if narrow else 12
    named = set()
    for point in sorted(best, key=lambda point: (not point.chosen, -point.y)):
        if point.label in named or point.y < _LEAST_NAMED * best[-1].y:
            continue
        long = text_width(point.label, size)
        for x, y in (
            (x_of(point.x) - long / 2, y_of(point.y) - 11),
            (x_of(point.x) - long - 10, y_of(point.y) + 4),
            (x_of(point.x) + 11, y_of(point.y) + 4),
            (x_of(point.x) - long / 2, y_of(point.y) + 20),
        ):
            spot = (x, y - size, x + long, y + 2)
            if x < least or x + long > most or any(_overlap(spot, other) for other in taken):
                continue
            taken.append(spot)
            named.add(point.label)
            drawn.append(label(x, y, point.label, bold=point.chosen, ink="good" if point.chosen else "text", size=size))
            break
    return drawn


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
