"""The Trainer's checkpoints in an output folder, and which of them is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

WHOLE = "ds_advise_whole"
"""Written into a checkpoint when every rank has written its part, so that one that was cut off (a full disk, a killed
rank) is never resumed from. The Trainer itself takes the newest folder, whatever is in it."""


def checkpoints(output: Path) -> list[Path]:
    """All of them, by rising step."""
    folders = (path for path in output.glob("checkpoint-*") if path.is_dir())
    return sorted((path for path in folders if path.name.removeprefix("checkpoint-").isdigit()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def newest_whole(output: Path) -> Path | None:
    return next((path for path in reversed(checkpoints(output)) if (path / WHOLE).exists()), None)


def remove_broken(output: Path) -> list[Path]:
    """Remove those that are not whole: they only take room that the next one needs. Answers what was removed."""
    broken = [path for path in checkpoints(output) if not (path / WHOLE).exists()]
    for path in broken:
        shutil.rmtree(path)
    return broken
