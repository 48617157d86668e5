"""Documents on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..text.language import translate
from ..text.lines import NARROWEST, WIDTH, blank, commands, copyable, padded, row, sentence
from .blocks import (
    Block,
    Chart,
    Code,
    Commands,
    Diff,
    Document,
    Excerpt,
    Figure,
    Gap,
    Heading,
    Line,
    Row,
    Sentence,
    Style,
    Table,
    Verbatim,
)

_LOOKS = {"": "", "chosen": "bold green", "faded": "dim"}

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


def print_document(document: Document, console: Console) -> None:
    """Print the verdict and the blocks; charts and folded parts are left out."""
    if document.verdict:
        sentence(console, document.verdict, style=_STYLES[document.tone or "bold"])
    print_blocks(document.blocks, console)


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print blocks one after another."""
    for block in blocks:
        match block:
            case Sentence(text, style, hang, mark, mark_style):
                marked = Text.assemble((mark, _STYLES[mark_style]), (translate(text), _STYLES[style]))
                sentence(console, marked, hang=hang)
            case Line(text, style):
                row(console, text, style=_STYLES[style])
            case Heading(title, printed=printed):
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
            case Chart(printed=draw) if draw is not None:
                draw(console)
            case Gap():
                blank(console)


def _print_table(table: Table, console: Console) -> None:
    """Print a table in columns. A longer name in the first column stands above its figures; on a terminal too narrow
    for the other columns, each row becomes a sentence."""
    head, *lines = [_texts(cells) for cells in (table.head, *(each.cells for each in table.rows))]
    indent = 2 if any(each.look == "chosen" for each in table.rows) else 1
    columns = [
        [line[column] for line in (head, *lines) if len(line) == len(head) or column + 1 < len(line)]
        for column in range(len(head))
    ]
    widths = [
        max(least, *map(cell_len, column))
        for least, column in zip(table.widths or [0] * len(head), columns, strict=True)
    ]
    terminal = max(console.width, NARROWEST)
    room = terminal - indent - sum(width + 2 for width in widths[1:])
    widths[0] = min(widths[0], room)
    aligned = [width if table.is_numeric(column) else -width for column, width in enumerate(widths)]
    for line, (_, look, remarks) in zip((head, *lines), (Row(head), *table.rows), strict=True):
        if not any(line) or (line is head and room < 0):
            continue
        mark, style = (">" if look == "chosen" else "").ljust(indent), "bold" if line is head else _LOOKS[look]
        name, *others = line
        if room < 0 or not others:
            titles = (f"{title} " if width > 0 else "" for title, width in zip(head[1:], aligned[1:], strict=True))
            words = ", ".join(f"{title}{text}" for title, text in zip(titles, others, strict=False) if text)
            sentence(console, f"{mark[1:]}{name}{': ' if name and words else ''}{words}", style=style, hang=4)
        else:
            if cell_len(name) > widths[0]:
                sentence(console, mark[1:] + name, style=style, hang=4)
                mark, name = " " * indent, ""
            extending = others.pop() if len(line) < len(head) else ""
            cells = [padded(text, width) for text, width in zip((name, *others), aligned, strict=False)]
            text = f"{mark}{'  '.join([*cells, extending])}".rstrip()
            if extending and cell_len(text) > terminal:
                sentence(console, text[1:], style=style, hang=4)
            else:
                row(console, text, style=style)
        for remark in remarks:
            sentence(console, f"    {translate(remark)}", style="dim", hang=6)


def _texts(cells: Sequence[str | Figure]) -> list[str]:
    return [translate(cell.text if isinstance(cell, Figure) else cell) for cell in cells]
