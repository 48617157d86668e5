"""Charts on a terminal: stacked bars with a mark at their limit, stacked areas over a run, and points.

Each family has its colour and its pattern, or without block characters its initial letter: colours alone would be lost
in a copy of the text. Only areas, which are drawn in eighths of a row, are solid where there are colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from math import log
from operator import itemgetter

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..text.language import can_encode
from ..text.lines import LONGEST, NARROWEST, SPARKS, WIDTH, padded, row, sentence
from ..text.units import FIRM, percent
from .charts import Drawing, Limit, Lines, Points, StackedBars, log_ticks
from .timeline import column_of, highest_in_columns, stretch_names

_INKS = {
    "weights": ("█", "bright_blue"),  # blue is nearly black on a dark terminal, and red is for what is wrong
    "gradients": ("▀", "green"),
    "optimizer": ("▓", "yellow"),
    "loss": ("▒", "color(99)"),
    "activations": ("▚", "cyan"),
    "buffers": ("▄", "color(168)"),
    "generation": ("░", "bright_magenta"),
    "runtime": ("═", "bright_black"),
    "compute": ("█", "bright_blue"),
    "memory": ("▀", "green"),
    "links": ("▒", "color(99)"),
    "pcie": ("▚", "cyan"),
    "host": ("▓", "yellow"),
    "nvme": ("▄", "color(168)"),
    "launch": ("═", "bright_black"),
    "other": ("·", ""),
}
"""Pattern and colour of each family."""

_LETTERS = {"generation": "K", "launch": "=", "other": "."}
"""Characters of families whose initial is another family's."""

_LEAST_SHARE = 0.03
"""Families below this share of a lone bar are drawn as one if there are several and the chart has a family for them: a
bar has about 68 characters."""

_LEAST_BAR = 24
"""Columns of the shortest bar that stands beside its label and its figure; otherwise they stand above it."""

_LEAST_ROWS, _MOST_ROWS = 6, 16
"""Height of areas: a higher terminal shows more, up to a height above which the shape does not become clearer."""

_OTHER_LINES = 14
"""Lines of a terminal that are left for what stands around a chart."""


class _Pen:
    """What a terminal can draw."""

    def __init__(self, console: Console, *, is_area: bool = False) -> None:
        self.console = console
        self.has_blocks = can_encode(console, "│╌»•" + SPARKS + "".join(pattern for pattern, _ in _INKS.values()))
        self.is_solid = is_area and self.has_blocks and console.color_system is not None and not console.no_color
        marks = tuple("│╌»▁•" if self.has_blocks else "|->_.")
        self.mark, self.line, self.cut, self.low, self.dot = marks

    def fill(self, ink: str) -> tuple[str, str]:
        """Return the character and the style of a family."""
        pattern, colour = _INKS[ink]
        if not self.has_blocks:
            return _LETTERS.get(ink, ink[0].upper()), ""
        return ("█" if self.is_solid and colour else pattern), colour

    def legend(self, titles: Mapping[str, str], limit: str = "") -> None:
        """Print the families, and the words of the limit. Titles that would each take a line are broken."""
        longest = max(map(cell_len, titles.values()), default=0)
        firm = FIRM if 2 * (longest + 4) < self.console.width else " "
        text = Text()
        for ink, title in titles.items():
            filling, style = self.fill(ink)
            words, *figure = title.rsplit(" ", 2)
            text.append(filling + FIRM, style=style)
            text.append(FIRM.join([words.replace(" ", firm), *figure]) + "  ")
        if limit:
            text.append(f"{self.mark}{FIRM}{limit.replace(' ', FIRM)}")
        if text.plain.strip():
            sentence(self.console, text)


def draw(chart: Drawing, console: Console) -> None:
    """Print a chart."""
    match chart:
        case StackedBars():
            _draw_bars(chart, _Pen(console))
        case Points():
            _draw_points(chart, _Pen(console))
        case _:
            _draw_areas(chart, _Pen(console, is_area=True))


_EIGHTH_PARTS = " ▏▎▍▌▋▊▉"

_LONGEST_METER = 30
"""Most columns of a bar in a table."""


def meter(share: float, ink: str, columns: int, console: Console) -> Text:
    """Return a bar of `share` of the columns in the colour of a family."""
    columns, (_, style) = min(columns, _LONGEST_METER), _Pen(console).fill(ink)
    if not can_encode(console, _EIGHTH_PARTS):
        return Text("#" * round(share * columns), style=style)
    whole, eighths = divmod(round(share * columns * 8), 8)
    return Text(("█" * whole + _EIGHTH_PARTS[eighths]).rstrip(), style=style)


def _draw_bars(chart: StackedBars, pen: _Pen) -> None:
    """Print the bars on one scale and the legend: a lone bar without a label has its figures there, and the limit's at
    its end, or below the mark of a limit that it exceeds."""
    alone, exact = len(chart.bars) == 1 and not chart.bars[0].label, chart.unit.exact
    every = {part.ink: "" for bar in chart.bars for part in bar.parts}
    sizes = [bar.family_sizes(chart.families or every) for bar in chart.bars]
    if alone and "other" in chart.families:
        sizes = [_without_small(sizes[0])]
    limit, longest = chart.limit, max((bar.value for bar in chart.bars), default=0.0)
    scale = chart.ends_at or max(longest, limit.value if limit else 0.0) or 1.0
    limit = limit if limit and limit.value <= scale else None
    end = words = ""
    if limit and alone:
        words = f"{exact(limit.value) if exact else chart.unit.write(limit.value)} {chart.unit.title}"
        end = f" {words}" if limit.value == scale else ""
    whole = min(WIDTH, max(pen.console.width, NARROWEST)) - 4 - len(end)
    label, note = (max(cell_len(getattr(bar, text)) for bar in chart.bars) for text in ("label", "note"))
    gap = "" if all(bar.note[:1] in ("", " ") for bar in chart.bars) else " "
    room = whole - label - note - 4 - len(gap)
    beside = not alone and room >= _LEAST_BAR
    for bar, parts in zip(chart.bars, sizes, strict=True):
        style = "dim" if bar.faded else "bold green" if bar.chosen else ""
        drawn = _bar(parts, scale, room if beside else whole, limit, pen, style="dim" if bar.faded else "")
        if beside:
            name, figure = (padded(bar.label, -label), style), (f"{gap}{bar.note}", style)
            row(pen.console, Text.assemble("  ", name, "  ", drawn, figure))
            continue
        if not alone:
            row(pen.console, f"  {bar.label}  {bar.note}", style=style)
        row(pen.console, Text.assemble(" ", drawn, end))
        if limit and words and not end:  # below the mark
            at = 1 + round(limit.value / scale * whole)
            below = f"{words} {pen.mark}".rjust(at + 1) if at > len(words) else f"{' ' * at}{pen.mark} {words}"
            row(pen.console, below, style="bold red" if bar.value > limit.value else "bold")
    spans = [_spans(parts, scale, room if beside else whole) for parts in sizes]
    is_drawn = {ink for each in spans for ink, (begin, end) in each.items() if end > begin}
    titles = {ink: title for ink, title in chart.families.items() if ink in is_drawn}
    if alone:
        total = sum(sizes[0].values()) or 1
        figures = {ink: exact(size) if exact else percent(size / total) for ink, size in sizes[0].items()}
        named = is_drawn | {ink for ink, figure in figures.items() if figure != percent(0)}
        titles = {ink: f"{title} {figures[ink]}" for ink, title in chart.families.items() if ink in named & {*figures}}
    pen.legend(titles, limit.words if limit and not alone else "")


def _without_small(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the families with the small ones as other, if there are several."""
    shown, total = dict(sizes), sum(sizes.values())
    small = [ink for ink, size in sizes.items() if size < _LEAST_SHARE * total]
    if len(small) > 1 or "other" in shown:
        shown["other"] = sum(shown.pop(ink) for ink in small) + shown.get("other", 0)
    return shown


def _spans(sizes: Mapping[str, float], scale: float, columns: int) -> dict[str, tuple[int, int]]:
    """Return the first column and the end of each family in a bar; one that is too small for a column has none."""
    ends = [min(columns, round(end / scale * columns)) for end in accumulate(sizes.values(), initial=0)]
    return dict(zip(sizes, pairwise(ends), strict=True))


def _bar(sizes: Mapping[str, float], scale: float, columns: int, limit: Limit | None, pen: _Pen, *, style: str) -> Text:
    """Return a bar and the free columns after it, with a mark at the limit; a longer bar than the scale is cut."""
    drawn, end = Text(), 0
    for ink, (begin, end) in _spans(sizes, scale, columns).items():
        filling, colour = pen.fill(ink)
        drawn.append(filling * (end - begin), style=f"{style} {colour}".strip())
    total = sum(sizes.values())
    if total > scale * 1.0001:
        drawn = drawn[:-1] + Text(pen.cut, style="bold red")
    drawn.append(" " * (columns - end))
    if limit is not None:
        at = round(limit.value / scale * columns)
        drawn = drawn[:at] + Text(pen.mark, style="bold red" if total > limit.value else "bold") + drawn[at:]
    return drawn


def _draw_areas(chart: Lines, pen: _Pen) -> None:
    """Print the first panel: in each column the position with the largest sum of its interval, with the names of the
    stretches below. The legend has every family that is drawn; its name is also in its area if there is room."""
    (panel, *_), console = chart.panels, pen.console
    rows = max(_LEAST_ROWS, min(_MOST_ROWS, console.height - _OTHER_LINES))
    positions = [*zip(*panel.layers.values(), strict=True)]
    sums = panel.sums
    most = max(sums)
    top = max(most, panel.limit.value if panel.limit else 0) or 1
    write = panel.unit.figure
    limit_row = round(panel.limit.value / top * rows) - 1 if panel.limit else None
    names = {round(most / top * rows) - 1: write(most), 0: "0"}
    if panel.limit is not None and limit_row is not None:
        names[limit_row] = write(panel.limit.value)
    names[rows - 1] = f"{write(top)} {panel.unit.title}".strip()
    axis = max(map(len, names.values()))
    columns = min(LONGEST, max(console.width, NARROWEST)) - axis - 4
    highest = highest_in_columns(chart.xs, sums, columns)
    stacks = [[*accumulate((value or 0) / top * rows for value in positions[at])] for at in highest]
    fills = {ink: pen.fill(ink) for ink in panel.layers}
    grid = [
        [_cell(stack, level, [*fills.values()], pen, pen.line if level == limit_row else " ") for stack in stacks]
        for level in range(rows)
    ]
    drawn = {cell for line in grid for cell in line}
    styles = {style for _, style in drawn if pen.is_solid and style}  # a thin layer has no whole cell
    shown = {
        ink: title
        for ink, title in chart.families.items()
        if ink in fills and (fills[ink] in drawn or fills[ink][1] in styles)
    }
    for ink, title in shown.items():
        _write_into(grid, f" {title} ", fills[ink], pen)
    for level, line in reversed([*enumerate(grid)]):
        text = Text.assemble((f" {names.get(level, ''):>{axis}} {pen.mark}", "dim"), *line)
        text.rstrip()
        row(console, text)
    names_below, words = _names_below(chart, columns)
    for line_below in names_below:
        row(console, " " * (axis + 3) + line_below, style="dim")
    if words:
        sentence(console, "  ".join(f"{initial} {word}" for initial, word in words.items()), style="dim")
    pen.legend(shown)


def _write_into(grid: list[list[tuple[str, str]]], name: str, fill: tuple[str, str], pen: _Pen) -> None:
    """Write a name into the widest stretch of an area, the middle one of several, if there is room."""
    stretches = list[tuple[int, int, int]]()
    for level, line in enumerate(grid):
        end = 0
        for cell, same in groupby(line):
            begin, end = end, end + len([*same])
            if cell == fill:
                stretches.append((end - begin, level, begin))
    columns, widest = cell_len(name), max(stretches, default=(0, 0, 0))[0]
    if columns > widest:
        return
    equal = [stretch for stretch in stretches if stretch[0] == widest]
    _, level, begin = equal[len(equal) // 2]
    begin += (widest - columns) // 2
    style = f"reverse {fill[1]}" if pen.is_solid else "bold"
    grid[level][begin : begin + columns] = [(name, style), *[("", "")] * (columns - 1)]


def _cell(
    stack: Sequence[float], level: int, fills: Sequence[tuple[str, str]], pen: _Pen, empty: str
) -> tuple[str, str]:
    """Return the character and the style of a place in a column. stack: upper ends of its layers, in rows."""
    part = stack[-1] - level
    if part <= 0:
        return empty, "dim"
    middle = level + min(1.0, part) / 2
    filling, style = next(fill for fill, end in zip(fills, stack, strict=True) if end >= middle)
    if part >= 1 or (part > 0.5 and not pen.is_solid):
        return filling, style
    if pen.is_solid and part >= 0.125:
        return SPARKS[int(part * 8) - 1], style
    return (empty, "dim") if level else (pen.low, style)


def _names_below(chart: Lines, columns: int) -> tuple[list[str], dict[str, str]]:
    """Return the names of the stretches in a row of words and a row of numbers at their columns, and what stands for
    what, with the words that have no name."""
    begins = [(column_of(x, chart.xs, columns), name) for x, name in chart.spans]
    names = stretch_names(begins, columns, cell_len)
    unnamed = {"without a name:": ", ".join(names.unnamed)} if names.unnamed else {}
    return [line for line in map(_placed, (names.words, names.numbers)) if line], names.meanings | unnamed


def _placed(names: Sequence[tuple[str, float]]) -> str:
    """Return a line with each name at its column, without those whose place is taken."""
    line = ""
    for name, at in sorted(names, key=itemgetter(1)):
        if not line or cell_len(line) < at:
            line += " " * (int(at) - cell_len(line)) + name
    return line


def _draw_points(chart: Points, pen: _Pen) -> None:
    """Print the points; a mark whose place is taken moves to the right."""
    points, console = chart.in_drawing_order, pen.console
    y_ticks = log_ticks([point.y for point in points], chart.y_unit)
    axis = max(map(len, y_ticks.values()))
    rows = max(_LEAST_ROWS, min(_MOST_ROWS, console.height - _OTHER_LINES) * 2 // 3)
    columns = min(LONGEST, max(console.width, NARROWEST)) - axis - 5
    x_of, y_of = (
        partial(_place, values=[getattr(point, name) for point in points], places=places)
        for name, places in (("x", columns), ("y", rows))
    )
    cells = [[(" ", "")] * (columns + 1) for _ in range(rows)]
    for point in points:
        line, at = cells[y_of(point.y)], x_of(point.x)
        while point.mark and line[at][0] not in (" ", pen.dot) and at < columns:
            at += 1
        line[at] = (point.mark, "bold green" if point.chosen else "bold") if point.mark else (pen.dot, "dim")
    names = {y_of(value): name for value, name in y_ticks.items()}
    sentence(console, chart.title, style="dim")
    for level in reversed(range(rows)):
        drawn = Text.assemble((f" {names.get(level, ''):>{axis}} {pen.mark} ", "dim"), *cells[level])
        drawn.rstrip()
        row(console, drawn)
    below = [" "] * (columns + 1)
    for value, name in log_ticks([point.x for point in points], chart.x_unit).items():
        at = min(x_of(value), columns + 1 - len(name))
        if not "".join(below[max(0, at - 1) : at + len(name) + 1]).strip():
            below[at : at + len(name)] = name
    row(console, " " * (axis + 4) + "".join(below).rstrip(), style="dim")


def _place(value: float, values: Sequence[float], places: int) -> int:
    """Return the place of a value on a logarithmic axis."""
    low, high = log(min(values)), log(max(values))
    return min(places - 1, max(0, int((log(value) - low) / ((high - low) or 1) * places)))
