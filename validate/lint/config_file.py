"""The file of a configuration: read, and corrected in its place with the old one beside it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ...ds_configs.write import replace_file
from ...estimators.errors import ConfigFileError
from .document import FIX, MAX_BYTES, Document, read_document
from .edits import apply
from .lint import LintReport

STANDARD_INPUT = Path("-")

_MOST_COPIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A configuration in a file."""

    path: Path
    raw: bytes
    document: Document


def read_config_file(path: Path) -> ConfigFile:
    """Raises ConfigFileError for a file that cannot be read or holds no configuration."""
    raw = read_file(path, MAX_BYTES)
    return ConfigFile(path=path, raw=raw, document=read_document(raw, name=str(path)))


def read_standard_input() -> ConfigFile:
    """The configuration that another program writes. Raises ConfigFileError where it writes none."""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    return ConfigFile(path=STANDARD_INPUT, raw=raw, document=read_document(raw, name=shown_name(STANDARD_INPUT)))


def shown_name(path: Path) -> str:
    """The file as messages call it."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def read_file(path: Path, most_bytes: int, *, fix: str = FIX) -> bytes:
    """At most `most_bytes` + 1 bytes of a regular file. Raises ConfigFileError for anything else (a pipe, a device)."""
    try:
        if not path.is_file():
            found = "is no regular file" if path.exists() else "no such file"
            raise ConfigFileError(f"{path}: {found}", fix=fix)
        with path.open("rb") as stream:
            return stream.read(most_bytes + 1)
    except (OSError, ValueError, RuntimeError) as problem:  # a null byte in the name, a loop of links
        reason = os.strerror(problem.errno or 0) if isinstance(problem, OSError) else problem
        raise ConfigFileError(f"{path}: cannot be read ({reason})", fix=fix) from problem


def correct(file: ConfigFile, report: LintReport) -> tuple[ConfigFile, Path] | None:
    """Make the report's edits in the file: (the file now, the copy of the old one), None where there are none.

    A byte order mark goes, too, where the Trainer or accelerate read the file. Raises as `write_corrected`.
    """
    text, made = apply(file.document, report.edits)
    if not made and not (file.document.byte_order_mark and report.framework == "hf"):
        return None
    copy = write_corrected(file.path, file.raw, text)
    raw = text.encode()
    return ConfigFile(path=file.path, raw=raw, document=read_document(raw, name=str(file.path))), copy


def write_corrected(path: Path, old: bytes, text: str) -> Path:
    """Write the text in the place of the file, and the old bytes to FILE.bak (or .bak.1, ...), which is the answer.

    No existing file is overwritten with the copy, and no link is followed for it; where the file itself is a link, what
    it leads to is corrected and the copy stands beside that.

    Raises ConfigFileError where either cannot be written; the file then is as it was.
    """
    if path == STANDARD_INPUT:
        raise ConfigFileError(
            "standard input cannot be corrected", why="--fix writes in the place of the file", fix="name a file"
        )
    target = path.resolve()
    try:
        copy = _copy(target, old)
        replace_file(target, text)
    except OSError as problem:
        raise ConfigFileError(
            f"cannot write beside or to {path}: {problem.strerror}",
            why="the file is as it was",
            fix="leave --fix out, or correct a copy in a folder that you may write to",
        ) from problem
    return copy


def _copy(target: Path, old: bytes) -> Path:
    for number in range(_MOST_COPIES):
        copy = target.with_name(f"{target.name}.bak" + (f".{number}" if number else ""))
        try:
            handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, target.stat().st_mode & 0o777)
        except FileExistsError:
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(old)
        return copy
    raise ConfigFileError(
        f"{target}.bak and {_MOST_COPIES - 1} more copies are there",
        why="none of them is overwritten",
        fix="remove the copies that you do not need",
    )
