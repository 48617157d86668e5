"""Sections and tables of the accuracy report, rendered as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HEAD = """# Accuracy

This page compares predictions with measured runs that others published. `python -m benchmarks.accuracy --write`
writes it, without a GPU and without torch; a test fails when it is stale. `benchmarks/data/` has the rows, their
sources, and how each was read. [How true the numbers are](how-true.md) is the summary.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text, columns aligned by their first letter: those whose header starts with a space, to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table under its title; nothing but the title's remark "none" when it has no rows."""
        if not self.rows:
            return f"**{self.title}**: none.\n"
        rule = tuple("---:" if name.startswith(" ") else "---" for name in self.header)
        lines = [_line(name.strip() for name in self.header), _line(rule), *(_line(row) for row in self.rows)]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One half of the report.

    summary: tables by subset, and the rows that miss their target with the reason.
    notes:   paragraphs of Markdown after the summary.
    """

    title: str
    summary: tuple[Table, ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        return "\n".join(
            [f"## {self.title}\n", *(table.markdown() for table in self.summary), *(f"{note}\n" for note in self.notes)]
        )


def document(sections: Sequence[Section]) -> str:
    """docs/accuracy.md."""
    return "\n".join([_HEAD, *(section.markdown() for section in sections)])


def percent(share: float) -> str:
    return f"{share:+.1%}"


def _line(cells: Sequence[str] | Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
