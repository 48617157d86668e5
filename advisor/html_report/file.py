"""Where a report or a picture is written: never over a file without --force, and known before anything takes long."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...ds_configs.write import replace_file
from ...estimators.errors import ConfigFileError


def check_target(path: Path, option: str, *, force: bool) -> None:
    """See that the file can be written.

    Raises ConfigFileError for a folder, a folder that is missing or may not be written to, and for a file that exists,
    unless `force`.
    """
    other = f"pass another file to {option}"
    if path.is_dir():
        raise ConfigFileError(f"{path} is a folder", why=f"{option} names a file", fix=other)
    if not path.parent.is_dir():
        raise ConfigFileError(f"{path} cannot be written", why="its folder does not exist", fix=other)
    if path.exists() and not path.is_file():
        raise ConfigFileError(f"{path} is not a regular file", why="it cannot be replaced", fix=other)
    if path.exists() and not force:
        raise ConfigFileError(
            f"{path} exists", why="it would be lost", fix=f"pass --force, or another file to {option}"
        )
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigFileError(
            f"{path} cannot be written", why=(error.strerror or "the folder refuses it").lower(), fix=other
        ) from error


def write_file(content: bytes, path: Path, option: str) -> None:
    """Write the file at once.

    Raises ConfigFileError where it cannot be written after all.
    """
    try:
        replace_file(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise ConfigFileError(
            f"{path} cannot be written", why=(error.strerror or "").lower(), fix=f"pass another file to {option}"
        ) from error
