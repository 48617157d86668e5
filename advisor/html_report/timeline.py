"""The GPU's memory over a dry run: areas that add up, phase by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise

from ...probes.recording.result import TimelinePoint
from ..text.labels import MEMORY_FAMILIES, memory_by_family
from ..text.units import gib
from . import canvas as svg
from .canvas import GIB, SMALL, WIDE, Markup, Scale

_FROM_THE_BOTTOM = ("weights", "optimizer", "runtime", "gradients", "activations", "loss", "generation", "buffers")
"""Families that stay at the bottom, those that come and go above them."""


def draw_timeline(points: Sequence[TimelinePoint], width: int = WIDE, *, limit_bytes: int) -> Markup:
    """The chart as SVG. Its horizontal axis counts allocations and frees; a script can show a stretch of it alone."""
    rows = [memory_by_family(point.by_category) for point in points]
    present = {family for row in rows for family in row}
    families = [family for family in dict.fromkeys((*_FROM_THE_BOTTOM, *MEMORY_FAMILIES)) if family in present]
    keys, taken = svg.legend(families, width)
    top, bottom, right = taken + 24.0, taken + (210.0 if svg.is_narrow(width) else 270.0), width - 4.0
    highest = max(point.gpu_bytes for point in points)
    is_near = limit_bytes < 1.6 * highest
    most = 1.08 * max(highest, limit_bytes * is_near) or 1.0
    values = svg.ticks(svg.round_steps(most, 5, GIB.size), GIB.write, GIB.title)
    axis, left, y_of = svg.vertical_axis(values, (0, most), top, bottom, right)
    x_of = Scale(points[0].event, max(points[-1].event, points[0].event + 1), left, right)
    spans, names = zip(*_phases(points, x_of, top, bottom), strict=True)
    y = y_of(limit_bytes)
    return svg.frame(
        "GPU memory over the run, by what it is",
        width,
        bottom + 26,
        keys,
        axis,
        svg.element(
            "svg",
            *_areas([point.event for point in points], rows, families, x_of, y_of),
            *spans,
            class_="stretch",
            x=left,
            y=0,
            width=right - left,
            height=bottom,
            viewBox=f"{left:g} 0 {right - left:g} {bottom:g}",
            preserveAspectRatio="none",
        ),
        *names,
        svg.line(left, y, right, y, "limit") if is_near else None,
        svg.small(right - 4, y - 5, f"{gib(limit_bytes)} GiB per GPU", anchor="end", ink="limit") if is_near else None,
        svg.small(right, bottom + 18, "allocations and frees, in their order", anchor="end"),
    )


def _areas(
    times: Sequence[int], rows: Sequence[dict[str, int]], families: Sequence[str], x_of: Scale, y_of: Scale
) -> Iterator[Markup]:
    """Each family between the sum of those beneath it and its own; memory changes in steps, so areas do too."""
    sums = [list(accumulate((row.get(family, 0) for family in families), initial=0)) for row in rows]
    xs = [x_of(time) for time in times]
    outlines = [_steps(xs, [y_of(row[level]) for row in sums]) for level in range(len(families) + 1)]
    for family, (below, above) in zip(families, pairwise(outlines), strict=True):
        path = f"M{' '.join(above)}L{' '.join(reversed(below))}Z"
        yield svg.element("path", d=path, fill_opacity=0.88, **svg.fill(family))


def _steps(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """A line that changes its height at the next point; points on a level are left out."""
    points: list[tuple[float, float]] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if index and abs(y - points[-1][1]) < 0.05 and index < len(xs) - 1:
            continue
        if index:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [f"{x:.2f},{y:.1f}" for x, y in points]


def _phases(points: Sequence[TimelinePoint], x_of: Scale, top: float, bottom: float) -> Iterator[tuple[Markup, Markup]]:
    """(the phase's area with its hint, its name, hidden where there is no room)."""
    groups = [list(own) for _, own in groupby(points, key=lambda point: (point.iteration, point.phase))]
    ends = [own[0].begins for own in groups[1:]] + [points[-1].event + 1]
    free = 0.0
    for own, end in zip(groups, ends, strict=True):
        peak, begins, ends_at = max(own, key=lambda point: point.gpu_bytes), x_of(own[0].begins), x_of(end)
        name = f"{peak.phase} {peak.iteration}" if peak.iteration else peak.phase
        parts = sorted(peak.by_category.items(), key=lambda pair: -pair[1])
        words = [f"{part} {gib(size)} GiB" for part, size in parts if size >= 2**20]
        hint = "\n".join([f"{name}: at most {gib(peak.gpu_bytes)} GiB", *words])
        area = svg.element(
            "rect",
            svg.element("title", hint),
            x=begins,
            y=top - 18,
            width=max(0.5, ends_at - begins),
            height=bottom - top + 18,
            fill_opacity=0,
            **svg.fill("paper"),
        )
        fits = begins + 3 >= free and begins + 3 + svg.text_width(name, SMALL) <= ends_at
        free = begins + 7 + svg.text_width(name, SMALL) if fits else free
        label = svg.element("g", svg.small(begins + 3, top - 7, name), opacity=None if fits else 0, class_="phase")
        edge = svg.line(begins, top - 4, begins, bottom)
        yield svg.element("g", svg.joined(edge, area), tabindex="0", role="img", aria_label=hint), label
