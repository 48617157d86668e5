"""One rank as a process, and its event log: `python -m ds_advise.probes.real_run.rank FOLDER RANK WORKER`.

FOLDER holds the rank's task and its event log. WORKER is a module with a function `work(folder, rank, log)`,
which returns a dict with a `report`.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from ..worker_process import die_with_parent
from .events import EventLog


def main() -> NoReturn:
    """Run the worker, write its result or its error as the last event, and end the process."""
    folder = Path(sys.argv[1])
    rank = int(sys.argv[2])
    die_with_parent(os.getppid())
    log = EventLog(folder / f"rank{rank}.jsonl")
    try:
        log.enter("import")
        log.note(importlib.import_module(sys.argv[3]).work(folder, rank, log))
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
    os._exit(0)  # the other ranks are done too; exit handlers of process groups would only wait for each other


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means exhausted memory: CUDA and Python have classes for it; torch's CPU allocator raises a
    RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "allocate memory" in str(error)
        or "out of memory" in str(error).lower()
    )


def _one_line(error: BaseException) -> str:
    """The error's message and that of its cause, in one line."""
    cause = f" ({_one_line(error.__cause__)})" if error.__cause__ is not None else ""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return (text or type(error).__name__)[:500] + cause


if __name__ == "__main__":
    main()
