"""The keys that each tool has: a key of a file that is none of them is most often a typing error.

known_keys.json holds the names in the tools' sources (`benchmarks/tool_keys.py`: LLaMA-Factory ff6d4d1, axolotl
067b021, ms-swift 3602360, the TrainingArguments of transformers 5.23) and, written by hand, accelerate's and those that
only transformers 4 has; a key of another version is unknown.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("known_keys.json")

_OWN_SCHEMA = ("accelerate", "axolotl")
"""Tools that do not take all TrainingArguments."""


class Keys(NamedTuple):
    """The keys of a configuration from which nothing is concluded."""

    uncounted: tuple[str, ...]
    """Keys of the tool that the estimators do not use."""
    unknown: tuple[str, ...]
    """Keys that the tool does not have, each with the nearest that it has."""


def keys_of(tool: str, unread: Iterable[str]) -> Keys:
    """The unread keys of a tool's configuration by whether the tool has them."""
    names, unread = _names(tool), tuple(unread)
    return Keys(
        uncounted=tuple(name for name in unread if name in names),
        unknown=tuple(_with_nearest(name, names) for name in unread if name not in names),
    )


def _with_nearest(name: str, names: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"{name} (did you mean {near[0]}?)" if near else name


@cache
def _names(tool: str) -> frozenset[str]:
    known = json.loads(FILE.read_text(encoding="utf-8"))
    shared = [] if tool in _OWN_SCHEMA else ["training-arguments", "transformers-4"]
    return frozenset(name for kind in (tool, *shared) for name in known[kind].split())
