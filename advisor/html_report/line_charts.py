"""A quantity over steps, as a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .canvas import (
    SMALL,
    WIDE,
    Markup,
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
    stroke,
    text_width,
)

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
    unit: str
    write: Callable[[float], str]
    x_title: str
    counts_in: float = 1
    """The axis has values that are round when counted in this, such as the bytes of a GiB."""
    limit: float | None = None
    limit_words: str = ""

    @property
    def heights(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(*(layer.values for layer in self.layers), strict=True)))


def draw_stacked_area(chart: StackedArea, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    height = 240.0 if is_narrow(width) else 300.0
    highest = max(chart.heights, default=0.0)
    near = chart.limit is not None and chart.limit < 1.6 * highest
    top_value = 1.08 * max(highest, chart.limit or 0.0 if near else 0.0) or 1.0
    steps = [value for value in round_steps(top_value, 5, chart.counts_in) if value <= top_value]
    words = [chart.write(value) for value in steps]
    words[-1] = f"{words[-1]} {chart.unit}"
    left, right = 10 + max(text_width(text, SMALL) for text in words), 4.0
    shown = legend(list(dict.fromkeys(layer.ink for layer in chart.layers)), width, 0)
    top, bottom = shown[1] + 24.0, shown[1] + height - 30
    start, end = chart.times[0], max(chart.times[-1], chart.times[0] + 1)

    def x_of(time: float) -> float:
        return left + (width - left - right) * (time - start) / (end - start)

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * value / top_value

    rows = [
        joined(
            line(left, y_of(value), width - right, y_of(value), "grid"),
            label(left - 6, y_of(value) + 4, text, anchor="end", ink="soft", size=SMALL),
        )
        for value, text in zip(steps, words, strict=True)
    ]
    limit = None
    if chart.limit is not None and chart.limit <= top_value:
        limit = joined(
            line(left, y_of(chart.limit), width - right, y_of(chart.limit), "limit", dashed=True, width=1.5),
            label(width - right - 4, y_of(chart.limit) - 5, chart.limit_words, anchor="end", ink="limit", size=SMALL),
        )
    return frame(
        chart.title,
        width,
        bottom + 26,
        shown[0],
        *rows,
        *_areas(chart, x_of, y_of),
        *_spans(chart.spans, x_of, top, bottom),
        limit,
        label(width - right, bottom + 18, chart.x_title, anchor="end", ink="soft", size=SMALL),
    )


def _areas(chart: StackedArea, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> list[Markup]:
    """Each layer between the sum of those beneath it and its own; memory changes in steps, so areas do too."""
    drawn, beneath = [], [0.0] * len(chart.times)
    xs = [x_of(time) for time in chart.times]
    for layer in chart.layers:
        above = [low + value for low, value in zip(beneath, layer.values, strict=True)]
        path = _steps(xs, [y_of(value) for value in above])
        back = _steps(xs, [y_of(value) for value in beneath], backwards=True)
        drawn.append(
            element("path", element("title", layer.name), d=f"M{path}L{back}Z", fill_opacity=0.88, **fill(layer.ink))
        )
        beneath = above
    return drawn


def _steps(xs: Sequence[float], ys: Sequence[float], *, backwards: bool = False) -> str:
    """A line through the points that rises where the next point stands; points on a level are left out."""
    points: list[tuple[float, float]] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if index and abs(y - points[-1][1]) < 0.05 and index < len(xs) - 1:
            continue
        if index:
            points.append((x, points[-1][1]))
        points.append((x, y))
    ordered = points[::-1] if backwards else points
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in ordered)


def _spans(spans: Sequence[SpanOfTime], x_of: Callable[[float], float], top: float, bottom: float) -> list[Markup]:
    """Every span as an area that tells its hint, and its name where there is room."""
    drawn, free = [], 0.0
    for span in spans:
        begins, ends = x_of(span.begins), x_of(span.ends)
        parts = [
            line(begins, top - 4, begins, bottom, "grid"),
            element(
                "rect",
                element("title", span.hint),
                x=begins,
                y=top - 18,
                width=max(0.5, ends - begins),
                height=bottom - top + 18,
                fill_opacity=0,
                **fill("paper"),
            ),
        ]
        long = text_width(span.name, SMALL)
        if begins + 3 >= free and begins + 3 + long <= ends:
            parts.append(label(begins + 3, top - 7, span.name, ink="soft", size=SMALL))
            free = begins + 3 + long + 4
        drawn.append(element("g", *parts, tabindex="0", role="img", aria_label=span.hint))
    return drawn


_FROM_THE_BOTTOM = ("weights", "optimizer", "runtime", "gradients", "activations", "loss", "buffers")


def layers_of(rows: Sequence[Mapping[str, float]], ink_of: Callable[[str], str]) -> tuple[Layer, ...]:
    """Layers of a sequence of named values: what stays at the bottom, what comes and goes above it; in each the largest
    first."""
    most: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            most[name] = max(most.get(name, 0.0), value)
    order = {ink: index for index, ink in enumerate(_FROM_THE_BOTTOM)}
    names = sorted(most, key=lambda name: (order.get(ink_of(name), len(order)), -most[name]))
    return tuple(
        Layer(name=name, ink=ink_of(name), values=tuple(float(row.get(name, 0.0)) for row in rows))
        for name in names
        if most[name] > 0
    )
