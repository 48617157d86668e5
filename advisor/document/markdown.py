"""Documents in GitHub's Markdown, for an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..text.units import capitalised, percent
from .blocks import (
    EXCERPT_COLUMNS,
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
    Folded,
    Line,
    Meter,
    Row,
    Sentence,
    Snippet,
    Table,
    Verbatim,
    sections,
)
from .charts import Bar, StackedBars

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&@])")


def markdown_text(document: Document) -> str:
    """Return the document. Sections with lines to copy, and what a report folds, open by a click; of charts, only the
    sizes of the bars that a terminal draws."""
    parts = [f"**{_plain(document.verdict)}**"]
    for (title, *_), blocks in sections(document.blocks):
        texts = [*_texts(blocks)]
        if title and any(isinstance(block, Code | Commands) for block in blocks):
            texts = [_folded(title, texts)]
        elif title and texts:
            texts.insert(0, f"### {_plain(title)}")
        parts += texts
    return "\n\n".join(filter(None, parts)) + "\n"


def _texts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Sentence(text, mark=mark):
                yield _plain(f"{mark} {text}")
            case Line(text, mark=mark):
                yield _plain(f"{mark}{text}")
            case Facts(facts):
                yield "\n".join(
                    f"- **{_plain(capitalised(title))}**: {_plain(f'{figure} {words}')}"
                    for title, figure, words, *_ in facts
                )
            case Table():
                yield _table(block.without_meters())
                if block.footnote:
                    yield _plain(block.footnote)
            case Code(lines, file):
                yield _fence(lines, file.rpartition(".")[2])
            case Commands(lines) | Verbatim(lines):
                yield _fence(lines)
            case Excerpt():
                yield _fence(block.texts(EXCERPT_COLUMNS))
            case Diff():
                yield _fence(block.lines(), "diff")
            case Chart(printed=StackedBars() as chart):
                yield from (_plain(_bar_text(bar, chart)) for bar in chart.bars)
            case Folded(title, inner):
                yield _folded(title, _texts(inner))
            case Beside(inner, beside):
                yield from _texts((*inner, *beside))


def _bar_text(bar: Bar, chart: StackedBars) -> str:
    """Return `weights 2.1, activations 23.6`, in the chart's unit or as shares."""
    exact = chart.unit.exact or (lambda size: percent(size / bar.value))
    parts = bar.family_sizes(chart.families).items()
    return ", ".join(f"{chart.families[family]} {exact(size)}" for family, size in parts)


def _table(table: Table) -> str:
    alignments = ["---:" if table.is_numeric(column) else "---" for column in range(len(table.head))]
    lines = [[*map(_plain, table.head)], alignments, *(_cells(row, len(table.head)) for row in table.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row, columns: int) -> list[str]:
    """Return the cells of a row; there are no cells that extend, so the last stands in the last column."""
    texts = [_cell(cell) for cell in row.cells]
    if row.remarks:
        texts[0] = "<br>".join(
            [texts[0], *(_plain(remark if isinstance(remark, str) else remark.text) for remark in row.remarks)]
        )
    if row.look in ("chosen", "closest"):
        texts = [f"**{text}**" if text else "" for text in texts]
    return [*texts[:-1], *[""] * (columns - len(texts)), texts[-1]]


def _cell(cell: Cell) -> str:
    match cell:
        case Snippet(text):
            return f"`{text.strip()}`"
        case Figure(text, style=style):
            return f"**{_plain(text)}**" if style else _plain(text)
        case Meter():
            return ""
        case _:
            return _plain(cell)


def _folded(title: str, texts: Iterable[str]) -> str:
    body = "\n\n".join(texts)
    return f"<details><summary>{_plain(title)}</summary>\n\n{body}\n\n</details>"


def _fence(lines: Sequence[str], language: str = "") -> str:
    """Return lines in a fence that is longer than any fence in them."""
    text = "\n".join(lines)
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _plain(text: str) -> str:
    """Return text with markup and mentions escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
