"""A document as the output of a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..document.blocks import Document


def show_document(
    make: Callable[[], Document],
    form: Callable[[], Any],
    output: Output,
    *,
    html: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Write the report and its chart if they have a path, and print the document, or the data of `form` as JSON."""
    if html is not None or plot is not None:
        from ..html_report.report import write_report  # imported here: few answers have one

        write_report(make(), html, output.say, plot=plot)

    def render(console: Console) -> None:
        from ..document.terminal import print_document  # imported here: JSON needs no terminal library

        print_document(make(), console)

    output.show(form, render)
