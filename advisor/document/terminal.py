"""Documents on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..text.lines import NARROWEST, WIDTH, bar, blank, commands, copyable, padded, row, sentence
from .blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Commands,
    Diff,
    Document,
    Excerpt,
    Gap,
    Heading,
    Line,
    Row,
    Sentence,
    Snippet,
    Style,
    Table,
    Verbatim,
)
from .charts import StackedBars

_LOOKS = {"": "", "chosen": "bold green", "closest": "bold", "faded": "dim"}

_STYLES: Mapping[Style, str] = {
    "": "",
    "bold": "bold",
    "dim": "dim",
    "yellow": "yellow",
    "good": "bold green",
    "unsure": "bold yellow",
    "bad": "bold red",
    "advice": "bold cyan",
    "unknown": "bold magenta",
}

_DIFF_STYLES = {"+": "green", "-": "red"}

_MARKED = ("chosen", "closest")

_LEAST_TEXT = 20
"""Least columns in which the text of a last column is wrapped, on a terminal of 80 columns."""


class _LineCounter:
    """A console that counts lines instead of printing them: `text.lines` prints each by one call."""

    width, encoding, lines = WIDTH, "utf-8", 0

    def print(self, *_texts: object, **_options: object) -> None:
        self.lines += 1


def line_count(document: Document) -> int:
    """Return the number of lines of a document on a terminal of 80 columns."""
    counter = _LineCounter()
    print_document(document, cast(Console, counter))
    return counter.lines


def print_document(document: Document, console: Console) -> None:
    """Print the verdict and the blocks; charts without a printed form, tiles and folded parts are left out."""
    if document.verdict:
        sentence(console, document.verdict, style=_STYLES[document.tone or "bold"])
    print_blocks(document.blocks, console)


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print blocks one after another."""
    for block in blocks:
        match block:
            case Sentence(text, style, hang, mark, mark_style):
                marked = Text.assemble((mark, _STYLES[mark_style]), (text, _STYLES[style]))
                sentence(console, marked, hang=hang)
            case Line(text, style):
                row(console, text, style=_STYLES[style])
            case Heading(title, printed=printed, gap=gap):
                if gap:
                    blank(console)
                if printed:
                    sentence(console, title, style="bold")
            case Table():
                _print_table(block, console)
            case Code(lines):
                copyable(console, lines)
            case Commands(lines):
                commands(console, lines)
            case Excerpt(cut):
                for line in cut(min(console.width, WIDTH) - 4):
                    row(console, Text(f"   {line}", style="dim"))
            case Diff():
                for line in block.lines():
                    row(console, Text(f"   {line}", style=_DIFF_STYLES.get(line[:1], "dim")))
            case Verbatim(lines):
                for line in lines:
                    row(console, Text(f"  {line}", style="dim"))
            case Chart(printed=StackedBars() as bars):
                for each in bars.bars:
                    bar(each.family_sizes(bars.families), bars.families, console)
            case Chart(printed=draw) if callable(draw):
                draw(console)
            case Gap():
                blank(console)


def _print_table(table: Table, console: Console) -> None:
    """Print a table in columns. Text in the last column is wrapped, and a longer name in the first column stands above
    its figures; on a terminal too narrow for the other columns, each row becomes a sentence."""
    terminal = max(console.width, NARROWEST)
    indent = 2 if any(each.look in _MARKED for each in table.rows) else 1
    lines = [[*map(_text, cells)] for cells in (table.head, *(each.cells for each in table.rows))]
    widths = _widths(table, lines)
    is_text = len(widths) > 1 and not table.is_numeric(len(widths) - 1)
    needless = max(0, widths[-1] - _LEAST_TEXT) if is_text and terminal >= WIDTH else 0
    room = terminal - indent - sum(width + table.gap for width in widths[1:]) + needless
    widths[0] = min(widths[0], room)
    aligned = [width if table.is_numeric(column) else -width for column, width in enumerate(widths)]
    for line, each in zip(lines, (Row(table.head), *table.rows), strict=True):
        is_head = line is lines[0]
        style = "bold" if is_head else _LOOKS[each.look]
        if room >= 0 and len(line) > 1:
            _print_columns(line, each, table.gap, aligned, indent, style, console)
        elif any(line) and not (is_head and room < 0):
            mark = "> " if each.look in _MARKED else " " * (indent - 1)
            sentence(console, mark + _row_sentence(line, lines[0], aligned), style=style, hang=4)
        for remark in each.remarks:
            sentence(console, f"    {_text(remark)}", style="dim", hang=6)


def _print_columns(
    line: Sequence[str], each: Row, gap: int, widths: Sequence[int], indent: int, style: str, console: Console
) -> None:
    """Print the texts of a row in columns; a negative width aligns to the left."""
    if not any(line):
        return
    mark, (name, *others) = (">" if each.look in _MARKED else "").ljust(indent), line
    if cell_len(name) > abs(widths[0]):
        if cell_len(mark + name) <= max(console.width, NARROWEST):
            row(console, mark + name, style=style)
        else:
            sentence(console, mark.lstrip() + name, style=style, hang=4)
        mark, name = " " * indent, ""
    last = others.pop() if len(line) < len(widths) or widths[-1] <= 0 else ""
    figures = [padded(text, width) for text, width in zip((name, *others), widths, strict=False)]
    before = mark + "".join(text + " " * gap for text in figures)
    text = Text(f"{before}{last}".rstrip(), style=style)
    if isinstance(each.cells[0], Snippet):
        text.stylize("bold", 0, len(mark + figures[0]))
    if cell_len(text.plain) > max(console.width, NARROWEST):
        sentence(console, text[1:], hang=cell_len(before) + len(last) - len(last.lstrip()) - 1)
    else:
        row(console, text)


def _row_sentence(line: Sequence[str], head: Sequence[str], widths: Sequence[int]) -> str:
    """Return `name: title figure, title figure, text`, with the marks of the titles' language."""
    name, *others = line
    titles = [f"{title} " if width > 0 else "" for title, width in zip(head[1:], widths[1:], strict=True)]
    if others and len(line) < len(head):
        titles[len(others) - 1] = ""  # the last text extends over other columns
    is_wide = any(cell_len(title) > len(title) for title in head)
    colon, comma = ("\uff1a", "\uff0c") if is_wide else (": ", ", ")
    words = comma.join(f"{title}{text.strip()}" for title, text in zip(titles, others, strict=False) if text)
    return f"{name}{colon if name and words else ''}{words}"


def _widths(table: Table, lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column; a last cell that extends to the end of its row does not count."""
    last = len(table.head) - 1
    return [
        max(least, *(cell_len(line[column]) for line in lines if column < len(line) - (len(line) <= last)))
        for column, least in enumerate(table.widths or [0] * len(table.head))
    ]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text
