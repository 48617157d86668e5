"""Documents on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..text.language import translate
from ..text.lines import NARROWEST, blank, copyable, padded, row, sentence
from .blocks import (
    TONES,
    Block,
    Chart,
    Code,
    Document,
    Figure,
    Gap,
    Heading,
    Row,
    Sentence,
    Table,
    Verbatim,
)

_LOOKS = {"": "", "chosen": "bold green", "faded": "dim"}


def print_document(document: Document, console: Console) -> None:
    """Print the verdict and the blocks; charts and folded parts are left out."""
    sentence(console, document.verdict, style=TONES[document.tone])
    print_blocks(document.blocks, console)


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print blocks one after another."""
    for block in blocks:
        match block:
            case Sentence(text, style, hang):
                sentence(console, text, style=style, hang=hang)
            case Heading(title, printed=printed):
                blank(console)
                if printed:
                    sentence(console, title, style="bold")
            case Table():
                _print_table(block, console)
            case Code(lines):
                copyable(console, lines)
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
    least = table.widths or [0] * len(head)
    widths = [
        max(least[column], *(cell_len(line[column]) for line in (head, *lines) if len(line) in (len(head), column + 2)))
        for column in range(len(head))
    ]
    room = max(console.width, NARROWEST) - indent - sum(width + 2 for width in widths[1:])
    widths[0] = min(widths[0], room)
    aligned = [width if table.is_numeric(column) else -width for column, width in enumerate(widths)]
    for line, (_, look, remarks) in zip((head, *lines), (Row(head), *table.rows), strict=True):
        if not any(line):
            continue
        mark, style = (">" if look == "chosen" else "").ljust(indent), "bold" if line is head else _LOOKS[look]
        name, extends = line[0], len(line) < len(head)
        if room < 0 or len(line) == 1:
            titles = [f"{title} {text}".strip() for title, text in zip(head[1:], line[1:], strict=False) if text]
            words = ", ".join(line[1:] if line is head else titles)
            sentence(console, f"{mark[1:]}{name}{': ' if name and words else ''}{words}", style=style, hang=4)
        else:
            if cell_len(name) > widths[0]:
                sentence(console, mark[1:] + name, style=style, hang=4)
                mark, name = " " * indent, ""
            others = [name, *line[1:]]
            last = others.pop() if extends else None
            columns = [padded(text, width) for text, width in zip(others, aligned, strict=extends is False)]
            text = (mark + "  ".join([*columns, *([] if last is None else [last])])).rstrip()
            if extends and cell_len(text) > max(console.width, NARROWEST):
                sentence(console, text[1:], style=style, hang=4)
            else:
                row(console, text, style=style)
        for remark in remarks:
            sentence(console, f"    {translate(remark)}", style="dim", hang=6)


def _texts(cells: Sequence[str | Figure]) -> list[str]:
    return [translate(cell.text if isinstance(cell, Figure) else cell) for cell in cells]
