"""Documents on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..text.language import can_encode
from ..text.lines import (
    LONGEST,
    NARROWEST,
    WARNING,
    WIDTH,
    blank,
    commands,
    copyable,
    has_columns,
    padded,
    row,
    sentence,
    wrapped,
)
from ..text.units import FIRM
from . import terminal_charts
from .blocks import (
    METER_COLUMNS,
    NOTHING,
    Beside,
    Block,
    Cell,
    Chart,
    Code,
    Commands,
    Diff,
    Document,
    Excerpt,
    Facts,
    Figure,
    Gap,
    Heading,
    Line,
    Meter,
    Row,
    Sentence,
    Snippet,
    Style,
    Table,
    Verbatim,
)

_LOOKS = {"": "", "chosen": "bold green", "closest": "bold", "faded": "dim", "strong": "bold"}

_STYLES: Mapping[Style, str] = {
    "": "",
    "bold": "bold",
    "dim": "dim",
    "yellow": WARNING,
    "good": "bold green",
    "unsure": f"bold {WARNING}",
    "bad": "bold red",
    "advice": "bold cyan",
    "unknown": "bold magenta",
}

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}

_MARKED = ("chosen", "closest")

_LEAST_TEXT, _LEAST_NARROW_TEXT = 20, 32
"""Least columns in which the text of a last column is wrapped: on a terminal of 80 columns, and on a narrower one,
where the following lines begin further to the left."""

_LEAST_NAME = 8
"""Columns of the names below which a narrow terminal shows the text of the last column below its row."""

_GUTTER = 3
"""Columns between blocks that are beside each other."""

_SHORTEST_METER = 3
"""Least columns of bars that take the room that is left."""


class _Lines:
    """A console that keeps lines instead of printing them: `text.lines` prints each by one call."""

    height = 24

    def __init__(self, width: int = WIDTH, like: Console | None = None) -> None:
        self.width, self.lines = width, list[Text]()
        self.encoding = "utf-8" if like is None else like.encoding
        self.color_system = None if like is None else like.color_system
        self.no_color = like is None or like.no_color

    def print(self, text: str | Text = "", *, style: str = "", **_options: object) -> None:
        self.lines.append(Text(text, style=style) if isinstance(text, str) else text)


def line_count(document: Document, columns: int = WIDTH) -> int:
    """Return the number of lines of a document on a terminal of so many columns, at least 80."""
    counter = _Lines(max(WIDTH, columns))
    print_document(document, cast(Console, counter))
    return len(counter.lines)


def print_document(document: Document, console: Console) -> None:
    """Print the verdict and the blocks; charts without a printed form and folded parts are left out."""
    if document.verdict:
        sentence(console, document.verdict, style=_STYLES[document.tone or "bold"])
    print_blocks(document.blocks, console)


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print blocks one after another."""
    blocks = [*blocks]
    tables = [block for block in blocks if isinstance(block, Table) and block.alike and block.optional]
    narrow = {each.alike for each in tables if (laid := _lay_out(each, console)).room >= 0 and not laid.table.optional}
    for block in blocks:
        match block:
            case Sentence(text, style, hang, mark, mark_style, in_column):
                marked = Text.assemble((mark, _STYLES[mark_style]), (text, _STYLES[style]))
                if in_column and not has_columns(console, hang):
                    sentence(console, marked[:hang])
                    marked = Text(" " * hang) + marked[hang:]
                sentence(console, marked, hang=hang)
            case Line(text, style, mark, mark_style):
                is_screen = isinstance(console, Console) and console.file.isatty()
                at, look, whole = len(mark), _STYLES[style], f"{mark}{text}"
                head, *more = wrapped(whole, console.width, hang=at + 2).splitlines() if is_screen else [whole]
                row(console, Text.assemble((head[:at], _STYLES[mark_style]), (head[at:], look)))
                for following in more:
                    row(console, following, style=look)
            case Heading(title, printed=printed, gap=gap):
                if gap:
                    blank(console)
                if printed:
                    sentence(console, title, style="bold")
            case Facts():
                _print_facts(block, console)
            case Table():
                _print_table(block.without(block.optional) if block.alike in narrow else block, console)
            case Code(lines):
                copyable(console, lines)
            case Commands(lines, is_python):
                commands(console, lines, is_python=is_python)
            case Excerpt(level=level):
                styles = {"carets": _STYLES[level], ">": _STYLES[level], "context": "dim", **_DIFF_STYLES}
                for gutter, text, role in block.rows(max(NARROWEST, min(console.width, LONGEST)) - 3):
                    row(console, Text.assemble("   ", (gutter, "bright_blue"), (text, styles.get(role, ""))))
            case Diff():
                for number, line in enumerate(block.lines()):  # not indented, so that it can be applied
                    row(console, Text(line, style="bold" if number < 2 else _DIFF_STYLES.get(line[:1], "")))
            case Verbatim(lines):
                for line in lines:
                    row(console, Text(f"  {line}", style="dim"))
            case Chart(printed=printed) if printed is not None:
                terminal_charts.draw(printed, console)
            case Beside() if console.width >= LONGEST:
                _print_beside(block, console)
            case Beside(inner, beside):
                print_blocks((*inner, *beside), console)
            case Gap():
                blank(console)


def _print_facts(block: Facts, console: Console) -> None:
    """Print each fact behind its title, which is left out if it is that of the fact above."""
    column = max((cell_len(fact.title) for fact in block.facts), default=0) + (2 if console.width >= WIDTH else 1)
    above = ""
    for title, figure, words, *_ in block.facts:
        shown = "" if title == above else title
        text = Text.assemble((padded(shown, -column), "dim"), (figure, "bold"), " " * bool(figure and words), words)
        sentence(console, text, hang=column)
        above = title


def _print_beside(block: Beside, console: Console) -> None:
    """Print blocks in two columns of equal width."""
    width = (min(console.width, LONGEST) - _GUTTER) // 2
    columns = _Lines(width, console), _Lines(width, console)
    for column, blocks in zip(columns, (block.blocks, block.beside), strict=True):
        print_blocks(blocks, cast(Console, column))
    for left, right in zip_longest(*(column.lines for column in columns), fillvalue=Text()):
        row(console, left + Text(" " * (width + _GUTTER - left.cell_len)) + right)


class _Layout(NamedTuple):
    """A table with the columns for which a terminal has room."""

    table: Table
    lines: list[list[str]]
    """The texts of the head and of the rows."""
    widths: list[int]
    is_text: bool
    """Whether the last column is text, which may be narrower."""
    needless: int
    """Columns of the terminal that it can do without."""
    room: int
    """Columns that are left for the first column of the table."""


def _lay_out(table: Table, console: Console) -> _Layout:
    """Return the table without the optional columns for which there is no room."""
    terminal = max(console.width, NARROWEST)
    for count in range(len(table.optional) + 1):
        shown = table.without(table.optional[:count])
        lines = [
            [_text(cell, console) for cell in cells] for cells in (shown.head, *(each.cells for each in shown.rows))
        ]
        widths = _widths(shown, lines, terminal)
        if any(isinstance(each.cells[-1], Meter) and each.cells[-1].ink for each in shown.rows if each.cells):
            widths[-1] = _SHORTEST_METER
        is_text = len(widths) > 1 and not shown.is_numeric(len(widths) - 1)
        least = _LEAST_TEXT if terminal >= WIDTH else _LEAST_NARROW_TEXT
        needless = max(0, widths[-1] - least) if is_text else 0
        room = terminal - _indent(table) - sum(width + table.gap for width in widths[1:]) + needless
        if room >= widths[0]:
            break
    return _Layout(shown, lines, widths, is_text, needless, room)


def _indent(table: Table) -> int:
    return 2 if any(each.look in _MARKED for each in table.rows) else 1


def _print_table(table: Table, console: Console) -> None:
    """Print a table in columns, without the optional ones if there is no room. Text in the last column is wrapped, or
    on a narrow terminal stands below its row if it is long; a longer name in the first column stands above its figures.
    On a terminal too narrow for the other columns, each row becomes a sentence, with the optional ones."""
    whole, indent = table, _indent(table)
    table, lines, widths, is_text, needless, room = _lay_out(table, console)
    is_below = is_text and widths[-1] > _LEAST_TEXT and room < min(_LEAST_NAME, widths[0])
    if is_below:
        room += widths[-1] + table.gap - needless
    if room < 0 and whole.optional:
        _print_table(whole._replace(optional=()), console)
        return
    footnote = table.footnote
    widths[0] = min(widths[0], room)
    long_names = sum(bool(line) and cell_len(line[0]) > widths[0] for line in lines)
    stacks = 2 * long_names > len(lines)  # then also the few short ones, for one form of all rows
    aligned = [width if table.is_numeric(column) else -width for column, width in enumerate(widths)]
    for line, each in zip(lines, (Row(table.head), *table.rows), strict=True):
        is_head = line is lines[0]
        style = "bold" if is_head else _LOOKS[each.look]
        below = line.pop() if is_below and len(line) > 1 else ""
        if room >= 0 and (len(line) > 1 or below):
            columns = aligned[: len(line)] if is_below else aligned
            _print_columns(line, each, table.gap, columns, indent, style, console, stacks=stacks)
        elif any(line) and not (is_head and room < 0):
            mark = "> " if each.look in _MARKED else " " * (indent - 1)
            sentence(
                console, mark + _row_sentence(line, each.cells, lines[0], aligned[: len(lines[0])]), style=style, hang=4
            )
        if below.strip() and not is_head:
            title = "" if table.head[0] else table.head[-1]  # rows with titles
            sentence(console, Text(f"    {title and f'{title}: '}{below.strip()}", style=style), hang=6)
        for remark in each.remarks:
            style = _STYLES[remark.style] if isinstance(remark, Snippet) else "dim"
            sentence(console, f"    {_text(remark, console)}", style=style, hang=6)
    if footnote:
        sentence(console, f" {footnote}", style="dim")
    hidden = [title for title in whole.head if title and title not in table.head]
    if hidden and whole.hidden:
        colon, comma, stop = _marks(whole.head)
        sentence(console, f" {whole.hidden}{colon}{comma.join(hidden)}{stop}", style="dim")


def _print_columns(
    line: Sequence[str],
    each: Row,
    gap: int,
    widths: Sequence[int],
    indent: int,
    style: str,
    console: Console,
    *,
    stacks: bool = False,
) -> None:
    """Print the texts of a row in columns; a negative width aligns to the left. stacks: the name stands above its
    figures even if it is short."""
    if not any(line):
        return
    mark, (name, *others) = (">" if each.look in _MARKED else "").ljust(indent), line
    if cell_len(name) > abs(widths[0]) or (stacks and name and any(others)):
        if cell_len(mark + name) <= max(console.width, NARROWEST):
            row(console, mark + name, style=style)
        else:
            # A sentence begins with a space itself.
            sentence(console, (mark if mark.strip() else mark[1:]) + name, style=style, hang=4)
        mark, name = " " * indent, ""
    last = others.pop() if others and (len(line) < len(widths) or widths[-1] < 0) else ""
    bar = each.cells[-1] if each.cells else ""
    figures = [padded(text, width) for text, width in zip((name, *others), widths, strict=False)]
    places = [mark, *(text + " " * gap for text in figures)]
    before = "".join(places)
    text = Text(f"{before}{last}".rstrip(), style=style)
    if isinstance(each.cells[0], Snippet):
        text.stylize("bold", 0, len(mark + figures[0]))
    for at, cell in enumerate(each.cells[: len(places)]):
        if isinstance(cell, Figure | Snippet) and cell.style not in ("", "dim"):
            begin = len("".join(places[: at + 1]))
            text.stylize(_STYLES[cell.style], begin, begin + len(figures[at] if at < len(figures) else last))
    if isinstance(bar, Meter) and bar.ink:
        room = min(max(console.width, NARROWEST), WIDTH) - cell_len(before)
        text = Text(before, style=style) + terminal_charts.meter(bar.share, bar.ink, room, console)
    if cell_len(text.plain) > max(console.width, NARROWEST):
        sentence(console, text[1:], hang=cell_len(before) + len(last) - len(last.lstrip()) - 1)
    elif text.plain:
        row(console, text)


def _row_sentence(line: Sequence[str], cells: Sequence[Cell], head: Sequence[str], widths: Sequence[int]) -> str:
    """Return `name: title figure, title figure, text` without unknown figures, with the marks of the titles'
    language."""
    name, *others = line
    named = [title if width > 0 else "" for title, width in zip(head[1:], widths[1:], strict=True)]
    for at, cell in enumerate(cells[1:]):
        if isinstance(cell, Figure) and cell.title is not None:
            named[at] = cell.title
    titles = [f"{title} ".replace(" ", FIRM) if title else "" for title in named]  # not torn apart
    if others and len(line) < len(head):
        titles[len(others) - 1] = ""  # the last text extends over other columns
    colon, comma, _ = _marks(head)
    known = ((title, text.strip()) for title, text in zip(titles, others, strict=False) if text.strip(f" {NOTHING}"))
    words = comma.join(f"{title}{text}" for title, text in known)
    return f"{name}{colon if name and words else ''}{words}"


def _marks(head: Sequence[str]) -> tuple[str, str, str]:
    """Return colon, comma and full stop of the titles' language."""
    is_wide = any(cell_len(title) > len(title) for title in head)
    return ("\uff1a", "\uff0c", "\u3002") if is_wide else (": ", ", ", ".")


def _widths(table: Table, lines: Sequence[Sequence[str]], terminal: int) -> list[int]:
    """Return the width of each column; a last cell that extends to the end of its row does not count."""
    last = len(table.head) - 1
    leasts = table.widths if table.widths and terminal >= WIDTH else [0] * len(table.head)
    return [
        max(least, *(cell_len(line[column]) for line in lines if column < len(line) - (len(line) <= last)))
        for column, least in enumerate(leasts)
    ]


def _text(cell: Cell, console: Console) -> str:
    match cell:
        case Meter(ink=ink) if ink:
            return ""  # drawn when its room is known
        case Meter(share, limited):
            line, end, cut = ("━", "│", "»") if can_encode(console, "━│»") else ("=", "|", ">")
            drawn = line * min(METER_COLUMNS, round(share * METER_COLUMNS))
            return f"{drawn:{METER_COLUMNS}}{end * limited}{cut * (share > 1)}"
        case str():
            return cell
        case _:
            return cell.text
