"""Rows of a data file, read with Hugging Face `datasets`: JSON Lines, JSON, CSV and TSV, Parquet, plain text."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ds_configs.files import nearest_file
from ...estimators.errors import DsAdviseError
from ..text.units import counted_noun

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

_CSV = (".csv", ".tsv")
SUFFIXES = (".jsonl", ".ndjson", ".json", *_CSV, ".parquet", ".txt")

_LONGEST_FIELD = 2**31 - 1
"""Maximum characters of a CSV field; Python's default of 131,072 is less than one long document."""

_MOST_COLUMNS = 1000
"""Of a CSV file. Reading takes 0.2 s per 1,000 columns; no format of training data has more than ten."""


class DataError(DsAdviseError):
    """Raised for a data file, or one of its rows, that cannot be read or trained on."""


class CsvRow(NamedTuple):
    """The cells of one row by column, and its place in words: `data.csv, line 12`."""

    place: str
    fields: dict[str, str]


def read_csv(path: Path) -> Iterator[CsvRow]:
    """The rows of a file with a header, which shows whether commas, semicolons (as programs in countries with decimal
    commas write), tabs or bars separate the cells. Raises DataError, naming the line, for a row with more or fewer
    cells, for broken quotes, and for a file that cannot be read."""
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header = stream.readline()
            stream.seek(0)
            others = [character for character in ";\t|" if character in header and "," not in header]
            delimiter = max(others, key=header.count, default=",")
            if header.count(delimiter) >= _MOST_COLUMNS:
                raise DataError(
                    f"{path.name} has {header.count(delimiter) + 1:,} columns",
                    why="every row must be one whole sample",
                    fix="write a file with the columns that are trained on",
                )
            reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
            for fields in reader:
                place = f"{path.name}, line {reader.line_num}"
                if None in fields or None in fields.values():
                    beyond = fields.pop(None, [])
                    count = len(beyond) + sum(value is not None for value in fields.values())
                    names = len(reader.fieldnames or ())
                    raise DataError(f"{place}: {counted_noun(count, 'field')}, but the header names {names}", fix=_FIX)
                yield CsvRow(place, dict(fields))
    except csv.Error as problem:
        raise DataError(f"{path.name}, line {reader.reader.line_num}: {problem}", fix=_FIX) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise unreadable(path, problem) from None


_FIX = "repair or remove it"


def unreadable(path: Path, problem: OSError | UnicodeDecodeError) -> DataError:
    """The error of a file that cannot be read."""
    if isinstance(problem, UnicodeDecodeError):
        return DataError(f"{path}: not UTF-8 text", fix="save it as UTF-8")
    reason = os.strerror(problem.errno or 0)
    near = nearest_file(path) if isinstance(problem, FileNotFoundError) else ""
    return DataError(f"{path}: cannot be read ({reason})", fix=f"write {near}" if near else "check --data")


_EMPTY = ("corresponds to no data", "at least one example")
"""Parts of the errors of `datasets` for a file without rows."""


_NO_DATA = {
    ".py": "a Python script",
    ".sh": "a shell script",
    ".log": "a log",
    **dict.fromkeys((".yaml", ".yml", ".toml"), "a configuration"),
}
"""Suffix of a file that has no rows, whatever its name -> what it is."""


def check_file(path: Path) -> None:
    """Raise DataError for a file of an unknown kind, or that cannot be opened: `datasets`, which may not be installed,
    has one error for both a missing and an unreadable file."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise DataError(f"{path} is a folder", fix=f"name a data file in it ({', '.join(SUFFIXES)})")
    if kind := _NO_DATA.get(suffix):
        raise DataError(f"{path} is {kind}, not data", fix=f"name the file with the rows ({', '.join(SUFFIXES)})")
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: unknown kind of data file",
            why=f"the suffix {suffix or '(none)'} is not known",
            fix=f"rename it to end with one of {', '.join(SUFFIXES)}, as its content is",
        )
    try:
        with path.open("rb"):
            pass
    except OSError as problem:
        raise unreadable(path, problem) from None


def read_rows(path: Path, cache: Path) -> Dataset:
    """The rows, mapped into memory from the folder `cache`.

    The suffix decides the format. A `.json` file holds a list of objects or one object per line. The rows of a `.txt`
    file are its lines. Raises DataError for content that cannot be read.
    """
    check_file(path)
    import datasets  # slow

    suffix = path.suffix.lower()
    options: dict[str, Any] = {"cache_dir": str(cache)}
    try:
        if suffix in _CSV:
            # Not by pandas, with which datasets reads CSV: it shifts the columns of rows that have a cell too many.
            rows = lambda: (row.fields for row in read_csv(path))  # noqa: E731
            return datasets.Dataset.from_generator(rows, fingerprint="csv", **options)
        if suffix == ".parquet":
            return datasets.Dataset.from_parquet(str(path), **options)
        if suffix == ".txt":
            return datasets.Dataset.from_text(str(path), keep_linebreaks=True, **options)
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs the error that it raises
        return datasets.Dataset.from_json(str(path), **options)
    except (OSError, ValueError, StopIteration, datasets.exceptions.DatasetsError) as problem:
        first: BaseException = problem
        while first.__context__ is not None and not isinstance(first, DataError):
            first = first.__context__
        if isinstance(first, DataError):
            raise first from None
        if isinstance(first, UnicodeDecodeError) or (isinstance(first, OSError) and first.errno):
            raise unreadable(path, first) from None
        if isinstance(first, StopIteration) or any(words in str(first) for words in _EMPTY):
            raise no_rows(path) from None
        reason, where = (str(first).splitlines() or [type(first).__name__])[0][:200], "its rows"
        if suffix in (".jsonl", ".ndjson") and (broken := _broken_line(path)) is not None:
            number, reason = broken
            where = f"line {number}"
        raise DataError(
            f"{path.name}: {where} cannot be read ({reason})", why="every row must be one whole sample", fix=_FIX
        ) from problem


def _broken_line(path: Path) -> tuple[int, str] | None:
    """The number of the first line that is no JSON, from 1, and what is wrong; None if there is none."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, text in enumerate(lines, 1):
            try:
                json.loads(text.rstrip() or "null")  # an error at the line end has its column in this line
            except json.JSONDecodeError as problem:
                return number, f"{problem.msg} at column {problem.colno}"
    return None


def no_rows(path: Path, what: str = "no rows") -> DataError:
    why = "there is nothing to train on"
    return DataError(f"{path}: {what}", why=why, fix="check --data")
