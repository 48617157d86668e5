"""Parser of a ds_config that keeps the place of every key and value, for JSON and the Hjson that DeepSpeed reads.

DeepSpeed reads a file with hjson (runtime/config.py, `DeepSpeedConfig`): JSON with comments, unquoted keys and strings,
and optional commas. The Trainer and accelerate read it with Python's json. Syntax beyond JSON is therefore accepted
here and recorded.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from ...estimators.errors import ConfigFileError
from .document import (
    BARE_KEY,
    BYTE_ORDER_MARK,
    COMMA,
    COMMENT,
    CURLY,
    CURLY_QUOTES,
    NON_FINITE,
    TEXT,
    Document,
    Extension,
    KeyPath,
    Member,
)

MAX_BYTES = 150_000
"""Maximum size of a file. A configuration has kilobytes; a larger file is not one, and would take more than a
second."""

MAX_DEPTH = 60
"""Maximum nesting depth. DeepSpeed's deepest key has five names; a parser's stack ends at about a thousand."""

_MAX_DIGITS = 400
"""Maximum digits of a number. The largest float has 309; Python refuses to read integers beyond 4300."""

FIX = "give the JSON file that you pass to DeepSpeed or to TrainingArguments(deepspeed=...), or see ds-advise from"

_SPACE = re.compile(r"[ \t\r\n]*")
_HJSON_END, _MEANT_END = r"(?=[ \t]*(?:[,}\]#/\r\n]|$))", r"(?=[\s,}\]#/]|$)"
"""What follows a value without quotes: for hjson, which reads `1 2` as text, and for people, who forget a comma."""
_DIGITS = r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?"
_NUMBER = {as_meant: re.compile(_DIGITS + end, re.ASCII) for as_meant, end in ((False, _HJSON_END), (True, _MEANT_END))}
_LITERAL = {
    as_meant: re.compile("(true|false|null)" + end) for as_meant, end in ((False, _HJSON_END), (True, _MEANT_END))
}
_STRING = {'"': re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"'), "'": re.compile(r"'((?:[^'\\\x00-\x1f]|\\.)*)'")}
_CURLY = re.compile(rf"""[{CURLY_QUOTES}]([^{CURLY_QUOTES}"'\r\n]*)[{CURLY_QUOTES}"']""")
_NON_FINITE = re.compile(r"(NaN|-?Infinity)(?=[\s,}\]#/]|$)")
_PYTHON_CONSTANT = re.compile("(True|False|None)" + _MEANT_END)
_PYTHON_NUMBER = re.compile(r"([-+]?(?:\d[\d_]*)?(?:\.[\d_]*)?(?:[eE][-+]?\d+)?)" + _MEANT_END, re.ASCII)
_ASSIGNED = re.compile(r"([A-Za-z_]\w{0,60}) *= *\{")
_OURS, _THEIRS = (re.compile(rf"^{mark}{{7}}(?=[ \r\n]|\Z)", re.MULTILINE) for mark in "<>")
"""The beginnings of the lines that git writes around the two sides of a conflict."""
_PYTHON_CALL = re.compile(r"[A-Za-z_][\w.]{0,60}\(")
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}

_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'#]+(?=[ \t\r\n]*:)")
_BARE_STRING = re.compile(r"[^\r\n]+")
_MEANT_STRING = re.compile(r"""[A-Za-z/~.$][^\r\n,;}\]"'#]*""")
"""A name, a path or words without quotes as they are meant: hjson reads them up to the end of the line, with commas and
brackets."""
_CONSTANTS = {"true": True, "false": False, "null": None}


def read_document(raw: bytes, *, name: str, as_meant: bool = False) -> Document:
    """Parse a file's bytes.

    Hjson reads a value without quotes as text up to the end of the line, with its commas and brackets, unless it is a
    JSON number or constant: `True}`, `500_000}`, `8 "bf16": {}`. It takes curly quotes as part of a name. as_meant:
    read such a value or name as it is meant, with a `mistake`.

    Raises ConfigFileError, with line and column, if they do not hold an object, and without `as_meant` for a mistake.
    """
    if len(raw) > MAX_BYTES:
        raise ConfigFileError(f"{name}: larger than {MAX_BYTES:,} bytes, so it is not a ds_config", fix=FIX)
    utf_8 = {"why": "DeepSpeed reads UTF-8", "fix": "save it as UTF-8"}
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw:
        raise ConfigFileError(f"{name}: not UTF-8 text, but UTF-16 or not text at all", **utf_8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ConfigFileError(f"{name}: not UTF-8 text (byte {problem.start})", **utf_8) from problem
    found = None
    with suppress(NotJsonError):
        found = _Reader(text, name).document()
        if not found.has_more_than_text:
            return found
    if found is None:
        _refuse_conflict(text, name)
    try:
        meant = _Reader(text, name, as_meant=True).document()
    except NotJsonError:
        if found is not None:
            return found
        raise
    if meant.mistakes and not as_meant:
        first = meant.mistakes[0]
        raise NotJsonError(name, first.mistake, first.fix, text=meant.text, offset=first.start)
    return replace(meant, is_hjson=found is not None)


def _refuse_conflict(text: str, name: str) -> None:
    """Raise NotJsonError for the two sides of a conflict that git left in the file."""
    start = _OURS.search(text)
    end = None if start is None else _THEIRS.search(text, start.end())
    if start is not None and end is not None:
        first, last = (text.count("\n", 0, mark.start()) + 1 for mark in (start, end))
        what = f"an unresolved merge conflict on lines {first} to {last}"
        raise NotJsonError(name, what, "keep one side and remove the marks", text=text, offset=start.start())


class NotJsonError(ConfigFileError):
    """A text that is no configuration, with the place of the error."""

    def __init__(self, name: str, what: str, fix: str, *, text: str, offset: int) -> None:
        """offset: the position in the text."""
        line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
        super().__init__(f"{name}: not JSON: {what} (line {line}, column {column})", fix=fix)
        self.place_in_text = text, line, column


class _Reader:
    """A recursive-descent parser of one text, which reads values without quotes as hjson does or as they are meant.
    Each method returns a value and the position behind it."""

    def __init__(self, text: str, name: str, *, as_meant: bool = False) -> None:
        marked = text.startswith("\ufeff")
        self.text, self.name, self.as_meant = text.removeprefix("\ufeff"), name, as_meant
        self.members: list[Member] = []
        self.extensions = [Extension(BYTE_ORDER_MARK, 0, 1)] if marked else []

    def document(self) -> Document:
        start = self._skip(0)
        if start == len(self.text):
            self._fail("the file is empty", start, FIX)
        if self.text[start] != "{":
            self._refuse_other_json()
            if assigned := _ASSIGNED.match(self.text, start):
                self._fail(f"it does not begin with {{, but with {assigned[1]} =", start, "remove that")
            self._fail("it does not begin with {", start, FIX)
        value, end = self._object(start, ())
        end = self._skip(end)
        if end != len(self.text):
            self._fail("something follows the closing }", end, "remove it, or the bracket that closes too early")
        return Document(self.text, value, start, tuple(sorted(self.members)), tuple(self.extensions))

    def _refuse_other_json(self) -> None:
        """Raise ConfigFileError for JSON that is no object."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            return
        kind = "a list" if isinstance(value, list) else "a single value"
        raise ConfigFileError(f"{self.name}: {kind}, not an object", fix=FIX)

    def _fail(self, what: str, offset: int, fix: str = "correct it there") -> NoReturn:
        raise NotJsonError(self.name, what, fix, text=self.text, offset=offset)

    def _fail_open(self, closing: str, opening: int) -> NoReturn:
        """The text ends before a bracket is closed. opening: the position of the opening one."""
        line = self.text.count("\n", 0, opening) + 1
        what = f"the closing {closing} of the {self.text[opening]} on line {line} is missing"
        self._fail(what, len(self.text.rstrip()), f"write {closing} where the block ends")

    def _note(self, kind: str, start: int, end: int, plain: str = "", mistake: str = "") -> None:
        self.extensions.append(Extension(kind, start, end, plain, mistake))

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
        if literal := _LITERAL[self.as_meant].match(text, at):
            return _CONSTANTS[literal[1]], literal.end()
        if number := _NUMBER[self.as_meant].match(text, at):
            digits, fraction, exponent = number.groups()
            if len(number[0]) > _MAX_DIGITS:
                self._fail(f"a number of {len(number[0])} digits", at)
            return float(number[0]) if fraction or exponent else int(digits), number.end()
        if strange := _NON_FINITE.match(text, at):
            self._note(strange[1], at, strange.end())
            return NON_FINITE[strange[1]], strange.end()
        if not first or first in ",:}]":
            self._fail("a value is missing", at, "write it")
        return self._text(at)

    def _curly(self, at: int) -> tuple[str, int] | None:
        """A key or text in curly quotes, as it is meant; None for anything else."""
        match = _CURLY.match(self.text, at) if self.as_meant else None
        if match is None:
            return None
        mistake = f"{self.text[at]} is no quote of JSON"
        self._note(CURLY, at, match.end(), json.dumps(match[1], ensure_ascii=False), mistake)
        return match[1], match.end()

    def _text(self, at: int) -> tuple[Any, int]:
        """A value without quotes that is neither a JSON number nor a constant."""
        text = self.text
        if (curly := self._curly(at)) is not None:
            return curly
        if self.as_meant and (constant := _PYTHON_CONSTANT.match(text, at)):
            plain = _PYTHON_CONSTANTS[constant[1]]
            self._note("a Python constant", at, constant.end(), plain, f"{constant[1]} is Python")
            return _CONSTANTS[plain], constant.end()
        written = _PYTHON_NUMBER.match(text, at) if self.as_meant else None
        if written is not None and (number := _number(written[1])) is not None:
            mistake = f"{written[1][:_MAX_DIGITS]} is not a JSON number"
            self._note("a number that is not JSON", at, written.end(), json.dumps(number), mistake)
            return number, written.end()
        if self.as_meant and (call := _PYTHON_CALL.match(text, at)):
            self._fail(f"{call[0]}...) is Python", at, "write its value")
        bare = (_MEANT_STRING if self.as_meant else _BARE_STRING).match(text, at)
        if bare is None:
            self._fail("this is no value of JSON", at)
        value, end = bare[0].strip(), at + len(bare[0].rstrip())
        quoted, is_line = json.dumps(value, ensure_ascii=False), text[end : end + 1] in ("", "\r", "\n")
        mistake = "text has no quotes" * (self.as_meant and not is_line)  # not the text, which may be a secret
        self._note(TEXT, at, end, quoted, mistake)
        return value, end

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
        if (curly := self._curly(at)) is not None:
            return curly
        bare = _BARE_KEY.match(self.text, at)
        if bare is None:
            if at == len(self.text):
                self._fail_open("}", opening)
            self._fail("a key is missing", at, "write a key and its value, or remove the comma")
        self._note(BARE_KEY, at, bare.end(), json.dumps(bare[0], ensure_ascii=False))
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
            is_one_line = "\n" not in self.text[at:comma]
            if is_one_line and closing == "}" and found not in _STRING and not _BARE_KEY.match(self.text, comma):
                self._fail(f"a comma or {closing} is missing", comma, "write it")
            follows_text = is_one_line and self.text[at - 1] not in "\"'}]"
            word = _WORD.match(self.text, comma) if closing == "}" else None
            mistake = f"a comma is missing before {word[0] if word else 'the next item'}" * follows_text
            self._note(COMMA, at, at, ",", mistake)
        return comma


_WORD = re.compile(r"""(?:"[^"\r\n]{0,60}"?|[^\s,:}\]]{0,60})""")


def _number(text: str) -> int | float | None:
    """The number that Python reads in a text; None if there is none."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return number if math.isfinite(number := float(text)) else None
    return None
