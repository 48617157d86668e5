"""Bars that are made of parts, one beneath the other, against a limit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .canvas import (
    SMALL,
    WIDE,
    Markup,
    box,
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
    text_width,
)

_SHADES = (1.0, 0.78, 0.6)
"""Opacities that tell neighbours of one family apart."""

_LEAST_WIDTH = 0.4
"""Pixels below which a part is not drawn; its figure is in the bar's words all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a bar. ink: a name of the palette. hint: what a pointer that rests on it tells."""

    name: str
    value: float
    ink: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row. note: the figure at its end. words: the row for those who do not see it."""

    label: str
    parts: tuple[Part, ...]
    note: str
    words: str = ""
    chosen: bool = False
    faded: bool = False

    @property
    def value(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBars:
    """Rows in their order, on one scale that begins at 0."""

    title: str
    bars: tuple[Bar, ...]
    unit: str
    write: Callable[[float], str]
    """A value of the axis as text."""
    counts_in: float = 1
    """The axis has values that are round when counted in this, such as the bytes of a GiB."""
    limit: float | None = None
    limit_words: str = ""
    ends_at: float | None = None
    """The scale's end, where longer bars are cut; None: the longest bar."""
    inks: tuple[str, ...] = ()
    """The families in the order of the legend, and of the parts of every bar."""

    @property
    def shows_limit(self) -> bool:
        """Whether the limit lies within the scale."""
        return self.limit is not None and self.limit <= self.scale

    @property
    def scale(self) -> float:
        longest = max((bar.value for bar in self.bars), default=0.0)
        end = max(longest, self.limit or 0.0) if self.ends_at is None else self.ends_at
        return end or 1.0


def draw_stacked_bars(chart: StackedBars, width: int = WIDE) -> Markup:
    """The chart as SVG; where it is narrow, each row's label stands above its bar."""
    narrow = is_narrow(width)
    left = 0.0 if narrow else min(190.0, 26 + max((text_width(bar.label) for bar in chart.bars), default=0))
    right = 12 + max((text_width(bar.note) for bar in chart.bars), default=0)
    span = width - left - (10 if narrow else right)
    row = 40 if narrow else 28
    keys, used = legend(_used(chart), width, 0)
    top = used + (20 if chart.shows_limit else 4)
    bottom = top + row * len(chart.bars)

    scale = chart.scale

    def x_of(value: float) -> float:
        return left + span * min(1.0, value / scale)

    steps = [value for value in round_steps(scale, 4 if narrow else 7, chart.counts_in) if value <= scale]
    tops = [top + row * index for index in range(len(chart.bars))]
    rows = [_row(bar, chart, x_of, y, width, narrow) for bar, y in zip(chart.bars, tops, strict=True)]
    return frame(
        chart.title,
        width,
        bottom + 24,
        keys,
        horizontal_axis(steps, x_of, top, bottom, chart.unit, chart.write),
        *rows,
        _limit(chart, x_of, top, [(y + 18, y + 36) for y in tops] if narrow else [(top - 4, bottom)], width),
    )


def _used(chart: StackedBars) -> list[str]:
    inks = [part.ink for bar in chart.bars for part in bar.parts if part.value > 0]
    order = [*chart.inks, *inks]
    return [ink for ink in dict.fromkeys(order) if ink in inks]


def _row(bar: Bar, chart: StackedBars, x_of: Callable[[float], float], y: float, width: int, narrow: bool) -> Markup:
    """One bar with its label and its figure; a keyboard stops at it."""
    thick, above = (14, 20) if narrow else (16, 6)
    cut = bar.value > chart.scale
    marks = [box(0, y + 1, width, (38 if narrow else 28) - 2, "band")] if bar.chosen else []
    marks += [element("g", *_parts(bar, chart, x_of, y + above, thick), opacity=0.42 if bar.faded else None)]
    end = x_of(bar.value)
    if cut:
        marks.append(_tear(end, y + above, thick))
    ink = "good" if bar.chosen else "soft" if bar.faded else "text"
    if bar.chosen:
        marks.append(element("path", d=f"M4 {y + (4.5 if narrow else 9):g}l8 5-8 5z", **fill("good")))
    if narrow:
        marks.append(label(16 if bar.chosen else 2, y + 14, bar.label, ink=ink, bold=bar.chosen, size=12.5))
        marks.append(label(width - 2, y + 14, bar.note, anchor="end", ink=ink, bold=bar.chosen, size=12.5))
    else:
        marks.append(label(16, y + 19, bar.label, ink=ink, bold=bar.chosen))
        marks.append(label(_free(end + 8, bar.note, chart, x_of), y + 19, bar.note, ink=ink, bold=bar.chosen))
    return element(
        "g", *marks, tabindex="0", role="img", aria_label=bar.words or f"{bar.label}: {bar.note}", class_="row"
    )


def _free(x: float, note: str, chart: StackedBars, x_of: Callable[[float], float]) -> float:
    """Where a note may begin at x or to the right of it, so that the limit's line does not cross it."""
    if not chart.shows_limit:
        return x
    assert chart.limit is not None
    limit = x_of(chart.limit)
    return limit + 8 if x - 2 < limit < x + text_width(note) + 4 else x


def _parts(bar: Bar, chart: StackedBars, x_of: Callable[[float], float], y: float, thick: float) -> list[Markup]:
    order = {ink: index for index, ink in enumerate(chart.inks)}
    parts = sorted(bar.parts, key=lambda part: (order.get(part.ink, len(order)), -part.value))
    drawn, before, seen = [], 0.0, Counter[str]()
    for part in parts:
        begins, ends = x_of(before), x_of(before + part.value)
        before += part.value
        shade = _SHADES[seen[part.ink] % len(_SHADES)]
        if ends - begins >= _LEAST_WIDTH:
            seen[part.ink] += 1
            gap = 0.8 if ends - begins > 3 else 0
            drawn.append(box(begins, y, ends - begins - gap, thick, part.ink, opacity=shade, hint=part.hint))
    return drawn


def _tear(x: float, y: float, thick: float) -> Markup:
    """Two slanted lines: the bar goes on beyond the picture."""
    return element("path", d=f"M{x - 9:.1f} {y + thick + 2:.1f}l5 {-thick - 4}h4l-5 {thick + 4}z", **fill("paper"))


def _limit(
    chart: StackedBars,
    x_of: Callable[[float], float],
    top: float,
    stretches: Sequence[tuple[float, float]],
    width: int,
) -> Markup | None:
    """The limit's words, and its line over some stretches of the height: where figures stand above bars, not over
    them."""
    if not chart.shows_limit:
        return None
    assert chart.limit is not None
    x = x_of(chart.limit)
    half = text_width(chart.limit_words, SMALL) / 2
    middle = min(max(x, half + 2), width - half - 2)
    return joined(
        *(line(x, begins, x, ends, "limit", dashed=True, width=1.5) for begins, ends in stretches),
        label(middle, top - 8, chart.limit_words, anchor="middle", ink="limit", size=SMALL),
    )


_BIN = 1.0
"""Pixels of which what ran the longest is drawn: a step has a hundred thousand spans, a screen a thousand pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpan:
    """Something that ran. ink: a name of the palette."""

    name: str
    ink: str
    begins: float
    ends: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What ran on one lane, in its order, without overlaps."""

    name: str
    spans: tuple[LaneSpan, ...]

    @property
    def busy(self) -> float:
        return sum(span.ends - span.begins for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Lanes over the same time, which begins at 0."""

    title: str
    lanes: tuple[Lane, ...]
    ends_at: float
    write: Callable[[float], str]


def draw_lanes(chart: Lanes, width: int = WIDE) -> Markup:
    """The chart as SVG."""
    narrow = is_narrow(width)
    left = 0.0 if narrow else 12 + max((text_width(lane.name) for lane in chart.lanes), default=0)
    row = 42 if narrow else 30
    used = dict.fromkeys(span.ink for lane in chart.lanes for span in lane.spans)
    keys, taken = legend(list(used), width, 0)
    top = taken + 4
    bottom = top + row * len(chart.lanes)
    span = width - left - 26

    def x_of(value: float) -> float:
        return left + span * value / chart.ends_at

    steps = [value for value in round_steps(chart.ends_at, 3 if narrow else 6) if value <= chart.ends_at]
    rows = []
    for index, lane in enumerate(chart.lanes):
        y = top + index * row
        bar = y + (20 if narrow else 5)
        words = f"{lane.name}: busy {chart.write(lane.busy)} of {chart.write(chart.ends_at)}"
        rows.append(
            element(
                "g",
                element("title", words),
                label(0, y + (14 if narrow else 19), lane.name, size=12.5 if narrow else 13),
                line(left, bar + 18, width - 26, bar + 18, "grid"),
                *_runs(lane, x_of, bar, 18),
                tabindex="0",
                role="img",
                aria_label=words,
            )
        )
    return frame(
        chart.title,
        width,
        bottom + 24,
        keys,
        horizontal_axis(steps, x_of, top, bottom, "", chart.write),
        *rows,
    )


def _runs(lane: Lane, x_of: Callable[[float], float], y: float, height: float) -> list[Markup]:
    """A path for each ink: the stretches of pixels that it fills the most of."""
    filled = _by_pixel(lane.spans, x_of)
    paths: dict[str, list[str]] = defaultdict(list)
    stretches: list[tuple[int, int, str]] = []
    for pixel in sorted(filled):
        ink = filled[pixel]
        if stretches and stretches[-1][1] == pixel and stretches[-1][2] == ink:
            stretches[-1] = (stretches[-1][0], pixel + 1, ink)
        else:
            stretches.append((pixel, pixel + 1, ink))
    for begins, ends, ink in stretches:
        paths[ink].append(f"M{begins} {y:g}h{ends - begins}v{height:g}h-{ends - begins}z")
    return [element("path", d="".join(path), **fill(ink)) for ink, path in paths.items()]


def _by_pixel(spans: Sequence[LaneSpan], x_of: Callable[[float], float]) -> dict[int, str]:
    """The ink of each pixel that is filled for a quarter at least."""
    shares: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        begins, ends = x_of(span.begins) / _BIN, x_of(span.ends) / _BIN
        for pixel in range(int(begins), int(ends) + 1):
            share = min(ends, pixel + 1) - max(begins, pixel)
            if share > 0:
                shares[pixel][span.ink] += share
    return {
        pixel: max(by_ink, key=lambda ink: by_ink[ink])
        for pixel, by_ink in shares.items()
        if sum(by_ink.values()) >= 0.25
    }
