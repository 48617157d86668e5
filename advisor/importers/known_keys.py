"""Keys of a configuration from which nothing is concluded: harmless ones, ones that the estimators do not use, and ones
that the tool does not have, most often typing errors.

known_keys.json holds the names in the tools' sources (`benchmarks/tool_keys.py`: LLaMA-Factory ff6d4d1, axolotl
067b021, ms-swift 3602360, the TrainingArguments of transformers 5.23); a key of another version is unknown. Written by
hand are accelerate's, those that only transformers 4 has, and those that change neither the memory nor the time of a
step: in "harmless" * stands for any letters, and in "harmless-topics" NAME also for all keys that begin with NAME_.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("known_keys.json")

_OWN_SCHEMA = ("accelerate", "axolotl")
"""Tools that do not take all TrainingArguments."""


class Keys(NamedTuple):
    """The keys of a configuration from which nothing is concluded, without harmless ones."""

    uncounted: tuple[str, ...]
    """Keys of the tool that the estimators do not use."""
    unknown: tuple[str, ...]
    """Keys that the tool does not have, each with the nearest that it has."""


def keys_of(tool: str, unread: Iterable[str], *, has_own: bool = False) -> Keys:
    """The unread keys of a tool's configuration. has_own: it may have keys of the user's own, so that none is
    unknown."""
    names, unread = _names(tool), tuple(unread)
    known = [name for name in unread if has_own or name in names]
    return Keys(
        uncounted=tuple(name for name in known if not _harmless().fullmatch(name)),
        unknown=tuple(_with_nearest(name, names) for name in unread if name not in known),
    )


def _with_nearest(name: str, names: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"{name} (did you mean {near[0]}?)" if near else name


@cache
def _harmless() -> re.Pattern[str]:
    topics, names = (_lists()[kind].replace(" ", "|") for kind in ("harmless-topics", "harmless"))
    return re.compile(rf"({topics})(_\w+)?|" + names.replace("*", r"\w*"))


@cache
def _names(tool: str) -> frozenset[str]:
    shared = [] if tool in _OWN_SCHEMA else ["training-arguments", "transformers-4"]
    return frozenset(name for kind in (tool, *shared) for name in _lists().get(kind, "").split())


@cache
def _lists() -> dict[str, str]:
    """The lists of `FILE`, each separated by blanks."""
    lists: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return lists
