"""A picture as a file of its own: SVG, or PNG where a renderer is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ...estimators.errors import ConfigFileError
from .canvas import standing_alone
from .file import write_file
from .markup import Markup

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
