"""Files of reports and charts: checked before anything takes long, and never overwritten without --force."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ...ds_configs.write import replace_file
from ...estimators.errors import ConfigFileError
from .canvas import Markup, standing_alone

_ZOOM = 2
"""Pixels of a PNG for each pixel of the SVG, for sharp screens."""


def check_targets(html: Path | None, plot: Path | None, *, force: bool) -> None:
    """See that the report and the chart can be written.

    Raises ConfigFileError for a path that is no file in an existing folder that may be written to, for a file that
    exists, unless `force`, for a chart with another suffix than .svg and .png, and for .png without the renderer.
    """
    if html is not None:
        check_target(html, "--html", force=force)
    if plot is None:
        return
    if plot.suffix.lower() not in (".svg", ".png"):
        raise ConfigFileError(
            f"{plot} is no picture that can be drawn", why="--plot draws SVG and PNG", fix="name it .svg or .png"
        )
    if plot.suffix.lower() == ".png" and find_spec("resvg_py") is None:
        raise ConfigFileError(
            "PNG cannot be drawn",
            why="the renderer resvg-py is not installed",
            fix='pip install "ds-advise[png]", or name the file .svg',
        )
    check_target(plot, "--plot", force=force)


def check_target(path: Path, option: str, *, force: bool) -> None:
    """Raises ConfigFileError where the file that an option names cannot be written, or exists, unless `force`."""
    other = f"pass another file to {option}"
    if path.exists() and not path.is_file():
        raise ConfigFileError(f"{path} is not a regular file", why="it cannot be replaced", fix=other)
    if not path.parent.is_dir():
        raise ConfigFileError(f"{path} cannot be written", why="its folder does not exist", fix=other)
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
    """Write the file at once. Raises ConfigFileError where it cannot be written after all."""
    try:
        replace_file(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise ConfigFileError(
            f"{path} cannot be written", why=(error.strerror or "").lower(), fix=f"pass another file to {option}"
        ) from error


def write_picture(picture: Markup, heading: str, path: Path) -> None:
    """Write a chart with a heading, as SVG or PNG by the suffix; a PNG has light colours."""
    text = standing_alone(picture, heading)
    content = text.encode()
    if path.suffix.lower() == ".png":
        import resvg_py

        content = bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=_ZOOM))
    write_file(content, path, "--plot")
