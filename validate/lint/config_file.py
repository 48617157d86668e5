"""Read a configuration file, and edit it in place with a backup in the same folder.

Edits change only the necessary characters, so that order and layout stay.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from ...ds_configs.files import read_file, replace_file
from ...estimators.errors import ConfigFileError
from .document import COMMENT, Document, Extension, KeyPath, Member
from .document_reader import FIX, MAX_BYTES, read_document

STANDARD_INPUT = Path("-")

_MOST_NAMES = 4
"""Most files of a folder that are named."""

_MOST_COUNTED = 1000
"""Most files of a folder that are looked at."""


class Remove(NamedTuple):
    path: KeyPath


class Rename(NamedTuple):
    path: KeyPath
    name: str


class Replace(NamedTuple):
    path: KeyPath
    value: Any


class WritePlainJson(NamedTuple):
    """Without a byte order mark too, which no text of a document has. Mistakes stay."""

    path: KeyPath = ()


class CorrectSyntax(NamedTuple):
    """The mistakes between a key and the next one."""

    path: KeyPath


Edit = Remove | Rename | Replace | WritePlainJson | CorrectSyntax
"""A change of a key: remove it, give it another name in its place, replace its value, or correct its syntax; or, of the
whole text, JSON without the extensions of Hjson."""


def apply(document: Document, edits: Sequence[Edit]) -> tuple[str, int]:
    """The edited text, and the number of edits made.

    An edit is skipped if an earlier edit removed its key, or if it would remove a comment together with the key.
    """
    made, text = 0, document.text
    for edit in edits:
        if text != document.text:  # reading takes the most time, so the last text is not read
            document = read_document(text.encode(), name="the corrected file", as_meant=True)
        if (span := _span(document, edit)) is not None:
            start, end, replacement = span
            text = text[:start] + replacement + text[end:]
            made += 1
    return text, made


def can_be_made(document: Document, edits: Sequence[Edit]) -> bool:
    """Whether the first edit of a finding is possible; the others depend on it."""
    return bool(edits) and _span(document, edits[0]) is not None


def comment_in_the_way(document: Document, edits: Sequence[Edit]) -> Extension | None:
    """The comment that the first edit of a finding would remove, for which it is not made."""
    removed = edits[0] if edits else None
    member = document.member(removed.path) if isinstance(removed, Remove) else None
    return None if member is None else _comment(document, *_removal(document, member, member.path[:-1]))


def _span(document: Document, edit: Edit) -> tuple[int, int, str] | None:
    """(start, end, new text) of an edit."""
    if isinstance(edit, WritePlainJson):
        return 0, len(document.text), document.plain_text(each for each in document.extensions if not each.mistake)
    if isinstance(edit, CorrectSyntax):
        wrong = (each for each in document.mistakes if document.key_before(each.start) == edit.path)
        return 0, len(document.text), document.plain_text(wrong)
    member, owner = document.member(edit.path), edit.path[:-1]
    if member is None:
        return None
    if isinstance(edit, Rename):
        taken = document.member((*owner, edit.name)) is not None
        return None if taken else (member.start, member.end, json.dumps(edit.name))
    if isinstance(edit, Replace):
        return member.value_start, member.value_end, json.dumps(edit.value)
    start, end = _removal(document, member, owner)
    return None if _comment(document, start, end) else (start, end, "")


def _comment(document: Document, start: int, end: int) -> Extension | None:
    """The first comment in a span."""
    found = (each for each in document.extensions if each.kind == COMMENT and start < each.end and each.start < end)
    return next(found, None)


def _removal(document: Document, member: Member, owner: KeyPath) -> tuple[int, int]:
    """The span of a member with one comma and its line break."""
    siblings = document.list_members(owner)
    index = siblings.index(member)
    if index + 1 < len(siblings):  # up to the next key, which moves to its place
        return member.start, siblings[index + 1].start
    block = document.member(owner)
    start = siblings[index - 1].value_end if index else (block.value_start if block else document.start) + 1
    comma = re.compile(r"\s*,").match(document.text, member.value_end)
    return start, comma.end() if comma else member.value_end


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    path: Path
    raw: bytes
    document: Document


def read_config_file(path: Path, *, as_meant: bool = False, command: str = "") -> ConfigFile:
    """Read the configuration in a file, `-` for standard input. Raises ConfigFileError if there is none.

    as_meant: as in `read_document`. command: proposed for a folder if it reads several files.
    """
    with suppress(OSError, ValueError):  # reading it reports them
        if path.is_dir():
            raise ConfigFileError(f"{path}: a folder", fix=_files_of(path, command))
    raw = sys.stdin.buffer.read(MAX_BYTES + 1) if path == STANDARD_INPUT else read_file(path, MAX_BYTES, fix=FIX)
    return ConfigFile(path=path, raw=raw, document=read_document(raw, name=shown_name(path), as_meant=as_meant))


def _files_of(folder: Path, command: str) -> str:
    """What to write in place of a folder."""
    found = [str(each) for each in sorted(islice(folder.glob("*.json"), _MOST_COUNTED))]
    if not found:
        return FIX
    more = len(found) - _MOST_NAMES
    names = " or ".join([*found[:_MOST_NAMES], *([f"one of {more} more"] if more > 0 else [])])
    inside = "" if folder == Path() else f"{shlex.quote(str(folder))}/"
    several = f", or write {command} {inside}*.json"
    return f"name its file: {names}{several if command and len(found) > 1 else ''}"


def shown_name(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def write_corrected(file: ConfigFile, text: str) -> Path:
    """Write the corrected text of a file, and return the backup.

    The file is replaced, and its old bytes go to FILE.bak (or .bak.1, ...). The backup never overwrites an existing
    file and follows no link. If the file is a link, its target is edited and the backup is in the target's folder.

    Raises ConfigFileError if either cannot be written; the file is then unchanged.
    """
    if file.path == STANDARD_INPUT:
        raise ConfigFileError(
            "standard input cannot be corrected", why="--fix writes in the place of the file", fix="name a file"
        )
    target = file.path.resolve()
    try:
        copy = _copy(target, file.raw)
        replace_file(target, text)
    except OSError as problem:
        raise ConfigFileError(
            f"cannot write to {file.path} or its folder: {problem.strerror}",
            why="the file is unchanged",
            fix="leave --fix out, or correct a copy in a folder that you may write to",
        ) from problem
    return copy


def _copy(target: Path, old: bytes) -> Path:
    names = (target.with_name(f"{target.name}.bak" + (f".{number}" if number else "")) for number in count())
    copy = next(name for name in names if not os.path.lexists(name))
    copy.touch(target.stat().st_mode & 0o777, exist_ok=False)
    copy.write_bytes(old)
    return copy
