"""Run a worker in a subprocess of its own session, with a time limit; only the end of what it prints is kept."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from .scratch import signals_collected

OnProgress = Callable[[str], object]

_POLL_S = 0.2
_DYING_S = 5.0
_KEPT_BYTES = 100_000
"""The end of the output has the error; libraries and scripts may print gigabytes before it."""
_PR_SET_PDEATHSIG = 1


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

    Raises WorkerTimeoutError, and KeyboardInterrupt also for SIGTERM and SIGHUP. No process outlives the call that the
    worker started, whatever its session: the name of `folder` is in its environment, or it stands below it.
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
    assert worker.stdout is not None, "it is a pipe"
    printed = bytearray()
    reader = threading.Thread(target=_keep_end, args=(worker.stdout, printed), daemon=True)
    reader.start()
    try:
        status = _wait(worker, request, printed, folder, timeout_s, on_progress)
    finally:
        _kill_all(worker.pid, folder)  # its children hold the pipe
        worker.wait()
        reader.join(_DYING_S)
    return status, printed.decode(errors="replace")


def _wait(
    worker: subprocess.Popen[bytes],
    request: bytes,
    printed: bytearray,
    folder: Path,
    timeout_s: float,
    on_progress: OnProgress,
) -> int:
    assert worker.stdin is not None, "it is a pipe"
    with signals_collected(signal.SIGTERM, signal.SIGHUP) as received:
        with contextlib.suppress(BrokenPipeError):  # the exit status shows the cause
            worker.stdin.write(request)
            worker.stdin.close()
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return worker.wait(_POLL_S)
            if received:
                raise KeyboardInterrupt
            if phase := read_phase(folder):  # "" while the worker writes it
                on_progress(phase)
    raise WorkerTimeoutError(read_phase(folder), printed.decode(errors="replace"))


def worker_environment() -> dict[str, str]:
    """The environment of a subprocess that imports transformers."""
    # PYTHONUTF8: some libraries read their own files in the encoding of the locale
    return {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}


def read_phase(folder: Path) -> str:
    file = folder / "phase"
    return file.read_text() if file.exists() else "start"


def _keep_end(stream: IO[bytes], kept: bytearray) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), 1 << 16):
            kept += chunk
            del kept[:-_KEPT_BYTES]


def _kill_all(leader: int, folder: Path) -> None:
    """Kill the worker's session, for libraries start compilers and other helpers, and what left it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    ends = time.monotonic() + _DYING_S
    while (left := _processes_of(folder)) and time.monotonic() < ends:  # one may start another while it is killed
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def _processes_of(folder: Path) -> list[int]:
    """This user's processes with the name of the folder in their environment, or with a current folder below it."""
    found = []
    name = os.fsencode(folder.name)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name in (entry / "environ").read_bytes() or name in os.fsencode((entry / "cwd").readlink()):
                found.append(int(entry.name))
    return found


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let Linux end this process by a signal when its parent ends, even if killed. The parent may have ended
    already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)
