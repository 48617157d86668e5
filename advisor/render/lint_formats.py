"""The findings of lint for other programs: one line per finding, annotations of GitHub Actions, and SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from ... import __version__
from ...validate.lint import RULES, LintFinding
from ...validate.lint.config_file import shown_name
from ...validate.lint.rule import Severity
from ..answer.lint_file import LintAnswer, UnreadFile
from ..text.units import printable
from .lint import counted_findings, key_path

LintFormat = Literal["concise", "github", "sarif"]

_UNREAD = "unreadable"
"""The code of a file that cannot be read."""

_GITHUB: Mapping[Severity, str] = {"error": "error", "warning": "warning", "advice": "notice"}
_SARIF: Mapping[Severity, str] = {"error": "error", "warning": "warning", "advice": "note"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One finding, or a file that cannot be read."""

    path: Path
    line: int
    column: int
    end_column: int
    """The column behind the place, within its line."""
    code: str
    severity: Severity
    can_fix: bool
    message: str
    """What is wrong, and its fix."""

    @property
    def text(self) -> str:
        """The finding in one line, with its place as compilers write it."""
        mark = "[*] " * self.can_fix
        place = f"{printable(shown_name(self.path))}:{self.line}:{self.column}"
        return f"{place}: {self.code} {self.severity} {mark}{self.message}"


def format_findings(answers: Sequence[LintAnswer | UnreadFile], form: LintFormat) -> str:
    """The answers in a format, with a line break at the end."""
    lines = [line for answer in answers for line in _lines(answer)]
    if form == "sarif":
        return f"{json.dumps(_sarif(lines), indent=1)}\n"
    if form == "github":
        return "".join(f"{_annotation(line)}\n" for line in lines)
    return "".join(f"{text}\n" for text in (*(line.text for line in lines), counted_findings(answers)))


def _lines(answer: LintAnswer | UnreadFile) -> Iterator[_Line]:
    if isinstance(answer, UnreadFile):
        error = answer.error
        text, line, column = getattr(error, "place_in_text", ("", 1, 1))
        yield _Line(
            path=answer.path,
            line=line,
            column=column,
            end_column=_end_column(text, line, column, 1),
            code=_UNREAD,
            severity="error",
            can_fix=False,
            message=printable(str(error).removeprefix(f"{shown_name(answer.path)}: ")),
        )
        return
    for found in answer.report.shown:
        yield _Line(
            path=answer.path,
            line=found.line,
            column=found.column,
            end_column=_end_column(answer.report.document.text, found.line, found.column, found.length),
            code=found.code,
            severity=found.severity,
            can_fix=bool(found.edits),
            message=printable(_message(found)),
        )


def _message(found: LintFinding) -> str:
    """What is wrong, with the whole path of the key, since no line of the file is shown, and the fix."""
    path, key = key_path(found), found.path[-1] if found.path else ""
    if all(name in found.what for name in found.path):
        what = found.sentence
    elif found.what.startswith(f"{key} "):
        what = f"{path}{found.what.removeprefix(key)}"
    else:
        what = f"{path}: {found.what}"
    return f"{what}; {found.fix}" if found.fix else what


def _end_column(text: str, line: int, column: int, length: int) -> int:
    whole = text.split("\n")[line - 1].rstrip("\r") if text else ""
    return max(column + 1, min(column + length, len(whole) + 1))


def _annotation(line: _Line) -> str:
    """A command of GitHub Actions' log.

    Source: github.com/actions/toolkit packages/core/src/command.ts (escapeData, escapeProperty).
    """
    place = {
        "title": f"ds-advise ({line.code})",
        "file": str(line.path),
        "line": line.line,
        "col": line.column,
        "endLine": line.line,
        "endColumn": line.end_column,
    }
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in place.items())
    return f"::{_GITHUB[line.severity]} {properties}::{_escaped(line.text)}"


def _escaped(text: str, more: str = "") -> str:
    for char in f"%\r\n{more}":  # the percent sign first
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def _sarif(lines: Sequence[_Line]) -> dict[str, Any]:
    """A log of the Static Analysis Results Interchange Format, version 2.1.0 (OASIS)."""
    used = {line.code for line in lines}
    rules: list[dict[str, Any]] = [
        {
            "id": rule.code,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix or rule.why},
            "defaultConfiguration": {"level": _SARIF[rule.severity]},
        }
        for rule in RULES
        if rule.code in used
    ]
    if _UNREAD in used:
        rules.append({"id": _UNREAD, "shortDescription": {"text": "a file that cannot be read"}})
    driver = {"name": "ds-advise", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(line) for line in lines],
            }
        ],
    }


def _result(line: _Line) -> dict[str, Any]:
    region = {
        "startLine": line.line,
        "startColumn": line.column,
        "endLine": line.line,
        "endColumn": line.end_column,
    }
    path = line.path
    address = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {
        "ruleId": line.code,
        "level": _SARIF[line.severity],
        "message": {"text": line.message},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": address}, "region": region}}],
    }
