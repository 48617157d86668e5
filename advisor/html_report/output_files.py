"""Where a report or a picture is written: never over a file without --force, and known before anything takes long."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ...ds_configs.write import replace_file
from ...estimators.errors import ConfigFileError
from .canvas import Markup, standing_alone


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


_ZOOM = 2
"""Pixels of the PNG for each of the SVG, as sharp screens have them."""


def check_kind(path: Path) -> None:
    """See that a picture of this kind can be drawn.

    Raises ConfigFileError for another suffix than .svg and .png, and for .png without the renderer.
    """
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise ConfigFileError(
            f"{path} is no picture that can be drawn", why="--plot draws SVG and PNG", fix="name it .svg or .png"
        )
    if suffix == ".png" and find_spec("resvg_py") is None:
        raise ConfigFileError(
            "PNG cannot be drawn",
            why="the renderer resvg-py is not installed",
            fix='pip install "ds-advise[png]", or name the file .svg',
        )


def write_picture(picture: Markup, heading: str, path: Path) -> None:
    """Write it with a heading, in light colours; an SVG is dark where the screen is."""
    text = standing_alone(picture, heading)
    if path.suffix.lower() == ".svg":
        write_file(text.encode(), path, "--plot")
        return
    import resvg_py

    write_file(bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=_ZOOM)), path, "--plot")


def check_targets(html: Path | None, plot: Path | None, *, force: bool) -> None:
    """See that the report and the picture can be written, before anything takes long.

    Raises ConfigFileError as `check_target`, and for a picture of a kind that cannot be drawn.
    """
    if html is not None:
        check_target(html, "--html", force=force)
    if plot is not None:
        check_kind(plot)
        check_target(plot, "--plot", force=force)


def write_outputs(
    html: Path | None,
    plot: Path | None,
    *,
    report: Callable[[], str],
    picture: Callable[[], Markup],
    heading: str,
    say: Callable[[str], None],
) -> None:
    """Write what is asked for, and say so. The two functions make the report's text and the picture.

    Raises ConfigFileError where a file cannot be written after all.
    """
    if html is not None:
        write_file(report().encode(), html, "--html")
        say(f"wrote {html}")
    if plot is not None:
        write_picture(picture(), heading, plot)
        say(f"wrote {plot}")
