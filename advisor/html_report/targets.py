"""What a command is asked to share besides its answer: a report, a picture, or both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .file import check_target, write_file
from .markup import Markup
from .picture_file import check_kind, write_picture


def check_targets(html: Path | None, plot: Path | None, *, force: bool) -> None:
    """See that the report and the picture can be written, before anything takes long.

    Raises ConfigFileError as `check_target`, and for a picture of a kind that cannot be drawn.
    """
    if html is not None:
        check_target(html, "--html", force=force)
    if plot is not None:
        check_kind(plot)
        check_target(plot, "--plot", force=force)


def share(
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
