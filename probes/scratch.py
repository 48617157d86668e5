"""Temporary folders, file locks, and deferred interrupts: a run that fails or is killed leaves nothing behind.

A folder's owner holds a lock on a file in it for as long as it lives. The system releases the lock with the process,
and the next run removes folders without an owner. A process id cannot replace the lock: another container may share the
files but not the ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "ds-advise-"
_OWNER = "owner"
_MIN_AGE_S = 60.0
"""Age from which an unlocked folder counts as abandoned; by then its owner has locked it. A future time stamp means
that the clock was set back."""


@contextlib.contextmanager
def signals_collected(*numbers: signal.Signals) -> Iterator[list[int]]:
    """Collect these signals instead of reacting to them.

    A signal mask does not suffice: another thread would receive the signal, and Python handles it in the main thread.
    In other threads nothing is collected. A SIGHUP that is ignored (nohup) stays ignored.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    collected = [number for number in numbers if number not in kept]
    before = {number: signal.signal(number, lambda got, _frame: received.append(got)) for number in collected}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, so that a process or file made in it is registered for removal before
    KeyboardInterrupt is raised."""
    received: list[int] = []
    try:
        with signals_collected(signal.SIGINT) as received:
            yield
    finally:
        if received:
            signal.raise_signal(signal.SIGINT)


def try_lock(descriptor: int) -> bool:
    """Lock an open file unless another process holds its lock. Raises OSError on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def scratch(kind: str, parent: str | Path | None = None) -> Iterator[Path]:
    """Create a folder `ds-advise-KIND-...` in `parent`, by default the folder of temporary files, and remove it at the
    end. Raises OSError if it cannot be created."""
    folder = None
    try:
        with interrupts_deferred():  # the first call of `gettempdir` also writes a file and removes it
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
    """Remove this user's folders of killed runs."""
    for owner in where.glob(f"{_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(OSError), owner.open("r+") as stream:
            found = os.fstat(stream.fileno())
            settled = abs(time.time() - found.st_mtime) > _MIN_AGE_S
            if settled and found.st_uid == os.getuid() and try_lock(stream.fileno()):
                shutil.rmtree(owner.parent, ignore_errors=True)
