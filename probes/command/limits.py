"""Limits of the process that runs a script, so that no script can hurt the machine, and where it stood when it was
ended.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import time
from contextlib import suppress
from pathlib import Path

from ..machine import host_memory_bytes
from ..worker_process import die_with_parent

STACKS = "stacks"
"""File in scratch with the stacks of the threads at a crash, or shortly before the time is over."""

_DUMPED_BEFORE_S = 0.5
_FREE_SHARE = 0.9
_LEAST_BYTES = 2 << 30
_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_OF_LIBRARIES = re.compile(r"-packages/|/lib/python3[^/]*/|^<")


def restrain(folder: Path, ends: float) -> None:
    """Limit this process and those that it starts: they end with the parent, allocate at most the machine's free memory
    (then Python raises MemoryError at the script's line), and are the first to be killed if that runs out.

    ends: time of the monotonic clock at which the parent kills this process.
    """
    import psutil

    die_with_parent(os.getppid())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    free_bytes = min(host_memory_bytes(), int(psutil.virtual_memory().available))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    allowed = max(int(free_bytes * _FREE_SHARE), _LEAST_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed if hard < 0 else min(allowed, hard), hard))
    stacks = (folder / STACKS).open("w")  # open until the process ends
    faulthandler.enable(stacks, all_threads=False)
    left_s = ends - time.monotonic() - _DUMPED_BEFORE_S
    faulthandler.dump_traceback_later(max(left_s, _DUMPED_BEFORE_S), file=stacks)


def last_line(folder: Path) -> str:
    """FILE:LINE of the script in the dumped stacks, of the main thread if it has one; "" if there is none."""
    file = folder / STACKS
    threads = file.read_text(errors="replace").split("hread 0x") if file.exists() else []
    for thread in reversed(threads):  # the main one is dumped last
        for path, line in _FRAME.findall(thread):
            if not _OF_LIBRARIES.search(path) and not path.startswith(f"{folder}/ds_advise/"):
                return f"{path}:{line}"
    return ""
