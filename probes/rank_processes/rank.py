"""What every rank does around its work: `python -m MODULE FOLDER RANK PARENT`.

FOLDER holds what the rank is to do, and the rank's event log. PARENT is the number of the process that watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .event_log import EventLog

_PR_SET_PDEATHSIG = 1


def run_rank(work: Callable[[Path, int, EventLog], dict[str, Any]]) -> NoReturn:
    """Do the work, write its answer or its error as the last event, and end the process. The answer has a `report`."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    die_with_the_parent(int(sys.argv[3]))
    log = EventLog(folder / f"rank{rank}.jsonl")
    try:
        log.note(work(folder, rank, log))
    except BaseException as error:
        log.note(
            {
                "error": {
                    "kind": "out_of_memory" if _is_out_of_memory(error) else "crash",
                    "phase": log.phase,
                    "message": _one_line(error),
                    "details": traceback.format_exc()[-8000:],
                }
            }
        )
        os._exit(1)
    os._exit(0)  # the other ranks are done too; exit handlers of process groups only wait for each other


def die_with_the_parent(parent: int) -> None:
    """Ask Linux to end this process with the one that started it, even if that is killed; it may be gone already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _is_out_of_memory(error: BaseException) -> bool:
    """CUDA's and Python's own errors have names; torch's allocator for the CPU raises a RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "allocate memory" in str(error)
        or "out of memory" in str(error).lower()
    )


def _one_line(error: BaseException) -> str:
    """The error and what it was raised from."""
    cause = f" ({_one_line(error.__cause__)})" if error.__cause__ is not None else ""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return (text or type(error).__name__)[:500] + cause
