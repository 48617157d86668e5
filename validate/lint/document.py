"""A ds_config with the place of every key and value, and the syntax beyond JSON that it has."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that Python's json accepts and JSON does not have."""

BYTE_ORDER_MARK, COMMENT, COMMA, TEXT = "a byte order mark", "a comment", "a missing comma", "text without quotes"
BARE_KEY = "a key without quotes"
CURLY = "curly quotes"
CURLY_QUOTES = "\u201c\u201d\u201e\u201f\u2018\u2019\u201a"
_FIXES = {COMMA: "write it", TEXT: "write it in quotes"}
_MORE_THAN_TEXT = re.compile(r"""[,}\]"]""")

KeyPath = tuple[str, ...]


class Extension(NamedTuple):
    """Syntax beyond JSON: its kind ("a comment", "a missing comma", ...) and place, and what replaces it in JSON."""

    kind: str
    start: int
    end: int
    plain: str = ""
    mistake: str = ""
    """What is wrong, if hjson does not read it as it is meant: "True is Python"; else ""."""

    @property
    def fix(self) -> str:
        return _FIXES.get(self.kind) or (f"write {self.plain}" if self.plain else "remove it")


class Member(NamedTuple):
    """The place of a key, and of its value."""

    start: int
    end: int
    value_start: int
    value_end: int
    path: KeyPath
    """The names from the top; the name of an item of a list is its index."""


@dataclass(frozen=True)
class Document:
    """A parsed configuration."""

    text: str
    """The text without a byte order mark."""
    value: dict[str, Any]
    start: int
    """Position of the first brace."""
    members: tuple[Member, ...]
    """Every key in the order of the text, repeated ones too."""
    extensions: tuple[Extension, ...]
    is_hjson: bool = True
    """Whether hjson reads the text at all."""

    @property
    def mistakes(self) -> tuple[Extension, ...]:
        """The places that hjson does not read as they are meant."""
        return tuple(found for found in self.extensions if found.mistake)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a position, both from 1."""
        line = bisect.bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def member(self, path: KeyPath) -> Member | None:
        """The key at a path of names, the last one of several; None if there is none."""
        return self._by_path.get(path)

    def list_members(self, owner: KeyPath) -> list[Member]:
        """The keys of the object at a path, the last one of several objects."""
        block = self.member(owner)
        start, end = (block.value_start, block.value_end) if block else (self.start, len(self.text))
        return [member for member in self.members if member.path[:-1] == owner and start <= member.start < end]

    def duplicates(self) -> Iterator[tuple[Member, Member]]:
        """(first place, further place) of every key that is repeated in one object. Keys of two objects are no
        repetition, also if the objects have one name."""
        first: dict[tuple[KeyPath, int], Member] = {}
        latest: dict[KeyPath, Member] = {}
        for member in self.members:
            owners = (latest[member.path[:depth]] for depth in range(len(member.path)) if member.path[:depth] in latest)
            here = member.path, max((owner.start for owner in owners), default=0)
            if here in first:
                yield first[here], member
            first.setdefault(here, member)
            latest[member.path] = member

    def moved(self, old: KeyPath, new: KeyPath) -> Document:
        """The document as if a key had another path; the text and its places stay."""
        depth = len(old)
        members = (
            member._replace(path=new + member.path[depth:]) if member.path[:depth] == old else member
            for member in self.members
        )
        return replace(self, members=tuple(members))

    def key_before(self, offset: int) -> KeyPath:
        """The path of the last key that begins before a position; empty if there is none."""
        return next((member.path for member in reversed(self.members) if member.start <= offset), ())

    def plain_text(self, extensions: Iterable[Extension]) -> str:
        """The text with JSON in place of extensions: without comments, whole lines of them included, and with quotes
        and commas."""
        text = self.text
        for found in sorted(extensions, key=lambda each: each.start, reverse=True):
            if found.kind == BYTE_ORDER_MARK or found.kind in NON_FINITE:
                continue
            before, after = text[: found.start], text[found.end :]
            if found.kind == COMMENT:
                bare = before.rstrip(" \t")
                if not bare or bare.endswith("\n"):
                    before, after = bare, after.removeprefix("\r").removeprefix("\n")
                elif after.startswith(("\r", "\n")):
                    before = bare
            text = before + found.plain + after
        return text

    @property
    def has_more_than_text(self) -> bool:
        """Whether a text without quotes has a comma, a bracket or a quote, or it or a key begins with a curly quote."""
        bare = (found for found in self.extensions if found.kind in (TEXT, BARE_KEY))
        return any(
            self.text[found.start] in CURLY_QUOTES
            or (found.kind == TEXT and _MORE_THAN_TEXT.search(self.text[found.start : found.end]) is not None)
            for found in bare
        )

    @property
    def has_byte_order_mark(self) -> bool:
        return any(found.kind == BYTE_ORDER_MARK for found in self.extensions)

    @cached_property
    def _by_path(self) -> dict[KeyPath, Member]:
        return {member.path: member for member in self.members}

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]
