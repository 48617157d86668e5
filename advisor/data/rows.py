"""Data that cannot be trained on."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

from ...estimators.errors import DsAdviseError
from ..text.units import counted_noun


class DataError(DsAdviseError):
    """A data file, or one of its rows, that cannot be read or has no known shape."""


_JSON_LINES, _JSON, _CSV, _PARQUET = (".jsonl", ".ndjson"), (".json",), (".csv", ".tsv"), (".parquet",)
_PLAIN = (".txt",)
SUFFIXES = (*_JSON_LINES, *_JSON, *_CSV, *_PARQUET, *_PLAIN)

_LONGEST_FIELD = 2**31 - 1
"""Characters of a CSV field; Python's own limit of 131,072 is less than one long document."""

_PIECE = 2**16
"""Characters of a plain text that are one row: as a whole, a book or a crawl would not fit in memory as tokens."""


class Row(NamedTuple):
    """One row's fields, and its place in words: `data.jsonl, line 12`."""

    place: str
    fields: dict[str, Any]
    goes_on: bool = False
    """The next row is the same text, which has not ended."""


def read_rows(path: Path) -> Iterator[Row]:
    """The rows in their order, read as they are asked for (a `.json` list is read whole).

    The suffix decides. A `.json` file may hold a list of objects, one object with one list in it (`{"data": [...]}`),
    or one object a line. A `.csv` file's header tells whether commas, semicolons, tabs or bars separate the fields. A
    `.txt` file is one text, read in pieces that end with a line. Parquet is read by the `datasets` library, which is
    imported for nothing else here.

    Raises DataError, naming the file and the line (row, element), for what cannot be read, is no object, or no file at
    all.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: unknown kind of data file",
            why=f"the suffix {suffix or '(none)'} says nothing",
            fix=f"name it {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, as what it holds",
        )
    if suffix in _PARQUET:
        return _parquet(path)
    return _text(path, suffix)


def _text(path: Path, suffix: str) -> Iterator[Row]:
    try:
        # newline="": the csv module wants to see line ends inside quotes as they are.
        with path.open(encoding="utf-8-sig", newline="" if suffix in _CSV else None) as stream:
            if suffix in _CSV:
                yield from _csv(path, stream, delimiter="\t" if suffix == ".tsv" else _delimiter(stream))
            elif suffix in _PLAIN:
                yield from _plain_text(path, stream)
            elif suffix in _JSON_LINES or _is_json_lines(stream):
                yield from _json_lines(path, stream)
            else:
                yield from _json(path, stream)
    except UnicodeDecodeError as problem:
        raise _not_utf_8(path) from problem
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({os.strerror(problem.errno or 0)})", fix="check --data") from problem


def _not_utf_8(path: Path) -> DataError:
    """The error that names the first line that cannot be read."""
    with path.open("rb") as stream:
        if stream.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return DataError(f"{path}: UTF-16 text", why="UTF-8 is needed", fix="save it as UTF-8")
        stream.seek(0)
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError as problem:
                return DataError(
                    f"{path.name}, line {number}: not UTF-8 text",
                    why=f"byte {line[problem.start]:#04x} cannot be read",
                    fix="save the file as UTF-8",
                )
    return DataError(f"{path}: not UTF-8 text", fix="save it as UTF-8")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _plain_text(path: Path, stream: TextIO) -> Iterator[Row]:
    if _is_object(stream.readline(_PIECE)):
        raise DataError(
            f"{path}: holds JSON Lines", why="as plain text its braces would be trained", fix="name it .jsonl"
        )
    stream.seek(0)
    line, piece = 1, _piece(stream)
    while piece:
        following = _piece(stream)
        yield Row(f"{path.name}, line {line}", {"text": piece}, goes_on=bool(following))
        line, piece = line + piece.count("\n"), following


def _piece(stream: TextIO) -> str:
    """The next characters, up to the end of a line unless that is as far again."""
    return stream.read(_PIECE) + stream.readline(_PIECE)


def _json_lines(path: Path, stream: TextIO) -> Iterator[Row]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as problem:
            _refuse(place, f"not JSON ({_reason(problem)})")
        yield Row(place, _object(value, place))


def _delimiter(stream: TextIO) -> str:
    """What separates the fields, by the header; programs of countries with decimal commas write semicolons."""
    header = stream.readline()
    stream.seek(0)
    others = [character for character in ";\t|" if character in header and "," not in header]
    return max(others, key=header.count, default=",")


def _is_json_lines(stream: TextIO) -> bool:
    """Whether the first line is an object by itself and not the beginning of a document."""
    first = next((line for line in stream if line.strip()), "")
    stream.seek(0)
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not _only_list(value)


def _json(path: Path, stream: TextIO) -> Iterator[Row]:
    try:
        document = json.load(stream)
    except json.JSONDecodeError as problem:
        _refuse(f"{path.name}, line {problem.lineno}", f"not JSON ({problem.msg}, column {problem.colno})")
    except (ValueError, RecursionError) as problem:
        _refuse(path.name, f"not JSON ({_reason(problem)})")
    rows = document if isinstance(document, list) else _only_list(document)
    if rows is None:
        _refuse(path.name, "holds neither a list of objects nor one object with one list")
    for number, value in enumerate(rows, 1):
        place = f"{path.name}, element {number}"
        yield Row(place, _object(value, place))


def _only_list(document: Any) -> list[Any] | None:
    """The rows of `{"data": [...]}`. A row of chat messages has a list too, but not one of rows."""
    if not isinstance(document, dict):
        return None
    messages = ("messages", "conversations")
    lists = [value for name, value in document.items() if isinstance(value, list) and name not in messages]
    return lists[0] if len(lists) == 1 and all(isinstance(value, dict) for value in lists[0]) else None


def _csv(path: Path, stream: TextIO, *, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            place = f"{path.name}, line {reader.line_num}"
            if None in fields or None in fields.values():
                beyond = fields.pop(None, [])
                count = len(beyond) + sum(value is not None for value in fields.values())
                _refuse(place, f"{counted_noun(count, 'field')}, but the header names {len(reader.fieldnames or ())}")
            yield Row(place, dict(fields))
    except csv.Error as problem:
        _refuse(f"{path.name}, line {reader.reader.line_num}", str(problem))


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as problem:
        raise DataError(
            f"{path.name}: Parquet needs the datasets library", why="it is not installed", fix="pip install datasets"
        ) from problem
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (no such file)", fix="check --data")
    try:
        # Streaming: rows come as they are read, and no copy of the file is made in a cache.
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for number, fields in enumerate(rows, 1):
            yield Row(f"{path.name}, row {number}", dict(fields))
    except (
        OSError,
        ValueError,
        datasets.exceptions.DatasetsError,
    ) as problem:  # Arrow's errors are one of the first two
        _refuse(path.name, f"not Parquet that can be read ({_reason(problem)})")


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        kinds = {list: "a list", str: "text", bool: "a truth value", type(None): "null"}
        _refuse(place, f"{kinds.get(type(value), 'a number')} where an object is needed")
    return value


def _reason(problem: BaseException) -> str:
    if isinstance(problem, json.JSONDecodeError):  # which counts the lines of what it was given: one
        return f"{problem.msg}, column {problem.colno}"
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def _refuse(place: str, what: str) -> NoReturn:
    raise DataError(f"{place}: {what}", why="every row must be one sample", fix="repair or remove it")
