"""The result of a command as plain data: blocks that a terminal (`document.terminal`), an HTML report
(`html_report.report`) and Markdown (`document.markdown`) draw. Texts are English; `document.translation` translates
them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from ..text.language import Language
from .charts import Drawing
from .excerpt import Excerpt as Excerpt
from .excerpt import ExcerptLine as ExcerptLine

Tone = Literal["good", "unsure", "bad"]
"""How good a verdict is."""

Style = Literal["", "bold", "dim", "yellow", "good", "unsure", "bad", "advice", "unknown"]
"""How a text looks. The last five also say how serious it is."""


class Sentence(NamedTuple):
    """A sentence; leading spaces indent it on a terminal. hang: indentation of its continuation lines there. mark: a
    word before the sentence that says what it is, such as the code of a finding, in the style `mark_style`. in_column:
    whether the text from `hang` on is a column, which begins a line of its own on a terminal too narrow for columns."""

    text: str
    style: Style = ""
    hang: int = 2
    mark: str = ""
    mark_style: Style = ""
    in_column: bool = False


class Line(NamedTuple):
    """A line that only a terminal wraps, so that logs can be searched for it. mark, mark_style: as of a sentence."""

    text: str
    style: Style = ""
    mark: str = ""
    mark_style: Style = ""


class Heading(NamedTuple):
    """The title of a section of a report. name: its anchor. A terminal shows an empty line if it has a `gap`, and the
    title if it is `printed`."""

    title: str
    name: str
    printed: bool = True
    gap: bool = True


class Gap(NamedTuple):
    """An empty line on a terminal."""


class Figure(NamedTuple):
    """A figure as text, and its exact value if it is known. style: marks the better one of several figures. title: in a
    row that is a sentence, in place of that of the column; None for that of the column."""

    text: str
    value: float | None = None
    style: Style = ""
    title: str | None = None


class Snippet(NamedTuple):
    """Text of a table that is the same in every language: an option, a formula, a source. style: its look as a
    remark."""

    text: str
    style: Style = "dim"


METER_COLUMNS = 20
"""Columns of a bar in a cell on a terminal, besides the mark of its limit."""


class Meter(NamedTuple):
    """A bar in a table's cell on a terminal; reports have charts instead. share: its length, of the whole cell; a
    longer one is cut. limited: whether the end of the cell is a limit, which is marked. ink: a family of the palette; a
    bar with one stands in the last column, and takes the room that a terminal leaves."""

    share: float
    limited: bool = False
    ink: str = ""


Cell: TypeAlias = str | Figure | Snippet | Meter
"""Content of a table's cell; leading spaces indent it on a terminal."""

NOTHING = "-"
"""Text of an unknown or zero figure."""


def make_figure(value: float | None, write: Callable[[Any], str]) -> Figure:
    """Return a figure in the format of its unit."""
    return Figure(NOTHING if value is None else write(value), value)


Look = Literal["", "chosen", "closest", "faded", "strong"]
"""Look of a row: closest marks one where none can be chosen, strong is bold without a mark."""


class Row(NamedTuple):
    """A row of a table; the last of fewer cells extends to the end of the row. remarks: sentences below the row."""

    cells: Sequence[Cell]
    look: Look = ""
    remarks: Sequence[str | Snippet] = ()


HIDDEN = "Not shown at this width"
"""What a table says of the columns that a narrow terminal leaves out."""


class Table(NamedTuple):
    """A table. Columns with a `Figure` are aligned to the right. widths: least widths of the columns on a terminal of
    at least 80 columns. gap: spaces between them. optional: columns that a terminal without room leaves out, in this
    order. alike: of tables of a document with the same text, all show their last optional column, or none does. notes:
    titles and what they mean, below the table; a terminal leaves out those of columns that it leaves out. hidden: what
    a line below says before the names of the columns that were left out; "" for no such line."""

    head: Sequence[str]
    rows: Sequence[Row]
    widths: Sequence[int] = ()
    gap: int = 2
    optional: Sequence[int] = ()
    alike: str = ""
    notes: Sequence[tuple[str, str]] = ()
    hidden: str = ""

    @property
    def footnote(self) -> str:
        """The notes on the titles of the head, as one sentence, with the marks of their language."""
        notes = [note for title, note in self.notes if title in self.head]
        return ("\uff1b" if any("\uff1a" in note for note in notes) else "; ").join(notes)

    def is_numeric(self, column: int) -> bool:
        return any(len(row.cells) > column and isinstance(row.cells[column], Figure) for row in self.rows)

    def without(self, columns: Container[int]) -> Table:
        """Return the table without some columns; a last cell that extends over one stays."""

        def kept(cells: Sequence[Cell]) -> list[Cell]:
            last = len(cells) - 1 if len(cells) < len(self.head) else None
            return [cell for at, cell in enumerate(cells) if at not in columns or at == last]

        rows = [row._replace(cells=kept(row.cells)) for row in self.rows]
        head = [title for at, title in enumerate(self.head) if at not in columns]
        widths = [width for at, width in enumerate(self.widths) if at not in columns]
        left = [at for at in range(len(self.head)) if at not in columns]
        optional = [left.index(at) for at in self.optional if at in left]
        return self._replace(head=head, rows=rows, widths=widths, optional=optional)

    def without_meters(self) -> Table:
        """Return the table without its bars."""
        meters = {at for row in self.rows for at, cell in enumerate(row.cells) if isinstance(cell, Meter)}
        return self.without(meters)


class Code(NamedTuple):
    """Lines to copy. file: name of the file that they are."""

    lines: Sequence[str]
    file: str = ""


class Commands(NamedTuple):
    """Shell commands or Python to copy. A terminal continues a long line: of Python inside its parentheses, otherwise
    after a backslash."""

    lines: Sequence[str]
    is_python: bool = False


class Verbatim(NamedTuple):
    """Lines that are shown as they are, such as the output of a program."""

    lines: Sequence[str]


EXCERPT_COLUMNS = 80
"""Columns of an excerpt that no terminal limits."""


class Diff(NamedTuple):
    """The changes of a text."""

    old_name: str
    new_name: str
    old: str
    new: str

    def lines(self) -> list[str]:
        """Return the lines of a unified diff."""
        texts = self.old.splitlines(), self.new.splitlines()
        return list(difflib.unified_diff(*texts, self.old_name, self.new_name, n=1, lineterm=""))


class Chart(NamedTuple):
    """A chart of a report. table: its figures, folded. printed: what a terminal draws. caption: a line above it in a
    report. guide: the same of what one can do with it on a screen, which paper leaves out."""

    drawing: Drawing
    table: Table | None = None
    printed: Drawing | None = None
    table_title: str = "Figures as a table"
    caption: str = ""
    guide: str = ""


class Fact(NamedTuple):
    """A fact under its title: a figure, or "", and the words that follow it. share: used part of a capacity, which
    reports draw as a meter. is_subject: whether it is part of the document's subject, which reports show as a title."""

    title: str
    figure: str
    words: str
    share: float | None = None
    is_subject: bool = False


class Facts(NamedTuple):
    """Facts, one a line with the titles in a column. A report draws those with a figure as boxes."""

    facts: Sequence[Fact]


class Folded(NamedTuple):
    """Blocks of a report that a click opens; a terminal does not show them."""

    title: str
    blocks: Sequence[Block]


class Beside(NamedTuple):
    """Blocks that a wide terminal shows beside others, and everything else below them."""

    blocks: Sequence[Block]
    beside: Sequence[Block]


Block: TypeAlias = (
    Sentence
    | Line
    | Heading
    | Gap
    | Table
    | Code
    | Commands
    | Verbatim
    | Excerpt
    | Diff
    | Chart
    | Facts
    | Folded
    | Beside
)

UNTRANSLATED = (Snippet, Code, Commands, Verbatim, Excerpt, Diff)
"""Cells and blocks whose text is not prose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The result of a command. Blocks before the first heading follow the verdict."""

    subject: str
    """The title of the report and of its chart; a terminal does not show it."""
    verdict: str
    """The first sentence; "" if the blocks begin at once."""
    tone: Tone | None
    """None: the verdict is a title."""
    blocks: Sequence[Block]
    data: Any
    """The data that `--json` prints, or a function that computes it; dataclasses become objects."""
    picture: Drawing | Sequence[Drawing] | None = None
    """The chart of `--plot`; None selects the first chart of the blocks."""
    language: Language = "en"
    """Language of the texts."""

    def form(self) -> Any:
        """Return the data; a function computes them now."""
        return self.data() if callable(self.data) else self.data


def sections(blocks: Iterable[Block]) -> list[tuple[Heading, list[Block]]]:
    """Return the blocks by heading; those before the first one have an empty heading."""
    found: list[tuple[Heading, list[Block]]] = [(Heading("", ""), [])]
    for block in blocks:
        if isinstance(block, Heading):
            found.append((block, []))
        else:
            found[-1][1].append(block)
    return found


def charts(blocks: Iterable[Block]) -> Iterator[Chart]:
    """Yield the charts among blocks, also those beside others."""
    for block in blocks:
        match block:
            case Chart():
                yield block
            case Beside(inner, beside):
                yield from charts((*inner, *beside))
