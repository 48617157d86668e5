"""What ran when on several lanes of one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .canvas import WIDE, fill, frame, horizontal_axis, is_narrow, label, legend, line, round_steps, text_width
from .markup import Markup, element

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
