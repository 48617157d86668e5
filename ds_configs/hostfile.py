"""The hostfile of DeepSpeed's launcher: the nodes of a training and their GPUs."""

from __future__ import annotations

import re
from pathlib import Path

from ..estimators.errors import ConfigFileError

_ENTRY = re.compile(r"^(\S+)\s+slots=(\d{1,9})(?!\d)")
"""What launcher/runner.py `_parse_hostfile` (DeepSpeed 0.19.8) takes from a line, ignoring what follows the number."""

_NAME = re.compile(r"^(?:[\w.-]+@)?[A-Za-z0-9_][\w.:-]*$")
"""Names that may be handed to ssh, because it cannot take them for an option."""

_MOST_CHARACTERS = 1_000_000
_FIX = "write a line such as `worker-0 slots=8` for each node"


def read_hostfile(file: Path) -> dict[str, int]:
    """Node -> its slots (GPUs), as the launcher reads them.

    Raises ConfigFileError for what the launcher refuses (a line without slots, a node twice, no node), for a name that
    ssh could take for an option, and for a file that cannot be read; without the file the launcher would train here.
    """
    nodes: dict[str, int] = {}
    for number, line in enumerate(_text(file).split("\n"), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.match(entry)
        if match is None or not _NAME.match(match[1]):
            problem = f"line {number} is not a node with its slots: {entry[:60]!r}"
        elif match[1] in nodes:
            problem = f"{match[1]} stands there twice"
        else:
            nodes[match[1]] = int(match[2])
            continue
        raise ConfigFileError(f"hostfile {file}: {problem}", why="DeepSpeed's launcher refuses it", fix=_FIX)
    if not nodes:
        raise ConfigFileError(f"hostfile {file}: it names no node", why="DeepSpeed's launcher refuses it", fix=_FIX)
    return nodes


def _text(file: Path) -> str:
    try:
        if not file.is_file():  # a pipe would be waited for
            raise ValueError("it is not a file" if file.exists() else "there is no such file")
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError("it is too large")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name, too
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigFileError(
            f"cannot read the hostfile {file} ({reason})",
            why="it names the nodes",
            fix="pass the path of a file; " + _FIX,
        ) from None
    return text
