"""Line and scatter charts: the loss over steps, points with their Pareto front, and speed above memory for a series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...estimators.hardware import Cluster
from ..answer.scaling import Series
from ..search.candidate import Candidate
from ..text.labels import device_label, shape_label
from ..text.units import gib, rate
from . import canvas as svg
from .canvas import GIB, SMALL, WIDE, Markup, Scale, Ticks

_MOST_POINTS = 1000
"""Largest number of points of a curve; longer curves are thinned evenly."""

_TOP, _PANEL, _GAP = 48.0, 110.0, 34.0
"""Heights of the space above the panels, of a panel, and of the space between two."""

_HEIGHT = _TOP + 2 * _PANEL + _GAP + 42.0

MOST_MEMORY = 2.0
"""Plans that need more than this multiple of the GPU's memory are left out or cut."""

_LEAST_NAMED = 0.3
"""Points of the front below this share of the highest are not labelled, because they crowd at the bottom."""


def draw_losses(losses: Sequence[tuple[int, float]], width: int = WIDE) -> Markup:
    """Return the loss of each step, by rising step, as SVG; both scales begin at 0."""
    height, top, right = 200.0 if svg.is_narrow(width) else 240.0, 24.0, width - 12
    every = -(-len(losses) // _MOST_POINTS) or 1
    points = [*losses[::every], *losses[-1:]] if every > 1 else losses
    highest, last = 1.08 * max(loss for _, loss in points) or 1.0, points[-1][0] or 1
    values = svg.ticks(svg.round_steps(highest, 4), "{:g}".format)
    rows, left, y_of = svg.vertical_axis(values, (0, highest), top, height - 40, right)
    x_of = Scale(0, last, left, right)
    steps = [value for value in svg.round_steps(last, 4 if svg.is_narrow(width) else 7) if value == int(value)]
    return svg.frame(
        "Loss by step",
        width,
        height,
        svg.small(0, 12, "loss"),
        svg.small(right, height - 6, "step", anchor="end"),
        svg.horizontal_axis(svg.ticks(steps, "{:g}".format), x_of, top, height - 40),
        rows,
        svg.curve((x_of(step), y_of(loss)) for step, loss in points),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a chart. hint: text shown on hover."""

    label: str
    x: float
    y: float
    hint: str
    chosen: bool = False
    faded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale between two values. limit: a value within the scale and its label, drawn as a dashed line."""

    title: str
    ticks: Ticks
    first: float = 0
    last: float
    limit: tuple[float, str] | None = None


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front by rising x and y. Low x and high y are better."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def draw_speed_against_memory(
    plans: Sequence[Candidate], width: int = WIDE, *, cluster: Cluster, chosen: Candidate | None
) -> Markup:
    """Return every plan as a point, as SVG; plans that need more than twice the GPU's memory are left out."""
    narrow, limit, device = svg.is_narrow(width), cluster.gpu.memory_bytes, device_label(cluster)
    points = [
        Point(
            label=plan.rung,
            x=plan.device_bytes,
            y=plan.tokens_per_s,
            hint=f"{plan.rung}, {shape_label(plan.plan)}: {gib(plan.device_bytes)} GiB, "
            f"{rate(plan.tokens_per_s)} tokens/s; {plan.fit.reason}",
            chosen=plan is chosen,
            faded=not plan.fit.fits,
        )
        for plan in plans
        if plan.device_bytes <= MOST_MEMORY * limit
    ]
    end, best = 1.05 * max([limit, *(point.x for point in points)]), front(points)
    highest = 1.12 * max((point.y for point in points), default=1.0) or 1.0
    return draw_points(
        f"Speed against memory per {device} of every plan, and the plans that no other beats in both",
        points,
        Axis(
            title=f"GiB per {device}",
            ticks=svg.ticks(svg.round_steps(end, 4 if narrow else 7, GIB.size), GIB.write),
            last=end,
            limit=(limit, f"{gib(limit)} GiB per {device}"),
        ),
        Axis(
            title="tokens/s",
            ticks=svg.ticks(svg.round_steps(highest, 5), lambda speed: rate(speed) if speed else "0"),
            last=highest,
        ),
        width,
        height=230.0 if narrow else 300.0,
        best=best,
        named=[point for point in best if point.y >= _LEAST_NAMED * best[-1].y],
        joins_best=True,
    )


def draw_points(
    title: str,
    points: Sequence[Point],
    x: Axis,
    y: Axis,
    width: int,
    *,
    height: float,
    best: Sequence[Point],
    named: Sequence[Point],
    joins_best: bool = False,
) -> Markup:
    """Return points with hints, as SVG; the points of the front are larger, and joined by a line if requested."""
    top, bottom, right, limits = 34.0, height - 40, width - 12.0, list[Markup]()
    rows, left, y_of = svg.vertical_axis(y.ticks, (y.first, y.last), top, bottom, right)
    x_of = Scale(x.first, x.last, left, right)
    taken = [(x_of(each.x) - 6, y_of(each.y) - 6, x_of(each.x) + 6, y_of(each.y) + 6) for each in points]
    if x.limit is not None:
        at = x_of(x.limit[0])
        limits.append(svg.vertical_limit(at, x.limit[1], top - 8, [(top - 4, bottom)], width))
        taken.append((at - 3, top, at + 3, bottom))
    if y.limit is not None:
        at = y_of(y.limit[0])
        words = svg.small(right, at - 5, y.limit[1], anchor="end", ink="limit")
        limits += [svg.line(left, at, right, at, "limit"), words]
    if joins_best and len(best) > 1:  # no plan lies beyond the line
        path = f"M{x_of(best[0].x):.1f} {y_of(best[0].y):.1f}"
        path += "".join(f"H{x_of(point.x):.1f}V{y_of(point.y):.1f}" for point in best[1:])
        limits.append(
            svg.element("path", d=path, fill="none", stroke_width=1.5, stroke_opacity=0.7, **svg.stroke("weights"))
        )
    return svg.frame(
        title,
        width,
        height,
        svg.small(0, 12, y.title),
        svg.small(right, height - 6, x.title, anchor="end"),
        svg.horizontal_axis(x.ticks, x_of, top, bottom),
        rows,
        *limits,
        *(_point(each, x_of, y_of, each in best) for each in sorted(points, key=lambda point: point.chosen)),
        *_names(named, x_of, y_of, SMALL if svg.is_narrow(width) else 12, taken),
    )


def _point(point: Point, x_of: Scale, y_of: Scale, on_front: bool) -> Markup:
    paint, shown = svg.fill("good" if point.chosen else "weights"), point.chosen or on_front
    if point.faded and not point.chosen:
        paint = {**svg.fill("paper"), **svg.stroke("soft"), "class_": "f-paper s-soft"}
    radius, opacity = 7 if point.chosen else 5 if on_front else 3.5, 1 if shown or point.faded else 0.45
    return _circle(x_of(point.x), y_of(point.y), radius, point.hint, paint, opacity=opacity, stops=shown)


def _circle(
    x: float, y: float, r: float, hint: str, paint: dict[str, str], *, opacity: float | None = None, stops: bool = True
) -> Markup:
    """Return a circle with its hint. stops: whether it can have the keyboard focus."""
    title, tabindex = svg.element("title", hint), "0" if stops else None
    place = {"cx": x, "cy": y, "r": r, "fill_opacity": opacity, "tabindex": tabindex}
    return svg.element("circle", title, **place, role="img", aria_label=hint, **paint)


def _names(
    points: Sequence[Point], x_of: Scale, y_of: Scale, size: float, taken: list[tuple[float, float, float, float]]
) -> list[Markup]:
    """Return labels of points, the chosen one first, each placed where nothing is drawn yet. taken: left, top, right
    and bottom of the drawn elements."""
    drawn: dict[str, Markup] = {}
    for point in sorted(points, key=lambda point: (not point.chosen, -point.y)):
        if point.label in drawn:
            continue
        long, x0, y0 = svg.text_width(point.label, size), x_of(point.x), y_of(point.y)
        beside = (x0 - long / 2, y0 - 11), (x0 - long - 14, y0 + 4), (x0 + 11, y0 + 4), (x0 - long / 2, y0 + 20)
        for x, y in (*beside, (x0 - long, y0 - 11), (x0 - long, y0 + 20)):
            spot = (x, y - size, x + long, y + 2)
            is_free = not any(x < r and x + long > left and y - size < b and y + 2 > t for left, t, r, b in taken)
            if x_of.start <= x and x + long <= x_of.end and is_free:
                taken.append(spot)
                ink = "good" if point.chosen else "text"
                drawn[point.label] = svg.label(x, y, point.label, bold=point.chosen, ink=ink, size=size)
                break
    return list(drawn.values())


def draw_all(cluster: Cluster, every: Sequence[Series], width: int = WIDE) -> Markup:
    """Return the charts of all series, one below the other."""
    drawn = [draw_series(cluster, series, width) for series in every]
    placed = (svg.element("g", each, transform=f"translate(0 {_HEIGHT * row:g})") for row, each in enumerate(drawn))
    return svg.frame(
        "Speed and memory against " + ", ".join(each.title for each in every), width, _HEIGHT * len(drawn), *placed
    )


def draw_series(cluster: Cluster, series: Series, width: int = WIDE) -> Markup:
    """Return the chart of one series as SVG."""
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

    def panel(values: Mapping[int, float], y_of: Scale) -> Iterator[Markup]:
        yield svg.curve((x_of(index), y_of(value)) for index, value in values.items())
        for index, value in values.items():
            ink, radius = ("good", 6) if index == series.own else ("weights", 4)
            yield _circle(x_of(index), y_of(value), radius, hints[index], svg.fill(ink))

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
        *panel(speeds, speed_y),
        *panel(sizes, size_y),
    )


def _strategies(series: Series, x_of: Scale, top: float, bottom: float) -> list[Markup]:
    """Return the name of each strategy above its first value, with a line where it begins."""
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
