"""Charts of two quantities: the loss over steps, and points with their front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...estimators.hardware import Cluster
from ..search.candidate import Candidate
from ..text.labels import device_label, shape_label
from ..text.units import gib, rate
from .canvas import (
    GIB,
    SMALL,
    WIDE,
    Markup,
    Scale,
    curve,
    element,
    fill,
    frame,
    horizontal_axis,
    is_narrow,
    label,
    round_steps,
    small,
    stroke,
    text_width,
    vertical_axis,
    vertical_limit,
)

_MOST_POINTS = 1000
"""Points of a curve; of more, evenly spaced ones are drawn."""

MOST_MEMORY = 2.0
"""Plans that need more than this multiple of the GPU's memory are not drawn, or cut."""

_LEAST_NAMED = 0.3
"""Points of the front below this share of its highest have no name, since they are crowded at the foot."""


def draw_losses(losses: Sequence[tuple[int, float]], width: int = WIDE) -> Markup:
    """The loss of each step, by rising step, as SVG; both scales begin at 0."""
    height, top, right = 200.0 if is_narrow(width) else 240.0, 24.0, width - 12
    every = -(-len(losses) // _MOST_POINTS) or 1
    points = [*losses[::every], *losses[-1:]] if every > 1 else losses
    highest, last = 1.08 * max(loss for _, loss in points) or 1.0, points[-1][0] or 1
    rows, left, y_of = vertical_axis(round_steps(highest, 4), highest, top, height - 40, right, "{:g}".format)
    x_of = Scale(0, last, left, right)
    steps = [value for value in round_steps(last, 4 if is_narrow(width) else 7) if value == int(value)]
    return frame(
        "Loss by step",
        width,
        height,
        small(0, 12, "loss"),
        small(right, height - 6, "step", anchor="end"),
        horizontal_axis(steps, x_of, top, height - 40, "{:g}".format),
        rows,
        curve((x_of(step), y_of(loss)) for step, loss in points),
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


Spot = tuple[float, float, float, float]
"""Left, top, right and bottom of what is drawn."""


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in one quantity without losing in the other, by rising x and y."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def draw_speed_against_memory(
    plans: Sequence[Candidate], width: int = WIDE, *, cluster: Cluster, chosen: Candidate | None
) -> Markup:
    """Every plan as a point, as SVG; those that need more than twice the GPU's memory are left out."""
    narrow, limit, device = is_narrow(width), cluster.gpu.memory_bytes, device_label(cluster)
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
    height, top, right = 230.0 if narrow else 300.0, 34.0, width - 12.0
    bottom, end = height - 40, 1.05 * max([limit, *(point.x for point in points)])
    best = front(points)
    highest = 1.12 * max((point.y for point in points), default=1.0) or 1.0
    steps = round_steps(highest, 5)
    rows, left, y_of = vertical_axis(steps, highest, top, bottom, right, lambda speed: rate(speed) if speed else "0")
    x_of = Scale(0, end, left, right)
    x = x_of(limit)
    taken = [*spots(points, x_of, y_of), (x - 3, top, x + 3, bottom)]
    named = [point for point in best if point.y >= _LEAST_NAMED * best[-1].y]
    return frame(
        f"Speed against memory per {device} of every plan, and the plans that no other beats in both",
        width,
        height,
        small(0, 12, "tokens/s"),
        small(right, height - 6, f"GiB per {device}", anchor="end"),
        horizontal_axis(round_steps(end, 4 if narrow else 7, GIB.size), x_of, top, bottom, GIB.write),
        rows,
        vertical_limit(x, f"{gib(limit)} GiB per {device}", top - 8, [(top - 4, bottom)], width),
        _front_line(best, x_of, y_of),
        *draw_points(points, best, x_of, y_of),
        *draw_names(named, x_of, y_of, SMALL if narrow else 12, taken),
    )


def _front_line(best: Sequence[Point], x_of: Scale, y_of: Scale) -> Markup | None:
    """Steps from point to point: between two of them there is nothing better."""
    if len(best) < 2:
        return None
    path = f"M{x_of(best[0].x):.1f} {y_of(best[0].y):.1f}"
    path += "".join(f"H{x_of(point.x):.1f}V{y_of(point.y):.1f}" for point in best[1:])
    return element("path", d=path, fill="none", stroke_width=1.5, stroke_opacity=0.7, **stroke("weights"))


def spots(points: Sequence[Point], x_of: Scale, y_of: Scale) -> list[Spot]:
    """Where points are drawn."""
    centers = [(x_of(point.x), y_of(point.y)) for point in points]
    return [(x - 6, y - 6, x + 6, y + 6) for x, y in centers]


def draw_points(points: Sequence[Point], best: Sequence[Point], x_of: Scale, y_of: Scale) -> Iterator[Markup]:
    """Points with their hints, those of the front larger, the chosen one last."""
    for point in sorted(points, key=lambda point: point.chosen):
        yield _point(point, x_of, y_of, point in best)


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


def draw_names(
    points: Sequence[Point], x_of: Scale, y_of: Scale, size: float, drawn_at: Sequence[Spot]
) -> list[Markup]:
    """Names of points, the chosen first, each where nothing is drawn or written yet."""
    taken = list(drawn_at)
    drawn: dict[str, Markup] = {}
    for point in sorted(points, key=lambda point: (not point.chosen, -point.y)):
        if point.label in drawn:
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
