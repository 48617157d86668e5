"""The picture of a series: speed above memory, with the GPU's memory and the changes of strategy."""

from __future__ import annotations

from collections.abc import Sequence

from ...estimators.hardware import Cluster
from ..answer.scaling import Series
from ..text.labels import device_label, shape_label
from ..text.units import gib, rate
from . import canvas as svg
from .canvas import GIB, SMALL, WIDE, Markup, Scale

_TOP, _PANEL, _GAP = 48.0, 110.0, 34.0
"""Heights of what is above the panels, of a panel, and of the space between two."""

_HEIGHT = _TOP + 2 * _PANEL + _GAP + 42.0


def draw_all(cluster: Cluster, every: Sequence[Series], width: int = WIDE) -> Markup:
    """All series, one under the other."""
    drawn = [draw_series(cluster, series, width) for series in every]
    placed = (svg.element("g", each, transform=f"translate(0 {_HEIGHT * row:g})") for row, each in enumerate(drawn))
    return svg.frame(
        "Speed and memory against " + ", ".join(each.title for each in every), width, _HEIGHT * len(drawn), *placed
    )


def draw_series(cluster: Cluster, series: Series, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    limit_bytes, device = cluster.gpu.memory_bytes, device_label(cluster)
    shown = [(index, plan) for index, plan in enumerate(series.plans) if plan is not None]
    speeds = {index: plan.tokens_per_s for index, plan in shown}
    sizes = {index: float(plan.device_bytes) for index, plan in shown}
    top, below, right, bottom = _TOP, _TOP + _PANEL + _GAP, width - 12.0, _TOP + 2 * _PANEL + _GAP
    fastest, most = 1.1 * max(speeds.values()), 1.1 * max(limit_bytes, *sizes.values())
    speeds_y = svg.ticks(svg.round_steps(fastest, 3), lambda speed: rate(speed) if speed else "0")
    speed_rows, speed_left, speed_y = svg.vertical_axis(speeds_y, (0, fastest), top, top + _PANEL, right)
    sizes_y = svg.ticks(svg.round_steps(most, 3, GIB.size), GIB.write)
    size_rows, size_left, size_y = svg.vertical_axis(sizes_y, (0, most), below, below + _PANEL, right)
    left = max(speed_left, size_left)
    x_of = Scale(0, max(1, len(series.values) - 1), left + 18, right - 18)
    limit = size_y(limit_bytes)
    words = f"{gib(limit_bytes)} GiB per {device}"
    hints = {
        index: f"{series.title} {series.values[index]}: {plan.rung}, {shape_label(plan.plan)}, "
        f"{rate(plan.tokens_per_s)} tokens/s, {gib(plan.device_bytes)} GiB, {plan.fit.reason}"
        for index, plan in shown
    }
    return svg.frame(
        f"Speed and memory per {device} against {series.title}, with the strategy",
        width,
        _HEIGHT,
        svg.small(0, 12, f"tokens/s, by {series.title}"),
        speed_rows,
        size_rows,
        svg.small(0, below - 10, f"GiB per {device}"),
        *(
            svg.small(x_of(index), bottom + 16, value, anchor="middle", ink="text" if index == series.own else "soft")
            for index, value in enumerate(series.values)
        ),
        svg.small(right, bottom + 34, series.title, anchor="end"),
        svg.line(left, limit, right, limit, "limit"),
        svg.small(left + 4, limit - 5, words, ink="limit"),
        *_strategies(series, x_of, top, bottom),
        *(
            svg.joined(
                svg.curve((x_of(index), y_of(value)) for index, value in values.items()),
                *_points(values, hints, series.own, x_of, y_of),
            )
            for values, y_of in ((speeds, speed_y), (sizes, size_y))
        ),
    )


def _strategies(series: Series, x_of: Scale, top: float, bottom: float) -> list[Markup]:
    """The name of each strategy above the first value that has it, with a line where it begins."""
    drawn, before, free = [], "", [0.0, 0.0]
    for index, plan in enumerate(series.plans):
        name = "nothing fits" if plan is None else plan.rung
        if name == before:
            continue
        x, long = x_of(index), svg.text_width(name, SMALL)
        begins = min(x - 14, x_of.end + 18 - long)
        row = next((row for row, taken in enumerate(free) if begins >= taken), None)
        if before:
            drawn.append(svg.line(x - 18, top - 4, x - 18, bottom, "soft"))
        if row is not None:
            drawn.append(svg.small(begins, top - 8 - 14 * row, name, ink="text"))
            free[row] = begins + long + 8
        before = name
    return drawn


def _points(values: dict[int, float], hints: dict[int, str], own: int, x_of: Scale, y_of: Scale) -> list[Markup]:
    return [
        svg.element(
            "circle",
            svg.element("title", hints[index]),
            cx=x_of(index),
            cy=y_of(value),
            r=6 if index == own else 4,
            tabindex="0",
            role="img",
            aria_label=hints[index],
            **svg.fill("good" if index == own else "weights"),
        )
        for index, value in values.items()
    ]
