"""The generated tables of docs/probe.md: each between two comments that name the script which writes it."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "probe.md"


def put(script: str, text: str) -> None:
    """Replace the table that `benchmarks/probes/SCRIPT.py` writes."""
    start, end = f"<!-- table: written by benchmarks/probes/{script}.py -->\n", f"<!-- end of {script} -->\n"
    before, rest = DOCUMENT.read_text(encoding="utf-8").split(start)
    DOCUMENT.write_text(before + start + text + end + rest.split(end)[1], encoding="utf-8")
