"""The training command of a shell script, with the variables that the script itself sets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from ...probes.command.words import is_assignment, is_training, shell_lines

_REFERENCE = re.compile(
    r"'[^']*'|\$\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\}|\$(?P<bare>[A-Za-z_]\w*|[0-9@*#])", re.ASCII
)
"""A reference to a variable, or a text in single quotes, in which a shell replaces none."""

_LITERAL = re.compile(r"[\w./:@%+=,-]*", re.ASCII)
"""A value that means the same in every place of a command."""


def training_command(text: str) -> str:
    """The first training command of a script, behind `env` with what is exported before; "" for none. Variables with a
    literal value in the script are replaced by it; others stay."""
    values: dict[str, str] = {}
    exported: dict[str, None] = {}
    for line in shell_lines(text):
        first, words = line.words[0], line.words
        if is_training(words):
            command = _replaced(_training_part(line.text), values)
            settings = [shlex.quote(f"{name}={values[name]}") for name in exported if name in values]
            return " ".join([*(["env", *settings] if settings else []), command])
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
    return ""


_KEPT_OR_END = re.compile(
    r"""(?P<kept>"(?:[^"\\]|\\.)*"|'[^']*'|\\.|`[^`]*`|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))|[;&|()]+"""
)
"""What a shell reads as part of a word (a text in quotes, a substitution), or the end of a command."""


def _training_part(line: str) -> str:
    """The training command of a line as it is written, without what reads its output or runs besides it."""
    ends = [match for match in _KEPT_OR_END.finditer(line) if match["kept"] is None]
    starts = [0, *(match.end() for match in ends)]
    parts = [line[start:end] for start, end in zip(starts, [*(each.start() for each in ends), len(line)], strict=True)]
    for part in parts:
        try:
            if is_training(shlex.split(part)):
                return part.strip()
        except (ValueError, IndexError):
            continue
    return line


def unknown_variables(command: str) -> list[str]:
    """The variables that a command still refers to."""
    found = (match["braced"] or match["bare"] for match in _REFERENCE.finditer(command))
    return list(dict.fromkeys(name for name in found if name))


def _replaced(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        found = values.get(match["braced"] or match["bare"] or "", match["default"])
        return found if found is not None and _LITERAL.fullmatch(found) else match[0]

    return _REFERENCE.sub(value, text)
