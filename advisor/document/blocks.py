"""The result of a command as plain data: blocks that a terminal (`document.terminal`) and an HTML report
(`html_report.report`) draw. Texts are English; a terminal translates each `Phrase`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..answer.verdict import Tone
from .charts import Drawing

if TYPE_CHECKING:
    from rich.console import Console

TONES: Mapping[Tone, str] = {"good": "bold green", "unsure": "bold yellow", "bad": "bold red"}
"""Styles of a verdict on a terminal."""

Style = Literal["", "bold", "dim", "yellow"]


class Sentence(NamedTuple):
    """A sentence. hang: indentation of its continuation lines on a terminal."""

    text: str
    style: Style = ""
    hang: int = 2


class Heading(NamedTuple):
    """The title of a section of a report. name: its anchor. A terminal shows an empty line, and the title if it is
    `printed`."""

    title: str
    name: str
    printed: bool = True


class Gap(NamedTuple):
    """An empty line on a terminal."""


class Figure(NamedTuple):
    """A figure as text, and its exact value if it is known."""

    text: str
    value: float | None = None


Cell: TypeAlias = str | Figure

NOTHING = "-"
"""Text of an unknown or zero figure."""


def make_figure(value: float | None, write: Callable[[Any], str]) -> Figure:
    """Return a figure in the format of its unit."""
    return Figure(NOTHING if value is None else write(value), value)


class Row(NamedTuple):
    """A row of a table; the last of fewer cells extends to the end of the row. remarks: sentences below the row."""

    cells: Sequence[Cell]
    look: Literal["", "chosen", "faded"] = ""
    remarks: Sequence[str] = ()


class Table(NamedTuple):
    """A table. Columns with a `Figure` are aligned to the right. widths: least columns on a terminal."""

    head: Sequence[str]
    rows: Sequence[Row]
    widths: Sequence[int] = ()

    def is_numeric(self, column: int) -> bool:
        return any(len(row.cells) > column and isinstance(row.cells[column], Figure) for row in self.rows)


class Code(NamedTuple):
    """Lines to copy."""

    lines: Sequence[str]


class Verbatim(NamedTuple):
    """Lines that are shown as they are, such as the output of a program."""

    lines: Sequence[str]


class Chart(NamedTuple):
    """A chart of a report. table: its figures, folded. printed: function that draws it on a terminal."""

    drawing: Drawing
    table: Table | None = None
    printed: Callable[[Console], object] | None = None


class Tiles(NamedTuple):
    """Figures of a report in boxes: title, figure, and a short text below."""

    tiles: Sequence[tuple[str, str, str]]


class Folded(NamedTuple):
    """Blocks of a report that a click opens; a terminal does not show them."""

    title: str
    blocks: Sequence[Block]


Block: TypeAlias = Sentence | Heading | Gap | Table | Code | Verbatim | Chart | Tiles | Folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The result of a command. Blocks before the first heading follow the verdict."""

    subject: str
    """The title of the report and of its chart; a terminal does not show it."""
    verdict: str
    tone: Tone
    blocks: Sequence[Block]
    data: Any
    """The data that `--json` prints; dataclasses become objects."""
    picture: Drawing | Sequence[Drawing] | None = None
    """The chart of `--plot`; None selects the first chart of the blocks."""
