"""A ds_config to copy, with the meaning of its keys, and its values as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.config_keys import meaning
from ...ds_configs.files import config_text
from ..document.blocks import Block, Code, Folded, Row, Snippet, Table
from ..text.units import printable

_LONGEST_VALUE = 24


def configuration(config: Mapping[str, Any], name: str) -> list[Block]:
    """Return the blocks of a report on a configuration: the text to copy, and the meaning of its keys."""
    known = ((path, value, words) for path, value in _flat(config) if (words := meaning(path)))
    rows = [Row([Snippet(path), Snippet(value_label(value))], remarks=[words]) for path, value, words in known]
    keys = Table(["key and meaning", "value"], rows)
    text = Code(config_text(config).splitlines(), Path(name).name)
    return [Folded(f"{name}, to copy", [text]), Folded("What its keys decide", [keys])]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def value_label(value: Any) -> str:
    """Return a value in the notation of configurations, shortened."""
    if value is None or isinstance(value, bool):
        text = "null" if value is None else str(value).lower()
    elif isinstance(value, int | float):
        text = _number(value)
    else:
        text = "{...}" if isinstance(value, dict) else str(value)
    if isinstance(value, str) and _is_json(value):  # "4" is not 4
        text = f'"{text}"'
    text = printable(text)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _is_json(text: str) -> bool:
    """Whether a text without its quotes would be a number, a constant or text in quotes."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _number(value: int | float) -> str:
    """Return `50,000,000` as `5e7` if that is exact, which is the notation of configurations."""
    if isinstance(value, int) and not 1e5 <= abs(value) < 1e15:
        return f"{value:,}"
    short = f"{value:.4g}".replace("e+0", "e").replace("e+", "e")
    return short if float(short) == value else f"{value:,}" if isinstance(value, int) else f"{value:g}"
