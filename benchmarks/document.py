"""Generated tables in docs/: each between two comments that name the script which writes it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"


def written(document: str, script: str) -> str:
    """The table that `benchmarks/SCRIPT.py` wrote in docs/DOCUMENT."""
    text = (DOCUMENTS / document).read_text(encoding="utf-8")
    return text.partition(f"<!-- table: written by benchmarks/{script}.py -->\n")[2].partition("<!-- end of ")[0]


def put(document: str, script: str, text: str) -> None:
    """Replace the table that `benchmarks/SCRIPT.py` writes in docs/DOCUMENT."""
    path = DOCUMENTS / document
    start = f"<!-- table: written by benchmarks/{script}.py -->\n"
    end = f"<!-- end of {script.rpartition('/')[2]} -->\n"
    before, rest = path.read_text(encoding="utf-8").split(start)
    path.write_text(before + start + text + end + rest.partition(end)[2], encoding="utf-8")


def show(document: str, script: str, text: str, *, writes: bool) -> None:
    """Print a table, which ends with a line break, and `put` it into docs/DOCUMENT if the script writes."""
    print(text, end="")
    if writes:
        put(document, script, text)


def table_command(description: str | None, document: str, script: str, table: Callable[[], str]) -> None:
    """The command line of a script that makes one table: print it; with --write `put` it into docs/DOCUMENT."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the table into docs/{document}")
    writes = parser.parse_args().write
    show(document, script, table(), writes=writes)
