"""Rows of a data file: JSON Lines, JSON, CSV and TSV, Parquet, plain text; each row with its place for errors."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TextIO, cast

from ...estimators.errors import DsAdviseError
from ...estimators.phrase import named, phrase
from ..text.units import counted_noun

_CSV = (".csv", ".tsv")
SUFFIXES = (".jsonl", ".ndjson", ".json", *_CSV, ".parquet", ".txt")

_LONGEST_FIELD = 2**31 - 1
"""Maximum characters of a CSV field; Python's default of 131,072 is less than one long document."""

_PIECE = 2**16
"""Number of characters of a plain text per row, so that the tokens of a book or a crawl need not fit in memory."""


class DataError(DsAdviseError):
    """Raised for a data file, or one of its rows, that cannot be read or trained on."""


class Row(NamedTuple):
    """One row's fields, and its place in words: `data.jsonl, line 12`."""

    place: str
    fields: dict[str, Any]
    goes_on: bool = False
    """Whether the next row continues the same text."""
    share: float | None = None
    """Share of the file that has been read, or of its rows if the file is read whole; None if unknown."""


def read_rows(path: Path, *, suffix: str | None = None) -> Iterator[Row]:
    """The rows in order, read lazily (a `.json` list is read whole).

    The suffix, by default the file's, decides the format. A `.json` file may hold a list of objects, one object with
    one list in it (`{"data": [...]}`), or one object per line. The header of a `.csv` file shows whether commas,
    semicolons, tabs or bars separate the fields. A `.txt` file is one text, read in pieces that end with a line.
    Parquet needs the `datasets` library.

    Raises DataError, naming the file and the line (row, element), for content that cannot be read or is not an object.
    """
    suffix = suffix or path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            phrase("{path}: unknown kind of data file", path=path),
            why=phrase("the suffix {suffix} is not known", suffix=suffix or "(none)"),
            fix=phrase("rename it to end with one of {names}, as its content is", names=", ".join(SUFFIXES)),
        )
    return _parquet(path) if suffix == ".parquet" else _text(path, suffix)


def _text(path: Path, suffix: str) -> Iterator[Row]:
    try:
        # newline="": the csv module needs line ends inside quotes unchanged.
        with path.open(encoding="utf-8-sig", newline="" if suffix in _CSV else None) as stream:
            if suffix in _CSV:
                rows = _csv(path, stream, delimiter="\t" if suffix == ".tsv" else _delimiter(stream))
            elif suffix == ".txt":
                rows = _plain_text(path, stream)
            elif suffix != ".json" or _is_json_lines(stream):
                rows = _json_lines(path, stream)
            else:
                yield from _json(path, stream)
                return
            size, buffer = path.stat().st_size or 1, cast(BinaryIO, stream.buffer)
            for row in rows:
                yield row._replace(share=min(1.0, buffer.tell() / size))
    except UnicodeDecodeError as problem:
        raise _not_utf_8(path) from problem
    except OSError as problem:
        what = phrase("{path}: cannot be read ({reason})", path=path, reason=os.strerror(problem.errno or 0))
        raise DataError(what, fix="check --data") from problem


def _not_utf_8(path: Path) -> DataError:
    """The error for a file that is not UTF-8, naming the first line that cannot be read."""
    fix = "save it as UTF-8"
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError as problem:
                why = f"byte {line[problem.start]:#04x} cannot be read"
                where = f"{path.name}, line {number}"
                return DataError(phrase("{path}: not UTF-8 text", path=where), why=why, fix=fix)
    return DataError(phrase("{path}: not UTF-8 text", path=path), fix=fix)


def _plain_text(path: Path, stream: TextIO) -> Iterator[Row]:
    if isinstance(_parsed(stream.readline(_PIECE)), dict):
        raise DataError(
            phrase("{path}: holds JSON Lines", path=path),
            why="as plain text its braces would be trained",
            fix="name it .jsonl",
        )
    stream.seek(0)
    line, piece = 1, _piece(stream)
    while piece:
        following = _piece(stream)
        yield Row(f"{path.name}, line {line}", {"text": piece}, goes_on=bool(following))
        line, piece = line + piece.count("\n"), following


def _piece(stream: TextIO) -> str:
    """The next `_PIECE` characters, extended to the end of their line by at most `_PIECE` more."""
    return stream.read(_PIECE) + stream.readline(_PIECE)


def _parsed(line: str) -> Any:
    """The JSON value of a line; None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_json_lines(stream: TextIO) -> bool:
    """Whether the first line is an object that is a row, not the beginning of a document."""
    value = _parsed(next((line for line in stream if line.strip()), ""))
    stream.seek(0)
    return isinstance(value, dict) and _only_list(value) is None


def _json_lines(path: Path, stream: TextIO) -> Iterator[Row]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            place = f"{path.name}, line {number}"
            yield _object(place, _loaded(line, place))


def _json(path: Path, stream: TextIO) -> Iterator[Row]:
    document = _loaded(stream.read(), path.name, has_lines=True)
    rows = document if isinstance(document, list) else _only_list(document)
    if rows is None:
        refuse(path.name, "holds neither a list of objects nor one object with one list")
    for number, value in enumerate(rows, 1):
        yield _object(f"{path.name}, element {number}", value)._replace(share=number / len(rows))


def _loaded(text: str, place: str, *, has_lines: bool = False) -> Any:
    """The JSON value of a text. has_lines: whether the error names the line within the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        line = f", line {problem.lineno}" if has_lines else ""
        refuse(f"{place}{line}", f"not JSON ({problem.msg}, column {problem.colno})")
    except (ValueError, RecursionError) as problem:
        refuse(place, f"not JSON ({_reason(problem)})")


def _only_list(document: Any) -> list[Any] | None:
    """The rows of `{"data": [...]}`. A row of chat messages has a list too, but not one of rows."""
    if not isinstance(document, dict):
        return None
    messages = ("messages", "conversations")
    lists = [value for name, value in document.items() if isinstance(value, list) and name not in messages]
    return lists[0] if len(lists) == 1 and all(isinstance(value, dict) for value in lists[0]) else None


def _object(place: str, value: Any) -> Row:
    if not isinstance(value, dict):
        kinds = {list: "a list", str: "text", bool: "a truth value", type(None): "null"}
        refuse(place, f"{kinds.get(type(value), 'a number')} where an object is needed")
    return Row(place, value)


def _delimiter(stream: TextIO) -> str:
    """The separator in the header. Programs in countries with decimal commas write semicolons."""
    header = stream.readline()
    stream.seek(0)
    others = [character for character in ";\t|" if character in header and "," not in header]
    return max(others, key=header.count, default=",")


def _csv(path: Path, stream: TextIO, *, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            place = f"{path.name}, line {reader.line_num}"
            if None in fields or None in fields.values():
                beyond = fields.pop(None, [])
                count = len(beyond) + sum(value is not None for value in fields.values())
                refuse(place, f"{counted_noun(count, 'field')}, but the header names {len(reader.fieldnames or ())}")
            yield Row(place, dict(fields))
    except csv.Error as problem:
        refuse(f"{path.name}, line {reader.reader.line_num}", str(problem))


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as problem:
        raise DataError(
            phrase("{path}: Parquet needs the datasets library", path=path.name),
            why="it is not installed",
            fix="pip install datasets",
        ) from problem
    if not path.is_file():
        what = phrase("{path}: cannot be read ({reason})", path=path, reason=os.strerror(errno.ENOENT))
        raise DataError(what, fix="check --data")
    try:
        # Streaming: no copy of the file is made in a cache.
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for number, fields in enumerate(rows, 1):
            yield Row(f"{path.name}, row {number}", dict(fields))
    except (
        OSError,
        ValueError,
        datasets.exceptions.DatasetsError,
    ) as problem:  # Arrow's errors are OSError, ValueError
        refuse(path.name, f"not Parquet that can be read ({_reason(problem)})")


def _reason(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def refuse(place: str, what: str, fix: str = phrase("repair or remove it")) -> NoReturn:
    what = phrase("{place}: {what}", place=place, what=named(what))
    raise DataError(what, why="every row must be one whole sample", fix=fix)
