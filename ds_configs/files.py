"""Bounded reads and safe, atomic writes of users' files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from ..estimators.errors import ConfigFileError, DsAdviseError

CONFIG_NAME = "ds_config.json"
"""The usual name of a configuration; `numbered` names further ones."""

_MAX_JSON_BYTES = 10_000_000
"""Maximum size of a JSON file; a configuration has kilobytes."""


_MOST_NAMES = 10_000
"""Names of a folder that are compared with a misspelled one."""


def read_file(path: Path, max_bytes: int, *, fix: str, error: type[DsAdviseError] = ConfigFileError) -> bytes:
    """Read at most `max_bytes` + 1 bytes of a regular file. Raises `error` for anything else (a pipe, a device)."""
    try:
        if not path.is_file():
            if path.exists():
                raise error(f"{path}: not a regular file", fix=fix)
            near = nearest_file(path)
            raise error(f"{path}: no such file", fix=f"write {near}" if near else fix)
        with path.open("rb") as stream:
            return stream.read(max_bytes + 1)
    except (OSError, ValueError, RuntimeError) as problem:  # a null byte in the name, a loop of links
        reason = os.strerror(problem.errno or 0) if isinstance(problem, OSError) else problem
        raise error(f"{path}: cannot be read ({reason})", fix=fix) from problem


_MOST_ALIKE = 10
"""Most names of a folder that are looked at after the comparison."""

_LEAST_ALIKE = 0.6
"""Least likeness (`difflib`) of two names without their suffixes: one of two or three letters may differ."""


def nearest_file(path: Path, *, folders: bool = False, holding: str = "") -> str:
    """The path of the file, or of the folder, in the same folder whose name is nearly the same; "" without one. A
    common suffix alone makes no two names alike. holding: only a folder with this file, whose name may be less alike:
    few are candidates."""
    from difflib import SequenceMatcher, get_close_matches  # imported here: only mistakes need it

    try:
        names = [each.name for each in islice(path.parent.iterdir(), _MOST_NAMES)]
    except (OSError, ValueError):
        return ""
    found = get_close_matches(path.name[:100], names, n=_MOST_ALIKE, cutoff=_LEAST_ALIKE if holding else 0.8)
    near = map(path.with_name, found)
    alike = (each for each in near if SequenceMatcher(None, path.stem[:100], each.stem).ratio() >= _LEAST_ALIKE)

    def is_meant(each: Path) -> bool:
        return (each / holding).is_file() if holding else each.is_dir() if folders else each.is_file()

    return next((str(each) for each in alike if is_meant(each)), "")


def read_text(path: Path, max_bytes: int, *, what: str, fix: str, error: type[DsAdviseError] = ConfigFileError) -> str:
    """Read the UTF-8 text of a regular file, without a byte order mark. Raises `error`, also if it is too large to be
    `what`."""
    raw = read_file(path, max_bytes, fix=fix, error=error)
    if len(raw) > max_bytes:
        raise error(f"{path}: larger than {max_bytes:,} bytes, so it is not {what}", fix=fix)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start})", fix="save it as UTF-8") from problem


def read_json_object(path: Path, *, error: type[DsAdviseError], what: str, fix: str) -> dict[str, Any]:
    """Read the object in a JSON file. Raises `error`, with `fix`, if the file cannot be read, is too large to be
    `what`, or does not hold an object."""
    text = read_text(path, _MAX_JSON_BYTES, what=what, fix=fix, error=error)
    return parse_json_object(text, name=str(path), error=error, fix=fix)


def parse_json_object(text: str, *, name: str, error: type[DsAdviseError], fix: str) -> dict[str, Any]:
    """Parse the object in a text called `name`. Raises `error`, with `fix`, if the text does not hold an object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        if not text.strip():
            raise error(f"{name}: not JSON: the file is empty", fix=fix) from problem
        place = f"line {problem.lineno}, column {problem.colno}"
        raise error(f"{name}: not JSON: {problem.msg} ({place})", fix=fix) from problem
    except (ValueError, RecursionError) as problem:  # a number with thousands of digits, or thousands of open brackets
        raise error(f"{name}: not JSON that can be read", fix=fix) from problem
    if not isinstance(value, dict):
        raise error(f"{name}: holds no JSON object", fix=fix)
    return value


def numbered(path: Path) -> Iterator[Path]:
    """Yield the path, then the same with a number: `ds_config.json`, `ds_config-2.json`, ..."""
    yield path
    yield from (path.with_stem(f"{path.stem}-{number}") for number in count(2))


def config_text(config: Mapping[str, Any]) -> str:
    """The text of a configuration file: indented by two spaces, with a newline at the end."""
    return json.dumps(config, indent=2) + "\n"


class Remedies(NamedTuple):
    """What a caller can do about a file that cannot be written: replace another file, name another path, or find a
    folder that can be written to."""

    replace: str
    path: str
    folder: str


OPTIONS = Remedies(
    "pass --force to overwrite it, or another path with -o",
    "pass another path with -o",
    "pass a path in a folder that you may write to with -o, or --no-write",
)
ARGUMENTS = Remedies(
    "pass force=True to overwrite it, or another path",
    "pass another path",
    "pass a path in a folder that you may write to",
)
"""Remedies on the command line, and in Python."""


def write_config(config: Mapping[str, Any], path: Path, *, force: bool, remedies: Remedies = OPTIONS) -> None:
    """Write a configuration by `write_text`, with the same errors."""
    write_text(config_text(config), path, force=force, remedies=remedies)


def write_text(text: str, path: Path, *, force: bool, remedies: Remedies = OPTIONS) -> None:
    """Write `text` to `path` atomically: a reader sees the old file or the new one, never a part.

    A file with the same content only gets the current time, because commands take the newest configuration; one with
    other content is replaced only with `force`. Symbolic links are followed and kept. The folder must exist.

    Raises ConfigFileError as `check_write` does, and if the path cannot be written.
    """
    target = check_write(text, path, force=force, remedies=remedies)
    if target.exists() and not (force and differs(text, target)):  # without force, `check_write` has compared them
        with contextlib.suppress(OSError):  # the file of another user
            target.touch()
        return
    try:
        replace_file(target, text)
    except OSError as error:
        raise ConfigFileError(
            f"cannot write {path}: {error.strerror}",
            why="nothing was written",
            fix=remedies.folder,
        ) from error


def check_write(text: str, path: Path, *, force: bool, remedies: Remedies = OPTIONS) -> Path:
    """Return the file that `write_text` would write, with links followed. Raises ConfigFileError if a file with other
    content exists and `force` is not set, or the path is not a regular file."""
    try:
        target = path.resolve()
        if target.is_symlink():  # Python 3.13 returns a loop of links, older ones raise a RuntimeError
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    except (OSError, RuntimeError) as error:  # a loop of links, no current folder
        raise ConfigFileError(
            f"{path} is a broken link",
            why="a link points to itself, or its folder does not exist",
            fix=remedies.path,
        ) from error
    if target.exists() and not target.is_file():
        raise ConfigFileError(
            f"{path} is not a regular file",
            why="a file cannot replace it",
            fix=remedies.path,
        )
    if not force and differs(text, target, fix=remedies.path):
        raise ConfigFileError(
            f"{path} exists and differs",
            why="its content would be lost",
            fix=remedies.replace,
        )
    return target


def differs(text: str, path: Path, *, fix: str = OPTIONS.path) -> bool:
    """Whether `path` is a regular file with other content than `text`. fix: that of the error if it cannot be read."""
    content = text.encode()
    return path.is_file() and read_file(path, len(content), fix=fix) != content


def replace_file(target: Path, content: str | bytes) -> None:
    """Write to a temporary file in the same folder and rename it, keeping the target's permissions."""
    import tempfile  # imported here, because most answers write nothing

    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _umask() -> int:
    """The process's umask. The system returns it only when it is set."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def free_bytes(folder: Path) -> int:
    """Free space in bytes on the file system of a folder, which need not exist yet."""
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    import shutil  # imported here, because it loads compression libraries

    return shutil.disk_usage(existing).free
