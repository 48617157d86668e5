"""Generated tables in docs/: each between two comments that name the script which writes it."""

from __future__ import annotations

from pathlib import Path

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"


def put(document: str, script: str, text: str) -> None:
    """Replace the table that `benchmarks/SCRIPT.py` writes in docs/DOCUMENT."""
    path = DOCUMENTS / document
    start = f"<!-- table: written by benchmarks/{script}.py -->\n"
    end = f"<!-- end of {script.rpartition('/')[2]} -->\n"
    before, rest = path.read_text(encoding="utf-8").split(start)
    path.write_text(before + start + text + end + rest.split(end)[1], encoding="utf-8")
