"""Areas over a run as SVG: a column for every two pixels, the peak with its figure, and the names of the stretches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..document.charts import Lines, Panel
from ..document.timeline import highest_in_columns, stretch_names
from . import canvas as svg
from .canvas import SMALL, Markup, Scale

_COLUMN = 2.0
"""Width of a column in pixels: a narrower peak is hardly seen."""

_ROW = 14.0
"""Height of a row of names."""


def areas(panel: Panel, xs: Sequence[float], x_of: Scale, y_of: Scale) -> Iterator[Markup]:
    """Yield each layer as the area between the sum of the layers below and its own sum, in steps, and a mark at the
    peak with its figure. A column has the highest position of its interval."""
    positions = [[value or 0 for value in column] for column in zip(*panel.layers.values(), strict=True)]
    totals = panel.sums
    columns = max(1, int((x_of.end - x_of.start) / _COLUMN))
    highest = highest_in_columns(xs, totals, columns)
    sums = [list(accumulate(positions[at], initial=0)) for at in (*highest, highest[-1])]
    places = [x_of.start + (x_of.end - x_of.start) * column / columns for column in range(columns + 1)]
    outlines = [_steps(places, [y_of(row[level]) for row in sums]) for level in range(len(panel.layers) + 1)]
    for ink, (below, above) in zip(panel.layers, pairwise(outlines), strict=True):
        path = f"M{' '.join(above)}L{' '.join(reversed(below))}Z"
        yield svg.element("path", d=path, fill_opacity=0.88, **svg.fill(ink))
    peak = max(range(columns), key=lambda column: sums[column][-1])
    x, y = places[peak] + _COLUMN / 2, y_of(sums[peak][-1])
    words = f"{panel.unit.figure(max(totals))} {panel.unit.title}".strip()
    yield svg.element("path", d=f"M{x:.1f} {y:.1f}l-4 -7h8z", **svg.fill("text"))
    long = svg.text_width(words, SMALL)
    yield svg.label(min(x + 7, x_of.end - long), y - 1, words, size=SMALL, bold=True)


def _steps(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """Return a line that changes its height at the next point; points without a change are left out."""
    points: list[tuple[float, float]] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if index and abs(y - points[-1][1]) < 0.05 and index < len(xs) - 1:
            continue
        if index:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [f"{x:.2f},{y:.1f}" for x, y in points]


class NamesBelow(NamedTuple):
    """The names of the stretches of a run below its areas: a row of words, and one of iterations."""

    rows: list[list[tuple[str, float]]]
    iterations: list[float]
    """Where they begin."""
    key: list[tuple[str, str]]
    """Entries of the legend, without a square: what initials and bare numbers stand for."""

    @classmethod
    def of(cls, chart: Lines, x_of: Scale) -> NamesBelow:
        found = stretch_names([(x_of(x), name) for x, name in chart.spans], x_of.end, _room)
        rows = [[*_apart(names)] for names in (found.words, found.numbers) if names]
        meanings = [("", f"{short}: {meaning}") for short, meaning in found.meanings.items()]
        meanings += [("", f"without a name: {', '.join(found.unnamed)}")] * bool(found.unnamed)
        return cls(rows, [place for _, place in found.numbers], meanings)

    @property
    def height(self) -> float:
        return _ROW * len(self.rows)

    def drawn(self, x_of: Scale, top: float, bottom: float) -> Iterator[Markup]:
        """Yield the names below the axis, and a line at the beginning of each iteration."""
        for place in self.iterations:
            if place > x_of.start:
                yield svg.line(place, top, place, bottom + 4 + self.height, "soft")
        for row, names in enumerate(self.rows, start=1):
            for words, place in names:
                yield svg.small(place + 2, bottom + _ROW * row, words, ink="text")


def _room(words: str) -> float:
    """Return the width of a name with the space around it."""
    return svg.text_width(words, SMALL) + 6


def _apart(names: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Yield the names in their order, without those whose place is taken."""
    free = 0.0
    for words, place in sorted(names, key=lambda name: name[1]):
        if place >= free:
            yield words, place
            free = place + _room(words)
