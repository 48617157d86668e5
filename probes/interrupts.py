"""Moments in which Ctrl-C has to wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block ends: what is made in it, a process or a file, has been noted by whoever removes it
    when KeyboardInterrupt is raised.

    A thread's signal mask would not do: another thread takes the signal, and Python raises in the main one all the
    same. In other threads nothing needs to be held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
