"""The training commands of a shell script, with the variables that the script itself sets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from ...probes.command.words import is_assignment, is_training, shell_lines

_REFERENCE = re.compile(
    r"'[^']*'"
    r'|(?P<quote>"?)\$\{(?P<array>\w+)\[[@*]\]\}(?P=quote)'
    r"|\$\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\}"
    r"|\$\{(?P<other>\w+)[^}]*\}"
    r"|\$(?P<bare>[A-Za-z_]\w*|[0-9@*#])",
    re.ASCII,
)
"""A reference to a variable, or a text in single quotes, in which a shell replaces none. Quotes around all elements of
an array keep each element a word of its own."""

_LITERAL = re.compile(r"[\w./:@%+=, -]*", re.ASCII)
"""A value that means the same in every place of a command: blanks divide words outside of quotes alone."""

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)

_ARRAY = re.compile(
    r"^[ \t]*(?:(?:export|local|readonly|declare(?:[ \t]+-\w+)?)[ \t]+)?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)="
    r"""\((?P<words>(?:[^()"']|"(?:[^"\\]|\\.)*"|'[^']*')*)\)""",
    re.MULTILINE | re.ASCII,
)
"""The assignment of an array, whose words may stand in several lines."""

_LONG_TEXT = re.compile(r'^(?P<start>[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*=)"(?P<text>[^"]*\n[^"]*)"', re.MULTILINE)
"""The assignment of a text in several lines."""


class ScriptCommand(NamedTuple):
    """A command of a script that may start a training."""

    line: int
    text: str
    """The command as a shell reads it, behind `env` with what is exported before."""


class _Array(NamedTuple):
    line: int
    name: str
    is_continued: bool
    words: str
    """As they are written, in one line."""


def training_commands(text: str) -> list[ScriptCommand]:
    """The training commands of a script. Variables with a literal value in the script, and arrays, are replaced by it;
    others stay."""
    text = _COMMENT.sub("", text)
    arrays = [*_arrays(text)]
    text = _ARRAY.sub(lambda match: "\n" * match[0].count("\n"), text)
    text = _LONG_TEXT.sub(_shortened, text)
    values: dict[str, str] = {}
    exported: dict[str, None] = {}
    found: list[ScriptCommand] = []
    for line in shell_lines(text):
        first, words = line.words[0], line.words
        if is_training(words):
            known = _elements([array for array in arrays if array.line < line.number], values)
            parts = _training_parts(line.text)  # `line` comes once for each of its commands
            before = sum(each.line == line.number for each in found)
            command = _replaced(parts[min(before, len(parts) - 1)], values, known)
            settings = [shlex.quote(f"{name}={values[name]}") for name in exported if name in values]
            sets_more = is_assignment(command.split(maxsplit=1)[0])  # which only a shell takes without env
            whole = " ".join([*(["env", *settings] if settings or sets_more else []), command])
            found.append(ScriptCommand(line.number, whole))
        if first == "export":
            words = words[1:]
        elif not all(map(is_assignment, words)):
            continue
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                values[name] = _replaced(value, values)
            if first == "export":
                exported[name] = None
    return found


def _arrays(text: str) -> Iterator[_Array]:
    for match in _ARRAY.finditer(text):
        words = re.sub(r"(?:^|(?<=\s))#.*$", "", match["words"], flags=re.MULTILINE)
        yield _Array(text.count("\n", 0, match.start()) + 1, match["name"], bool(match["more"]), _in_line(words))


def _shortened(match: re.Match[str]) -> str:
    """An assignment in one line, with as many lines behind it as it had."""
    return f'{match["start"]}"{_in_line(match["text"])}"' + "\n" * match[0].count("\n")


def _in_line(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split())


def _elements(arrays: list[_Array], values: Mapping[str, str]) -> dict[str, str]:
    """The words of each array as a shell reads them."""
    known: dict[str, str] = {}
    for array in arrays:
        words = _replaced(array.words, values, known)
        known[array.name] = f"{known.get(array.name, '')} {words}".strip() if array.is_continued else words
    return known


_KEPT_OR_END = re.compile(
    r"""(?P<kept>"(?:[^"\\]|\\.)*"|'[^']*'|\\.|`[^`]*`|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))|[;&|()]+"""
)
"""What a shell reads as part of a word (a text in quotes, a substitution), or the end of a command."""


def _training_parts(line: str) -> list[str]:
    """The training commands of a line as they are written, without what reads their output or runs besides them; the
    line itself if none can be read."""
    ends = [match for match in _KEPT_OR_END.finditer(line) if match["kept"] is None]
    starts = [0, *(match.end() for match in ends)]
    parts = [line[start:end] for start, end in zip(starts, [*(each.start() for each in ends), len(line)], strict=True)]
    found: list[str] = []
    for part in parts:
        with suppress(ValueError, IndexError):
            if is_training(shlex.split(part)):
                found.append(part.strip())
    return found or [line]


def unknown_variables(command: str) -> list[str]:
    """The variables that a command still refers to."""
    kinds = ("array", "braced", "other", "bare")
    found = (next((match[kind] for kind in kinds if match[kind]), None) for match in _REFERENCE.finditer(command))
    return list(dict.fromkeys(name for name in found if name))


def _replaced(text: str, values: Mapping[str, str], arrays: Mapping[str, str] | None = None) -> str:
    def value(match: re.Match[str]) -> str:
        if match["array"]:
            words = (arrays or {}).get(match["array"])
            is_whole = match["quote"] or words is None or not {"'", '"'} & {*words}
            return words if words is not None and is_whole else match[0]
        found = values.get(match["braced"] or match["bare"] or "", match["default"])
        return found if found is not None and _LITERAL.fullmatch(found) else match[0]

    return _REFERENCE.sub(value, text)
