"""Parser of a ds_config that keeps the place of every key and value, for JSON and the Hjson that DeepSpeed reads.

DeepSpeed reads a file with hjson (runtime/config.py, `DeepSpeedConfig`): JSON with comments, unquoted keys and strings,
and optional commas. The Trainer and accelerate read it with Python's json. Syntax beyond JSON is therefore accepted
here and recorded.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from ...estimators.errors import ConfigFileError
from ...estimators.phrase import named, phrase

MAX_BYTES = 150_000
"""Maximum size of a file. A configuration has kilobytes; a larger file is not one, and would take more than a
second."""

MAX_DEPTH = 60
"""Maximum nesting depth. DeepSpeed's deepest key has five names; a parser's stack ends at about a thousand."""

_MAX_DIGITS = 400
"""Maximum digits of a number. The largest float has 309; Python refuses to read integers beyond 4300."""

FIX = "give the JSON file that you pass to DeepSpeed or to TrainingArguments(deepspeed=...), or see ds-advise from"

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_STRING = {'"': re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"'), "'": re.compile(r"'((?:[^'\\\x00-\x1f]|\\.)*)'")}
_LITERAL = re.compile(r"(true|false|null)(?=[\s,}\]#/]|$)")
_NON_FINITE = re.compile(r"(NaN|-?Infinity)(?=[\s,}\]#/]|$)")
_PYTHON_CONSTANT = re.compile(r"(True|False|None)[ \t]*[,}\]]")
"""Python constants: Hjson reads `True,` as text up to the end of the line."""

_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'#]+(?=[ \t\r\n]*:)")
_BARE_STRING = re.compile(r"[^\r\n]+")
_BLANKS = re.compile(r"[ \t]*")
_CONSTANTS = {"true": True, "false": False, "null": None}
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that Python's json accepts and JSON does not have."""


class Departure(NamedTuple):
    """Syntax beyond JSON: its kind ("comment", "trailing comma", ...) and place."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentNode:
    """A value as a Python object, its place, and its members or items."""

    value: Any
    start: int
    end: int
    members: tuple[Member, ...] = ()
    items: tuple[DocumentNode, ...] = ()

    def member(self, key: str) -> Member | None:
        """The member of this name, the last one of several; None if there is none."""
        return next((member for member in reversed(self.members) if member.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A key with its place and its value."""

    key: str
    start: int
    end: int
    node: DocumentNode


@dataclass(frozen=True)
class Document:
    """A parsed configuration."""

    text: str
    root: DocumentNode
    departures: tuple[Departure, ...]
    byte_order_mark: bool
    """Whether the file begins with one; it is not part of `text`."""

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a position, both from 1."""
        line = bisect.bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def member(self, path: tuple[str, ...]) -> Member | None:
        """The key at a path of names, None if there is none."""
        node, member = self.root, None
        for name in path:
            member = node.member(name)
            if member is None:
                return None
            node = member.node
        return member

    def duplicates(self) -> Iterator[tuple[tuple[str, ...], Member]]:
        """(path, member) of every repeated key in its object."""
        return _duplicates(self.root, ())

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


def _duplicates(node: DocumentNode, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Member]]:
    seen: set[str] = set()
    for member in node.members:
        here = (*path, member.key)
        if member.key in seen:
            yield here, member
        seen.add(member.key)
        yield from _duplicates(member.node, here)
    for index, item in enumerate(node.items):
        yield from _duplicates(item, (*path, str(index)))


def read_document(raw: bytes, *, name: str) -> Document:
    """Parse a file's bytes. Raises ConfigFileError, with line and column, if they do not hold an object."""
    if len(raw) > MAX_BYTES:
        raise ConfigFileError(
            phrase("{name}: larger than {most:,} bytes, so it is not a ds_config", name=name, most=MAX_BYTES), fix=FIX
        )
    utf_8 = {"why": "DeepSpeed reads UTF-8", "fix": "save it as UTF-8"}
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw:
        raise ConfigFileError(phrase("{name}: not UTF-8 text, but UTF-16 or not text at all", name=name), **utf_8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ConfigFileError(
            phrase("{name}: not UTF-8 text (byte {position})", name=name, position=problem.start), **utf_8
        ) from problem
    marked = text.startswith("\ufeff")
    reader = _Reader(text[1:] if marked else text, name)
    root = reader.document()
    return Document(reader.text, root, tuple(reader.departures), marked)


class _Reader:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.departures: list[Departure] = []

    def document(self) -> DocumentNode:
        start = self._skip(0)
        if start == len(self.text):
            self._fail("the file is empty", start)
        if self.text[start] != "{":
            self._fail("it does not begin with {", start)
        root = self._object(start, 1)
        end = self._skip(root.end)
        if end != len(self.text):
            self._fail("something follows the closing }", end)
        return root

    def _fail(self, what: str, offset: int) -> NoReturn:
        line = self.text.count("\n", 0, offset) + 1
        column = offset - self.text.rfind("\n", 0, offset)
        place = {"name": self.name, "line": line, "column": column}
        raise ConfigFileError(
            phrase("{name}: not JSON: {what} (line {line}, column {column})", what=named(what), **place), fix=FIX
        )

    def _note(self, kind: str, start: int, end: int) -> None:
        self.departures.append(Departure(kind, start, end))

    def _skip(self, at: int) -> int:
        """Skip white space and comments."""
        text = self.text
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it also matches ""
            if text.startswith(("#", "//"), at):
                end = text.find("\n", at)
            elif text.startswith("/*", at):
                end = text.find("*/", at + 2) + 2
                if end == 1:
                    self._fail("the comment has no end", at)
            else:
                return at
            end = len(text) if end == -1 else end
            self._note("comment", at, end)
            at = end

    def _value(self, at: int, depth: int) -> DocumentNode:
        text = self.text
        first = text[at : at + 1]
        if first == "{":
            return self._object(at, depth + 1)
        if first == "[":
            return self._array(at, depth + 1)
        if first in _STRING:
            value, end = self._string(at)
            return DocumentNode(value=value, start=at, end=end)
        literal = _LITERAL.match(text, at)
        if literal:
            return DocumentNode(value=_CONSTANTS[literal[1]], start=at, end=literal.end())
        number = _NUMBER.match(text, at)
        if number and self._value_ends(number.end()):
            return DocumentNode(value=self._number(number), start=at, end=number.end())
        strange = _NON_FINITE.match(text, at)
        if strange:
            self._note(strange[1], at, strange.end())
            return DocumentNode(value=NON_FINITE[strange[1]], start=at, end=strange.end())
        if not first or first in ",:}]":
            self._fail("a value is missing", at)
        if python := _PYTHON_CONSTANT.match(text, at):
            self._fail(f"{python[1]} is Python; json.dump writes the dict as JSON", at)
        bare = _BARE_STRING.match(text, at)
        assert bare is not None
        self._note("text without quotes", at, bare.end())
        return DocumentNode(value=bare[0].strip(), start=at, end=at + len(bare[0].rstrip()))

    def _value_ends(self, at: int) -> bool:
        """Whether only white space precedes the next comma, bracket, comment or end of line."""
        end = _BLANKS.match(self.text, at).end()  # type: ignore[union-attr]  # it also matches ""
        return self.text[end : end + 1] in ("", ",", "}", "]", "#", "/", "\n", "\r")

    def _number(self, match: re.Match[str]) -> int | float:
        digits, fraction, exponent = match.groups()
        if len(match[0]) > _MAX_DIGITS:
            self._fail(f"a number of {len(match[0])} digits", match.start())
        return float(match[0]) if fraction or exponent else int(digits)

    def _string(self, at: int) -> tuple[str, int]:
        quote = self.text[at]
        match = _STRING[quote].match(self.text, at)
        if match is None:
            self._fail("the string has no end, or a line break or control character in it", at)
        inner = match[1]
        if quote == "'":
            self._note("single quotes", at, match.end())
            inner = inner.replace("\\'", "'").replace('"', '\\"')
        try:
            return json.loads(f'"{inner}"'), match.end()
        except ValueError:
            self._fail("a backslash before a character that cannot follow it", at)

    def _key(self, at: int) -> tuple[str, int]:
        if self.text[at : at + 1] in _STRING:
            return self._string(at)
        bare = _BARE_KEY.match(self.text, at)
        if bare is None:
            self._fail("a key is missing" if at < len(self.text) else "the closing } is missing", at)
        self._note("key without quotes", at, bare.end())
        return bare[0], bare.end()

    def _object(self, at: int, depth: int) -> DocumentNode:
        self._check(depth, at)
        members: list[Member] = []
        here = self._skip(at + 1)
        while self.text[here : here + 1] != "}":
            key, key_end = self._key(here)
            colon = self._skip(key_end)
            if self.text[colon : colon + 1] != ":":
                self._fail("a colon is missing after the key", colon)
            node = self._value(self._skip(colon + 1), depth)
            members.append(Member(key=key, start=here, end=key_end, node=node))
            here = self._separator(node.end, "}")
        value = {member.key: member.node.value for member in members}
        return DocumentNode(value=value, start=at, end=here + 1, members=tuple(members))

    def _array(self, at: int, depth: int) -> DocumentNode:
        self._check(depth, at)
        items: list[DocumentNode] = []
        here = self._skip(at + 1)
        while self.text[here : here + 1] != "]":
            items.append(self._value(here, depth))
            here = self._separator(items[-1].end, "]")
        return DocumentNode(value=[item.value for item in items], start=at, end=here + 1, items=tuple(items))

    def _separator(self, at: int, closing: str) -> int:
        """Skip the comma, if there is one, up to the next key, value or closing bracket."""
        comma = self._skip(at)
        found = self.text[comma : comma + 1]
        if found == ",":
            after = self._skip(comma + 1)
            if self.text[after : after + 1] == closing:
                self._note("comma before a closing bracket", comma, comma + 1)
            return after
        if not found:
            self._fail(f"the closing {closing} is missing", comma)
        if found != closing:
            if "\n" not in self.text[at:comma]:
                self._fail(f"a comma or {closing} is missing", comma)
            self._note("missing comma", at, at)
        return comma

    def _check(self, depth: int, at: int) -> None:
        if depth > MAX_DEPTH:
            self._fail(f"brackets are nested more than {MAX_DEPTH} deep", at)
