"""Runs a command and lets none of its processes outlive it or the process PARENT that started this one: `python -m
...supervisor PARENT COMMAND`.

torchrun gives every rank a session of its own and the deepspeed launcher puts a process between, so a process group
does not hold them all. This one adopts whatever loses its parent (PR_SET_CHILD_SUBREAPER), so at the end everything
that is left is among its descendants; and Linux tells it when the parent dies, however it dies (PR_SET_PDEATHSIG). The
parent adopts in the same way what this one leaves where it is killed itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from typing import NoReturn

import psutil

from .shared_memory import free_abandoned_buffers

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> NoReturn:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    adopt_orphans(True)
    signal.signal(signal.SIGTERM, _end)  # before the death signal is asked for, which is this one
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)  # it died before it could be watched
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == process.pid:
            code = os.waitstatus_to_exitcode(status)
            _kill_all()
            os._exit(code if code >= 0 else 128 - code)  # as a shell says it: 128 + signal


def adopt_orphans(on: bool) -> None:
    """Whether descendants that lose their parent become this process's children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def kill_descendants(spared: frozenset[int] = frozenset()) -> None:
    """Until there is none left but the spared children and theirs: a process may have started another while it was
    killed."""
    while left := _descendants(spared):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in left:
            with contextlib.suppress(ChildProcessError):  # not this one's child, or not yet
                os.waitpid(process.pid, 0)


def _descendants(spared: frozenset[int]) -> list[psutil.Process]:
    me = psutil.Process()
    kept = set(spared)
    for child in me.children():
        if child.pid in spared:
            with contextlib.suppress(psutil.Error):
                kept |= {process.pid for process in child.children(recursive=True)}
    return [process for process in me.children(recursive=True) if process.pid not in kept]


def _end(*_: object) -> None:
    _kill_all()
    os._exit(128 + signal.SIGTERM)


def _kill_all() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_descendants()
    free_abandoned_buffers()


if __name__ == "__main__":
    main()
