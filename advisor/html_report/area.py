"""Quantities that add up, over time: areas one on the other, with the spans of what ran when above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .canvas import SMALL, WIDE, fill, frame, is_narrow, label, legend, line, round_steps, text_width
from .markup import Markup, element, joined


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
