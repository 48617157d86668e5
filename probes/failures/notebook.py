"""The outputs of a notebook's cells as a log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BEGINS = re.compile(rb'\s*\{\s*"(?:cells|metadata|nbformat|nbformat_minor)"\s*:')
"""The first key of a notebook, in any order of its keys (nbformat 4)."""


def may_be_notebook(head: bytes) -> bool:
    """Whether a file that begins so may be a notebook."""
    return _BEGINS.match(head) is not None


def outputs(notebook: bytes) -> bytes | None:
    """What the cells of a notebook printed and raised, in the order of the cells; None if it is none."""
    try:
        return "".join(text for cell in json.loads(notebook)["cells"] for text in _printed(cell)).encode(
            errors="replace"
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # JSON of another form
        return None


def _printed(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a cell's streams, and the tracebacks of its errors, whose strings are lines."""
    for output in cell.get("outputs", ()):
        lines, joint = (output.get("traceback"), "\n") if "traceback" in output else (output.get("text", ""), "")
        text = joint.join(lines)
        yield text if text.endswith("\n") else f"{text}\n"
