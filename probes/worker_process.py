"""Run a worker in a subprocess of its own session, with a time limit; only the end of what it prints is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

OnProgress = Callable[[str], object]

_POLL_S = 0.2
_KEPT_BYTES = 100_000
"""The end of the output has the error; libraries and scripts may print gigabytes before it."""


class WorkerTimeoutError(Exception):
    """The worker did not end within its time."""

    def __init__(self, phase: str, printed: str) -> None:
        super().__init__(phase)
        self.phase = phase
        self.printed = printed


def run_worker(
    words: Sequence[str],
    *,
    request: bytes,
    folder: Path,
    environment: Mapping[str, str],
    working_folder: Path,
    timeout_s: float,
    on_progress: OnProgress,
) -> tuple[int, str]:
    """Run the words with `request` on stdin. Returns (exit status, negative for a signal; the end of the output).

    folder: the worker writes the name of its phase into the file `phase` in it; `on_progress` is called with it.
    working_folder: the worker's current folder.

    Raises WorkerTimeoutError. No process outlives the call.
    """
    on_progress("start")
    worker = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=working_folder,
        start_new_session=True,  # so that its child processes end with it
        env=environment,
    )
    assert worker.stdin is not None and worker.stdout is not None, "they are pipes"
    printed = bytearray()
    reader = threading.Thread(target=_keep_end, args=(worker.stdout, printed), daemon=True)
    reader.start()
    try:
        with contextlib.suppress(BrokenPipeError):  # the exit status shows the cause
            worker.stdin.write(request)
            worker.stdin.close()
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = worker.wait(_POLL_S)
                _kill_session(worker.pid)  # its children hold the pipe
                reader.join()
                return status, printed.decode(errors="replace")
            on_progress(read_phase(folder))
        raise WorkerTimeoutError(read_phase(folder), printed.decode(errors="replace"))
    finally:
        _kill_session(worker.pid)
        worker.wait()
        reader.join()
        worker.stdout.close()


def read_phase(folder: Path) -> str:
    file = folder / "phase"
    return file.read_text() if file.exists() else "start"


def _keep_end(stream: IO[bytes], kept: bytearray) -> None:
    while chunk := os.read(stream.fileno(), 1 << 16):
        kept += chunk
        del kept[:-_KEPT_BYTES]


def _kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        # The whole session: libraries start compilers and other helpers.
        os.killpg(leader, signal.SIGKILL)
