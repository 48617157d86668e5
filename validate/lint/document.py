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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from ...estimators.errors import ConfigFileError

MAX_BYTES = 150_000
"""Maximum size of a file. A configuration has kilobytes; a larger file is not one, and would take more than a
second."""

MAX_DEPTH = 60
"""Maximum nesting depth. DeepSpeed's deepest key has five names; a parser's stack ends at about a thousand."""

_MAX_DIGITS = 400
"""Maximum digits of a number. The largest float has 309; Python refuses to read integers beyond 4300."""

FIX = "give the JSON file that you pass to DeepSpeed or to TrainingArguments(deepspeed=...), or see ds-advise from"

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?(?=[ \t]*(?:[,}\]#/\r\n]|$))", re.ASCII)
"""A number, followed by a comma, a bracket, a comment or the end of the line: hjson reads `1 2` as text."""
_STRING = {'"': re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"'), "'": re.compile(r"'((?:[^'\\\x00-\x1f]|\\.)*)'")}
_LITERAL = re.compile(r"(true|false|null)(?=[\s,}\]#/]|$)")
_NON_FINITE = re.compile(r"(NaN|-?Infinity)(?=[\s,}\]#/]|$)")
_PYTHON_CONSTANT = re.compile(r"(True|False|None)[ \t]*[,}\]]")
"""Python constants: Hjson reads `True,` as text up to the end of the line."""

_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}

_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'#]+(?=[ \t\r\n]*:)")
_BARE_STRING = re.compile(r"[^\r\n]+")
_CONSTANTS = {"true": True, "false": False, "null": None}
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that Python's json accepts and JSON does not have."""

BYTE_ORDER_MARK, COMMENT = "a byte order mark", "a comment"

KeyPath = tuple[str, ...]


class Extension(NamedTuple):
    """Syntax beyond JSON: its kind ("a comment", "a missing comma", ...) and place, and what replaces it in JSON."""

    kind: str
    start: int
    end: int
    plain: str = ""


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

    def plain_text(self) -> str:
        """The text as plain JSON: without comments, whole lines of them included, and with quotes and commas."""
        text = self.text
        for found in sorted(self.extensions, key=lambda each: each.start, reverse=True):
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
    def has_byte_order_mark(self) -> bool:
        return any(found.kind == BYTE_ORDER_MARK for found in self.extensions)

    @cached_property
    def _by_path(self) -> dict[KeyPath, Member]:
        return {member.path: member for member in self.members}

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


def read_document(raw: bytes, *, name: str) -> Document:
    """Parse a file's bytes. Raises ConfigFileError, with line and column, if they do not hold an object."""
    if len(raw) > MAX_BYTES:
        raise ConfigFileError(f"{name}: larger than {MAX_BYTES:,} bytes, so it is not a ds_config", fix=FIX)
    utf_8 = {"why": "DeepSpeed reads UTF-8", "fix": "save it as UTF-8"}
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw:
        raise ConfigFileError(f"{name}: not UTF-8 text, but UTF-16 or not text at all", **utf_8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ConfigFileError(f"{name}: not UTF-8 text (byte {problem.start})", **utf_8) from problem
    return _Reader(text, name).document()


class NotJsonError(ConfigFileError):
    """A text that is no configuration, with the place of the error."""

    def __init__(self, name: str, what: str, fix: str, *, text: str, offset: int) -> None:
        """offset: the position in the text."""
        line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
        super().__init__(f"{name}: not JSON: {what} (line {line}, column {column})", fix=fix)
        self.place_in_text = text, line, column


class _Reader:
    """A recursive-descent parser of one text. Each method returns a value and the position behind it."""

    def __init__(self, text: str, name: str) -> None:
        marked = text.startswith("\ufeff")
        self.text, self.name = text.removeprefix("\ufeff"), name
        self.members: list[Member] = []
        self.extensions = [Extension(BYTE_ORDER_MARK, 0, 1)] if marked else []

    def document(self) -> Document:
        start = self._skip(0)
        if start == len(self.text):
            self._fail("the file is empty", start, FIX)
        if self.text[start] != "{":
            self._fail("it does not begin with {", start, FIX)
        value, end = self._object(start, ())
        end = self._skip(end)
        if end != len(self.text):
            self._fail("something follows the closing }", end, "remove it, or the bracket that closes too early")
        return Document(self.text, value, start, tuple(sorted(self.members)), tuple(self.extensions))

    def _fail(self, what: str, offset: int, fix: str = "correct it there") -> NoReturn:
        raise NotJsonError(self.name, what, fix, text=self.text, offset=offset)

    def _fail_open(self, closing: str, opening: int) -> NoReturn:
        """The text ends before a bracket is closed. opening: the position of the opening one."""
        line = self.text.count("\n", 0, opening) + 1
        what = f"the closing {closing} of the {self.text[opening]} on line {line} is missing"
        self._fail(what, len(self.text.rstrip()), f"write {closing} where the block ends")

    def _note(self, kind: str, start: int, end: int, plain: str = "") -> None:
        self.extensions.append(Extension(kind, start, end, plain))

    def _skip(self, at: int) -> int:
        text = self.text
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it also matches ""
            if text.startswith(("#", "//"), at):
                end = text.find("\n", at)
            elif text.startswith("/*", at):
                end = text.find("*/", at + 2) + 2
                if end == 1:
                    self._fail("the comment has no end", at, "write */ where it ends")
            else:
                return at
            end = len(text) if end == -1 else end
            self._note(COMMENT, at, end)
            at = end

    def _value(self, at: int, path: KeyPath) -> tuple[Any, int]:
        text = self.text
        first = text[at : at + 1]
        if first == "{":
            return self._object(at, path)
        if first == "[":
            return self._array(at, path)
        if first in _STRING:
            return self._string(at)
        if literal := _LITERAL.match(text, at):
            return _CONSTANTS[literal[1]], literal.end()
        if number := _NUMBER.match(text, at):
            digits, fraction, exponent = number.groups()
            if len(number[0]) > _MAX_DIGITS:
                self._fail(f"a number of {len(number[0])} digits", at)
            return float(number[0]) if fraction or exponent else int(digits), number.end()
        if strange := _NON_FINITE.match(text, at):
            self._note(strange[1], at, strange.end())
            return NON_FINITE[strange[1]], strange.end()
        if not first or first in ",:}]":
            self._fail("a value is missing", at, "write it")
        if python := _PYTHON_CONSTANT.match(text, at):
            fix = f"write {_PYTHON_CONSTANTS[python[1]]}, or write a script's dict with json.dump"
            self._fail(f"{python[1]} is Python", at, fix)
        bare = _BARE_STRING.match(text, at)
        assert bare is not None
        end = at + len(bare[0].rstrip())
        self._note("text without quotes", at, end, json.dumps(bare[0].strip(), ensure_ascii=False))
        return bare[0].strip(), end

    def _string(self, at: int) -> tuple[str, int]:
        quote = self.text[at]
        match = _STRING[quote].match(self.text, at)
        if match is None:
            self._fail("the string has no end, or a line break or control character in it", at)
        inner = match[1]
        if quote == "'":
            inner = inner.replace("\\'", "'").replace('"', '\\"')
            self._note("single quotes", at, match.end(), f'"{inner}"')
        try:
            return json.loads(f'"{inner}"'), match.end()
        except ValueError:
            self._fail("a backslash before a character that cannot follow it", at)

    def _key(self, at: int, opening: int) -> tuple[str, int]:
        if self.text[at : at + 1] in _STRING:
            return self._string(at)
        bare = _BARE_KEY.match(self.text, at)
        if bare is None:
            if at == len(self.text):
                self._fail_open("}", opening)
            self._fail("a key is missing", at, "write a key and its value, or remove the comma")
        self._note("a key without quotes", at, bare.end(), json.dumps(bare[0], ensure_ascii=False))
        return bare[0], bare.end()

    def _object(self, at: int, path: KeyPath) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        here = self._first(at, path)
        while self.text[here : here + 1] != "}":
            key, key_end = self._key(here, at)
            colon = self._skip(key_end)
            if self.text[colon : colon + 1] != ":":
                self._fail("a colon is missing after the key", colon, "write it")
            start = self._skip(colon + 1)
            values[key], end = self._value(start, (*path, key))
            self.members.append(Member(here, key_end, start, end, (*path, key)))
            here = self._separator(end, "}", at)
        return values, here + 1

    def _array(self, at: int, path: KeyPath) -> tuple[list[Any], int]:
        values: list[Any] = []
        here = self._first(at, path)
        while self.text[here : here + 1] != "]":
            value, end = self._value(here, (*path, str(len(values))))
            values.append(value)
            here = self._separator(end, "]", at)
        return values, here + 1

    def _first(self, at: int, path: KeyPath) -> int:
        """The position behind an opening bracket."""
        if len(path) >= MAX_DEPTH:
            self._fail(f"brackets are nested more than {MAX_DEPTH} deep", at)
        return self._skip(at + 1)

    def _separator(self, at: int, closing: str, opening: int) -> int:
        """Skip the comma, if there is one, up to the next key, value or closing bracket. opening: the position of the
        opening one."""
        comma = self._skip(at)
        found = self.text[comma : comma + 1]
        if found == ",":
            after = self._skip(comma + 1)
            if self.text[after : after + 1] == closing:
                self._note("a comma before a closing bracket", comma, comma + 1)
            return after
        if not found:
            self._fail_open(closing, opening)
        if found != closing:
            if "\n" not in self.text[at:comma]:
                self._fail(f"a comma or {closing} is missing", comma, "write it")
            self._note("a missing comma", at, at, ",")
        return comma
