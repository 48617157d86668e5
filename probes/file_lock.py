"""Locks on open files, which the system releases with the process that holds them, whatever ends it.

The number of a process would not do in their place: a container beside this one may share the files, but not the
numbers.
"""

from __future__ import annotations

import fcntl


def try_lock(descriptor: int) -> bool:
    """Take the lock on an open file, unless another process holds it. Raises OSError on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
