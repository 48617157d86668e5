"""The lock on a compiled extension's folder, made to survive the process that holds it.

torch builds an extension under a lock that is a file (torch/utils/file_baton.py). A process that is killed while it
compiles leaves the file behind, and whoever needs the extension afterwards waits for ever. Here the owner marks its
file and holds a lock on it (`file_lock`), so a marked file without an owner is recognized and removed. A file without
the mark is another program's, and is waited for.

Whoever ends processes that may hold such a lock calls `remove_abandoned` afterwards: a plain training does not look at
the mark.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ..scratch import try_lock

_MARK = b"held by ds-advise"


def install() -> None:
    """Replace torch's lock in this process."""
    from torch.utils import file_baton

    baton: Any = file_baton.FileBaton
    plainly_acquire = baton.try_acquire

    def try_acquire(self: Any) -> bool:
        lock = Path(self.lock_file_path)
        _remove_if_abandoned(lock)
        try:
            self.fd = _marked_file(lock)
        except FileExistsError:
            return False
        except OSError:  # a file system without locks or without links
            return bool(plainly_acquire(self))
        return True

    def wait(self: Any) -> None:
        lock = Path(self.lock_file_path)
        while lock.exists():
            _remove_if_abandoned(lock)
            time.sleep(self.wait_seconds)

    def release(self: Any) -> None:
        Path(self.lock_file_path).unlink()  # before the lock is let go: afterwards the file may be another owner's
        os.close(self.fd)

    baton.try_acquire, baton.wait, baton.release = try_acquire, wait, release


def _marked_file(lock: Path) -> int:
    """Create the file, which is marked and locked from its first moment on; answers its descriptor. Raises
    FileExistsError."""
    descriptor, draft = tempfile.mkstemp(prefix="lock-", dir=lock.parent)
    try:
        try_lock(descriptor)
        os.write(descriptor, _MARK)
        os.link(draft, lock)
    except OSError:
        os.close(descriptor)
        raise
    finally:
        Path(draft).unlink()
    return descriptor


def _remove_if_abandoned(lock: Path) -> None:
    with contextlib.suppress(OSError), lock.open("r+b") as stream:
        # Who has the lock on the file may remove it, and nobody else: if it is still there, it stays until then.
        if (
            stream.read() == _MARK
            and try_lock(stream.fileno())
            and os.path.samestat(os.fstat(stream.fileno()), lock.stat())
        ):
            lock.unlink()


def remove_abandoned() -> None:
    """Remove every abandoned lock, of any extension in torch's folder for them."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  Path.home() raises without a home
    folders, below = (Path(named), "*/lock") if named else (Path(cache, "torch_extensions"), "*/*/lock")
    for lock in folders.glob(below):
        _remove_if_abandoned(lock)
