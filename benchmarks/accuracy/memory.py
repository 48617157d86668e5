"""Memory: the printed quantity of every run against the estimators'."""

from __future__ import annotations

from .report import Section, Table


def section() -> Section:
    return Section(title="Memory", summary=(), details=Table(title="Every run", header=("run",), rows=()))
