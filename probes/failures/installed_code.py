"""Whether the code that raised an error is that of the installed packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..installed_packages import installed_version, source_folder
from .traceback_frames import LONGEST_CODE, Frame

_OUTSIDE = re.compile(r"-packages/torch/|^<|/python\d[\d.]*/(?!(?:site|dist)-packages/)")
"""Found in the file of a frame of torch or Python, which do what their callers ask for: shapes and types are theirs."""

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

_WORD = re.compile(r"[A-Za-z]{3,}")

_ALIKE, _LEAST = 0.8, 4
"""Least share of a statement's words that the message has, if they are the same message, and least number of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRelease:
    """A package of which the log shows code that the installed release does not have."""

    package: str
    installed: str
    """Its version."""
    file: str
    """From the folder of the packages."""
    function: str
    code: str
    """The line that the installed file lacks."""


def other_release(frames: Sequence[Frame], message: str) -> OtherRelease | None:
    """The package that raised, if the log is of another release of it than the installed one.

    The innermost frame counts that is neither Python's nor torch's. Its line is looked for in the installed file; lines
    of a file that did not change say nothing of the release. None if they agree, if the installed function raises
    nearly the same words, if the frame is of the user's code, and if nothing can be compared: the package is not
    installed, or the log does not show the line.

    frames: of a traceback, the outermost first.
    message: what it raised.
    """
    last = next((each for each in reversed(frames) if not _OUTSIDE.search(each.posix_file)), None)
    package = "" if last is None else last.package
    if last is None or not package or not last.code or len(last.code) >= LONGEST_CODE:
        return None
    installed, code = installed_version(package), _line(last.code)
    folder = source_folder(package) if installed else None
    file = folder and folder.parent / last.short_file
    if file is None or code in _lines(file) or _raises(file, last.name, message):
        return None
    return OtherRelease(package=package, installed=installed, file=last.short_file, function=last.name, code=code)


@cache
def _lines(file: Path) -> str:
    """The code of a file in one line; "" for a file that does not exist."""
    return _line(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else ""


def _raises(file: Path, function: str, message: str) -> bool:
    """Whether a function of a file raises or asserts with most of the words of a message."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError):
        return False
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTION) and node.name == function)
    ends = (node for each in functions for node in ast.walk(each) if isinstance(node, ast.Raise | ast.Assert))
    said = {*_WORD.findall(message)}
    return any(len(own & said) >= _ALIKE * max(len(own), _LEAST) for own in map(_words, ends))


def _words(node: ast.AST) -> set[str]:
    """The words of the texts in a statement, without what it fills in."""
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return {word for text in texts for word in _WORD.findall(text)}


def _line(code: str) -> str:
    return " ".join(code.split())
