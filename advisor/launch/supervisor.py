"""The shared memory through which ranks on one machine's CPU exchange tensors, which DeepSpeed never removes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psutil

FOLDER = Path("/dev/shm")


def free_abandoned_buffers() -> None:
    """Remove this user's buffers that no process has open any more: 66 MiB a rank and training, which stay in memory
    otherwise until the machine starts anew.

    To be called when the ranks have ended; what another job uses stays. A job in another container is not seen where
    `/dev/shm` is shared and processes are not; it keeps the memory, but a rank of it that looks for the name of another
    in that moment would wait. Source: deepspeed 0.19.8 csrc/cpu/comm/shm.cpp shm_initialize.
    """
    buffers = {str(path) for path in FOLDER.glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*")}
    for process in Path("/proc").glob("[0-9]*") if buffers else ():
        buffers.difference_update(_opened(process))
    for buffer in buffers:
        Path(buffer).unlink(missing_ok=True)


def _opened(process: Path) -> Iterator[str]:
    """The files that a process has open or mapped, as far as it may be asked; a file is opened before it is mapped."""
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(descriptor.readlink())
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line.split(maxsplit=5)[-1]


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
