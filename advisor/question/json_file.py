"""Small JSON files that a user names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError

# A configuration has kilobytes; what is beyond this limit is another file.
MAX_BYTES = 10_000_000


def read_json_object(file: Path, *, error: type[DsAdviseError], what: str, fix: str) -> dict[str, Any]:
    """The object in a JSON file. Raises `error`, with `fix`, where it cannot be read, is too large to be `what`, or
    holds something else."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as problem:
        raise error(f"{file}: cannot be read ({os.strerror(problem.errno or 0)})", fix=fix) from problem
    except ValueError as problem:  # a null byte in the name
        raise error(f"{file}: cannot be read ({problem})", fix=fix) from problem
    if len(raw) > MAX_BYTES:
        raise error(f"{file}: larger than {MAX_BYTES:,} bytes, so it is not {what}", fix=fix)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{file}: not UTF-8 text (byte {problem.start})", fix=fix) from problem
    return parse_json_object(text, name=str(file), error=error, fix=fix)


def parse_json_object(text: str, *, name: str, error: type[DsAdviseError], fix: str) -> dict[str, Any]:
    """The object in a text that messages call `name`. Raises `error`, with `fix`, where it holds something else."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise error(
            f"{name}: not JSON: {problem.msg} (line {problem.lineno}, column {problem.colno})", fix=fix
        ) from problem
    except (ValueError, RecursionError) as problem:  # a number of thousands of digits, or thousands of open brackets
        raise error(f"{name}: not JSON that can be read", fix=fix) from problem
    if not isinstance(value, dict):
        raise error(f"{name}: holds no JSON object", fix=fix)
    return value
