"""Folders for one run, removed at its end; those of runs that were killed are removed by the next run.

The owner holds a lock on a file in its folder (`file_lock`) for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .file_lock import try_lock
from .interrupts import interrupts_held

_PREFIX, _OWNER = "ds-advise-", "owner"
_SETTLED_S = 60.0
"""Age from which a folder is judged: its owner has long taken its lock. One from the future
was made before the clock was set back."""


@contextlib.contextmanager
def scratch(kind: str, parent: str | Path | None = None) -> Iterator[Path]:
    """A new folder `ds-advise-KIND-...` in `parent`, by default where temporary files go. Raises OSError where none can
    be made."""
    folder = None
    try:
        with interrupts_held():  # `gettempdir` too writes a file and removes it, the first time
            where = Path(parent or tempfile.gettempdir())
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=where))
        _sweep(where)
        with (folder / _OWNER).open("w") as owner:
            try_lock(owner.fileno())
            yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(where: Path) -> None:
    """Remove what runs left that were killed; what is another user's stays."""
    for owner in where.glob(f"{_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(OSError):
            if (
                abs(time.time() - owner.stat().st_mtime) > _SETTLED_S
                and owner.stat().st_uid == os.getuid()
                and _abandoned(owner)
            ):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _abandoned(owner: Path) -> bool:
    with owner.open("r+") as stream:
        return try_lock(stream.fileno())
