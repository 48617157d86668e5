"""Charts of two quantities: a curve over steps, points with their front, and areas that add up over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .canvas import (
    GIB,
    SMALL,
    WIDE,
    Markup,
    Scale,
    Unit,
    element,
    fill,
    frame,
    horizontal_axis,
    is_narrow,
    joined,
    label,
    legend,
    line,
    round_steps,
    small,
    stroke,
    text_width,
    vertical_axis,
    vertical_limit,
)

_MOST_POINTS = 1000
"""Points of a curve; of more, evenly spaced ones are drawn."""

_LEAST_NAMED = 0.3
"""Points of the front below this share of its highest have no name, since they are crowded at the foot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points by rising x; both scales begin at 0."""

    title: str
    points: tuple[tuple[float, float], ...]
    x_title: str
    y_title: str
    write_y: Callable[[float], str]


def draw_curve(chart: Curve, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    height, top, right = 200.0 if is_narrow(width) else 240.0, 24.0, width - 12
    every = -(-len(chart.points) // _MOST_POINTS) or 1
    points = [*chart.points[::every], *chart.points[-1:]] if every > 1 else chart.points
    highest = 1.08 * max((y for _, y in points), default=1.0) or 1.0
    last = max((x for x, _ in points), default=1.0) or 1.0
    rows, left, y_of = vertical_axis(round_steps(highest, 4), highest, top, height - 40, right, chart.write_y)
    x_of = Scale(0, last, left, right)
    steps = [value for value in round_steps(last, 4 if is_narrow(width) else 7) if value == int(value)]
    path = "M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in points)
    return frame(
        chart.title,
        width,
        height,
        small(0, 12, chart.y_title),
        small(right, height - 6, chart.x_title, anchor="end"),
        horizontal_axis(steps, x_of, top, height - 40, lambda value: f"{value:g}"),
        rows,
        element("path", d=path, fill="none", stroke_width=1.8, **stroke("weights")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point; low x and high y are good. hint: shown where a pointer rests on it."""

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
    write_y: Callable[[float], str]
    unit: Unit = GIB
    """Of the horizontal axis."""
    limit: float | None = None
    limit_words: str = ""
    x_ends_at: float | None = None
    """The end of the horizontal scale; points beyond it are left out."""


Spot = tuple[float, float, float, float]
"""Left, top, right and bottom of what is drawn."""


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
    height, top, right = 230.0 if narrow else 300.0, 34.0, width - 12.0
    bottom = height - 40
    end = chart.x_ends_at or 1.05 * max((point.x for point in chart.points), default=1.0) or 1.0
    shown = [point for point in chart.points if point.x <= end]
    best = front(shown)
    highest = 1.12 * max((point.y for point in shown), default=1.0) or 1.0
    rows, left, y_of = vertical_axis(round_steps(highest, 5), highest, top, bottom, right, chart.write_y)
    x_of = Scale(0, end, left, right)
    limit = None
    taken = [(x_of(point.x) - 6, y_of(point.y) - 6, x_of(point.x) + 6, y_of(point.y) + 6) for point in shown]
    if chart.limit is not None and chart.limit <= end:
        x = x_of(chart.limit)
        limit = vertical_limit(x, chart.limit_words, top - 8, [(top - 4, bottom)], width)
        taken.append((x - 3, top, x + 3, bottom))
    return frame(
        chart.title,
        width,
        height,
        small(0, 12, chart.y_title),
        small(right, height - 6, chart.x_title, anchor="end"),
        horizontal_axis(round_steps(end, 4 if narrow else 7, chart.unit.size), x_of, top, bottom, chart.unit.write),
        rows,
        limit,
        _front_line(best, x_of, y_of),
        *(_point(point, x_of, y_of, point in best) for point in sorted(shown, key=lambda point: point.chosen)),
        *_names(best, x_of, y_of, SMALL if narrow else 12, taken),
    )


def _front_line(best: Sequence[Point], x_of: Scale, y_of: Scale) -> Markup | None:
    """Steps from point to point: between two of them there is nothing better."""
    if len(best) < 2:
        return None
    path = f"M{x_of(best[0].x):.1f} {y_of(best[0].y):.1f}"
    path += "".join(f"H{x_of(point.x):.1f}V{y_of(point.y):.1f}" for point in best[1:])
    return element("path", d=path, fill="none", stroke_width=1.5, stroke_opacity=0.7, **stroke("weights"))


def _point(point: Point, x_of: Scale, y_of: Scale, on_front: bool) -> Markup:
    paint = fill("good" if point.chosen else "weights")
    if point.faded and not point.chosen:
        paint = {**fill("paper"), **stroke("soft"), "class_": "f-paper s-soft"}
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


def _names(best: Sequence[Point], x_of: Scale, y_of: Scale, size: float, drawn_at: Sequence[Spot]) -> list[Markup]:
    """Names of the front's points, the chosen first, each where nothing is drawn or written yet."""
    taken = list(drawn_at)
    drawn: dict[str, Markup] = {}
    for point in sorted(best, key=lambda point: (not point.chosen, -point.y)):
        if point.label in drawn or point.y < _LEAST_NAMED * best[-1].y:
            continue
        long, x0, y0 = text_width(point.label, size), x_of(point.x), y_of(point.y)
        beside = (x0 - long / 2, y0 - 11), (x0 - long - 14, y0 + 4), (x0 + 11, y0 + 4), (x0 - long / 2, y0 + 20)
        for x, y in (*beside, (x0 - long, y0 - 11), (x0 - long, y0 + 20)):
            spot = (x, y - size, x + long, y + 2)
            if x_of.start <= x and x + long <= x_of.end and not any(_overlap(spot, other) for other in taken):
                taken.append(spot)
                ink = "good" if point.chosen else "text"
                drawn[point.label] = label(x, y, point.label, bold=point.chosen, ink=ink, size=size)
                break
    return list(drawn.values())


def _overlap(one: Spot, other: Spot) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One of the quantities: a value for each moment."""

    name: str
    ink: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOfTime:
    """What ran from one time to another."""

    name: str
    begins: float
    ends: float
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedArea:
    """Layers from the bottom up over the same moments."""

    title: str
    times: tuple[float, ...]
    layers: tuple[Layer, ...]
    spans: tuple[SpanOfTime, ...]
    x_title: str
    unit: Unit = GIB
    limit: float | None = None
    limit_words: str = ""

    @property
    def heights(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(*(layer.values for layer in self.layers), strict=True)))


def draw_stacked_area(chart: StackedArea, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    keys, taken = legend(list(dict.fromkeys(layer.ink for layer in chart.layers)), width)
    top, bottom, right = taken + 24.0, taken + (210.0 if is_narrow(width) else 270.0), width - 4.0
    highest = max(chart.heights, default=0.0)
    near = chart.limit is not None and chart.limit < 1.6 * highest
    top_value = 1.08 * max(highest, chart.limit or 0.0 if near else 0.0) or 1.0
    steps = round_steps(top_value, 5, chart.unit.size)
    rows, left, y_of = vertical_axis(steps, top_value, top, bottom, right, chart.unit.write, chart.unit.title)
    x_of = Scale(chart.times[0], max(chart.times[-1], chart.times[0] + 1), left, right)
    limit = None
    if chart.limit is not None and chart.limit <= top_value:
        y = y_of(chart.limit)
        limit = joined(
            line(left, y, right, y, "limit"), small(right - 4, y - 5, chart.limit_words, anchor="end", ink="limit")
        )
    return frame(
        chart.title,
        width,
        bottom + 26,
        keys,
        rows,
        *_areas(chart, x_of, y_of),
        *_spans(chart.spans, x_of, top, bottom),
        limit,
        small(right, bottom + 18, chart.x_title, anchor="end"),
    )


def _areas(chart: StackedArea, x_of: Scale, y_of: Scale) -> list[Markup]:
    """Each layer between the sum of those beneath it and its own; memory changes in steps, so areas do too."""
    values = [layer.values for layer in chart.layers]
    sums = accumulate(
        values, lambda low, own: tuple(map(sum, zip(low, own, strict=True))), initial=(0.0,) * len(chart.times)
    )
    outlines = [_steps([x_of(time) for time in chart.times], [y_of(value) for value in row]) for row in sums]
    drawn = []
    for layer, (below, above) in zip(chart.layers, pairwise(outlines), strict=True):
        path = f"M{' '.join(above)}L{' '.join(reversed(below))}Z"
        drawn.append(element("path", element("title", layer.name), d=path, fill_opacity=0.88, **fill(layer.ink)))
    return drawn


def _steps(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """A line that changes its height at the next point; points on a level are left out."""
    points: list[tuple[float, float]] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if index and abs(y - points[-1][1]) < 0.05 and index < len(xs) - 1:
            continue
        if index:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [f"{x:.1f},{y:.1f}" for x, y in points]


def _spans(spans: Sequence[SpanOfTime], x_of: Scale, top: float, bottom: float) -> list[Markup]:
    """Every span as an area with its hint, and its name where there is room."""
    drawn, free = [], 0.0
    for span in spans:
        begins, ends = x_of(span.begins), x_of(span.ends)
        area = element(
            "rect",
            element("title", span.hint),
            x=begins,
            y=top - 18,
            width=max(0.5, ends - begins),
            height=bottom - top + 18,
            fill_opacity=0,
            **fill("paper"),
        )
        name, long = None, text_width(span.name, SMALL)
        if begins + 3 >= free and begins + 3 + long <= ends:
            name = small(begins + 3, top - 7, span.name)
            free = begins + 3 + long + 4
        parts = (line(begins, top - 4, begins, bottom), area, name)
        drawn.append(element("g", *parts, tabindex="0", role="img", aria_label=span.hint))
    return drawn


_FROM_THE_BOTTOM = ("weights", "optimizer", "runtime", "gradients", "activations", "loss", "generation", "buffers")


def layers_of(rows: Sequence[Mapping[str, float]], ink_of: Callable[[str], str]) -> tuple[Layer, ...]:
    """Layers of a sequence of named values: those that stay at the bottom, those that come and go above them; in each
    family the largest first."""
    most = {
        name: max(row.get(name, 0.0) for row in rows) for name in dict.fromkeys(name for row in rows for name in row)
    }
    order = {ink: index for index, ink in enumerate(_FROM_THE_BOTTOM)}
    names = sorted(most, key=lambda name: (order.get(ink_of(name), len(order)), -most[name]))
    return tuple(
        Layer(name=name, ink=ink_of(name), values=tuple(float(row.get(name, 0.0)) for row in rows))
        for name in names
        if most[name] > 0
    )
