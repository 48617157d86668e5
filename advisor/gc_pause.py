"""Work that makes many objects and no cycles, without Python's search for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Python's garbage collector waits until this is over; what no cycle holds is freed at once as ever.

    The closed forms make some hundred thousand small tuples and no cycles, and what is imported stays; looking for some
    takes up to a quarter of a search and a tenth of the imports, most of it in whatever else the process has loaded.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
