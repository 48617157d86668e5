"""The lock on a compiled extension's folder, made to survive the process that holds it.

torch builds an extension under a lock that is a file (torch/utils/file_baton.py). A process that is killed while it
compiles leaves the file behind, and whoever needs the extension afterwards waits for ever. Here the file holds the
owner's number, and a lock whose owner is gone is taken away. A file without a number is some other program's, and is
waited for.

Whoever ends processes that may hold one calls `abandon_all` afterwards: a plain training does not look at the number.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any


def install() -> None:
    """Replace torch's lock in this process."""
    from torch.utils import file_baton

    baton: Any = file_baton.FileBaton
    acquire = baton.try_acquire

    def try_acquire(self: Any) -> bool:
        abandon(Path(self.lock_file_path))
        if not acquire(self):
            return False
        Path(self.lock_file_path).write_text(str(os.getpid()), encoding="ascii")
        return True

    def wait(self: Any) -> None:
        lock = Path(self.lock_file_path)
        while lock.exists():
            abandon(lock)
            time.sleep(self.wait_seconds)

    baton.try_acquire, baton.wait = try_acquire, wait


def abandon(lock: Path) -> None:
    """Remove a lock whose owner has ended."""
    with contextlib.suppress(OSError, ValueError):
        owner = int(lock.read_text(encoding="ascii"))
        try:
            os.kill(owner, 0)
        except ProcessLookupError:
            lock.unlink()


def abandon_all() -> None:
    """Remove every lock, of any extension in torch's folder for them, whose owner has ended."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  Path.home() raises without a home
    folders, below = (Path(named), "*/lock") if named else (Path(cache, "torch_extensions"), "*/*/lock")
    for lock in folders.glob(below):
        abandon(lock)
