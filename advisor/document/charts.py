"""Charts as plain data: stacked bars, lines over steps or values, and points. `html_report` draws them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, floor, log10
from typing import Final, NamedTuple, TypeAlias

from ..text.units import SMALL_BYTES, gib, mib


class Unit(NamedTuple):
    """Unit of an axis: tick values are round in this unit, and labels are written in it. exact: writes the figure of a
    part; None writes its share."""

    title: str
    size: float
    exact: Callable[[float], str] | None = None

    def write(self, value: float) -> str:
        figure = value / self.size
        return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.4g}"

    def figure(self, value: float) -> str:
        """Return a value as in a table."""
        return (self.exact or self.write)(value)

    def part(self, value: float) -> str:
        """Return a value of which a part that is shown as 0 is distinct from nothing."""
        return "0" if not value else "<0.01" if value < 0.005 * self.size else self.figure(value)


GIB: Final = Unit("GiB", 2**30, lambda size: gib(int(size)))
MIB: Final = Unit("MiB", 2**20, lambda size: mib(int(size)))
MS: Final = Unit("ms", 1e-3)
NUMBER: Final = Unit("", 1)


def memory_unit(largest_bytes: float) -> Unit:
    """Return GiB, or MiB if the largest size of a table or chart is small."""
    return MIB if largest_bytes < SMALL_BYTES else GIB


def time_unit(longest_s: float) -> Unit:
    """Return seconds, or milliseconds if the longest time is below a second."""
    return Unit("s", 1) if longest_s >= 1 else MS


class Limit(NamedTuple):
    """A value that is drawn as a dashed line with a label."""

    value: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a bar. ink: a name of the palette. hint: text shown on hover. source: further lines of it, the same in
    every language."""

    name: str
    value: float
    ink: str
    hint: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of the chart. note: figure at the bar's end. words: description for screen readers."""

    label: str
    parts: tuple[Part, ...]
    note: str
    words: str = ""
    chosen: bool = False
    faded: bool = False

    @cached_property
    def value(self) -> float:
        return sum(part.value for part in self.parts)

    def family_sizes(self, families: Iterable[str]) -> dict[str, float]:
        """Return the sum of the parts of each family, in this order; a family without parts is left out."""
        sizes = {family: sum(part.value for part in self.parts if part.ink == family) for family in families}
        return {family: size for family, size in sizes.items() if size}


@dataclass(frozen=True, kw_only=True)
class StackedBars:
    """Bars in their order, on a common scale from 0."""

    title: str
    bars: tuple[Bar, ...]
    unit: Unit = GIB
    limit: Limit | None = None
    ends_at: float | None = None
    """End of the scale, at which longer bars are cut; None selects the longest bar."""
    families: Mapping[str, str] = field(default_factory=dict)
    """Titles by ink, in the order of the legend and of each bar's parts; without them there is no legend."""

    @property
    def is_cut(self) -> bool:
        """Whether a bar is longer than the scale."""
        return self.ends_at is not None and any(bar.value > self.ends_at for bar in self.bars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Values of one figure over the common horizontal axis. areas: whether its layers are stacked as areas, which
    change in steps; otherwise it has one layer, a line."""

    title: str
    layers: Mapping[str, Sequence[float | None]]
    """Values by ink, from the bottom; None: no value, which only a line can have."""
    unit: Unit = NUMBER
    limit: Limit | None = None
    areas: bool = False

    @property
    def sums(self) -> list[float]:
        """The sum of the layers at each position."""
        return [sum(value or 0 for value in column) for column in zip(*self.layers.values(), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Panels one below the other."""

    title: str
    x_title: str
    xs: Sequence[float]
    panels: Sequence[Panel]
    labels: Sequence[str] | None = None
    """A label for each position, or none; None selects round numbers of `x_unit`."""
    x_unit: Unit = NUMBER
    x_limit: Limit | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    """Titles by ink of the areas, in the order of the legend."""
    hints: Sequence[str] = ()
    """Text on hover for each position, which then has a point."""
    own: int | None = None
    """The emphasized position."""
    hollow: Collection[int] = ()
    """Positions whose points are not filled: they cannot be had as asked."""
    spans: Sequence[tuple[float, str]] = ()
    """Names of stretches, each with its beginning: below the panels of areas, otherwise above them."""


class Point(NamedTuple):
    """A point; mark: a letter that names it, "" for one of many."""

    x: float
    y: float
    mark: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points over two logarithmic axes, of positive values."""

    title: str
    points: Sequence[Point]
    x_unit: Unit
    y_unit: Unit

    @property
    def in_drawing_order(self) -> list[Point]:
        """The points, those with a mark last, at the end the chosen one: later ones cover earlier ones."""
        return sorted(self.points, key=lambda point: (bool(point.mark), point.chosen))


def log_ticks(values: Sequence[float], unit: Unit) -> dict[float, str]:
    """Return round values within the range of a logarithmic axis, with their names: 1, 2 and 5 of each power of ten;
    the ends of a range that has fewer than two."""
    low, high = min(values) / unit.size, max(values) / unit.size
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    if len(steps) < 2:
        steps = [low, high]
    return {step * unit.size: f"{float(f'{step:.2g}'):,g} {unit.title}".strip() for step in steps}


Drawing: TypeAlias = StackedBars | Lines | Points
