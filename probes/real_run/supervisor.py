"""Run a command so that none of its processes outlives it or the process PARENT that started this one: `python -m
...supervisor PARENT COMMAND`.

torchrun starts every rank in a new session and the deepspeed launcher adds an intermediate process, so a process group
does not contain all processes. This process adopts every orphan among its descendants (PR_SET_CHILD_SUBREAPER), so at
the end it can find all remaining processes. Linux signals it when the parent dies for any reason (PR_SET_PDEATHSIG).
The parent also adopts orphans, in case this process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from ..scratch import interrupts_deferred
from ..worker_process import die_with_parent
from . import extension_lock
from .environment import own_settings
from .events import note_exit

SHARED_MEMORY = Path("/dev/shm")

_PR_SET_CHILD_SUBREAPER = 36


def main() -> NoReturn:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    adopt_orphans(True)
    signal.signal(signal.SIGTERM, _end)  # before the death signal is requested, which is SIGTERM
    die_with_parent(parent, signal.SIGTERM)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    while True:
        # Any child: adopted orphans must be reaped too.
        ended, status = os.waitpid(-1, 0)
        if ended == process.pid:
            code = os.waitstatus_to_exitcode(status)
            if (settings := own_settings()) is not None:
                code = note_exit(Path(settings.folder), ended, code)
            _kill_all()
            if code < 0:  # by the same signal: 128 + signal is how a shell reports the end of one of its ranks
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                with contextlib.suppress(OSError):  # SIGKILL has no handler
                    signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            os._exit(code)


@contextlib.contextmanager
def supervised(
    command: Sequence[str], output: Path, environment: Mapping[str, str], folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under a supervisor. No process of it is left at the end of the block, however the block ends: if
    the supervisor itself was killed, this process ends the others. output: the file of stdout and stderr."""
    supervisor = None
    # Children that exist now are not the command's, and are not ended with it.
    others = frozenset(child.pid for child in psutil.Process().children())
    try:
        with interrupts_deferred(), output.open("wb") as stream:
            adopt_orphans(True)
            supervisor = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        yield supervisor
    finally:
        with interrupts_deferred():
            if supervisor is not None:
                if supervisor.poll() is None:
                    supervisor.terminate()
                if supervisor.wait() < 0:
                    kill_descendants(others)
                    clean_up()
            adopt_orphans(False)


def clean_up() -> None:
    """Remove leftovers of killed ranks: buffers in shared memory, and the locks of interrupted builds."""
    free_abandoned_buffers()
    extension_lock.remove_abandoned()


def adopt_orphans(on: bool) -> None:
    """Set whether descendants that lose their parent become children of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def kill_descendants(spared: frozenset[int] = frozenset()) -> None:
    """Kill all descendants except the spared children and their descendants, repeatedly: a process may start another
    one while it is killed."""
    while left := _descendants(spared):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in left:
            with contextlib.suppress(ChildProcessError):  # not a child of this process, or not yet
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
    # A second SIGTERM must not interrupt the removal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_descendants()
    clean_up()


def free_abandoned_buffers() -> None:
    """Remove this user's buffers in shared memory that no process has open any more. Ranks on one machine's CPU
    exchange tensors through them (66 MiB per rank and training), and DeepSpeed never removes them.

    To be called after the ranks have ended; the buffers of another job stay. A job in another container is invisible if
    `/dev/shm` is shared and processes are not. It keeps the memory, but if one of its ranks opens another rank's buffer
    by name at that moment, that rank hangs. Source: deepspeed 0.19.8 csrc/cpu/comm/shm.cpp shm_initialize.
    """
    buffers = {str(path) for path in SHARED_MEMORY.glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*")}
    for process in Path("/proc").glob("[0-9]*") if buffers else ():
        buffers.difference_update(open_files(process))
    for buffer in buffers:
        Path(buffer).unlink(missing_ok=True)


def open_files(process: Path) -> Iterator[str]:
    """The files that a process has open or mapped, as far as they are readable. Open files are read first, because a
    file is opened before it is mapped."""
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(descriptor.readlink())
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line.split(maxsplit=5)[-1]


if __name__ == "__main__":
    main()
