"""A lock for compiled extensions that does not block others after its owner was killed.

torch builds an extension under a lock file (torch/utils/file_baton.py). A process that is killed while it compiles
leaves the file, and every process that needs the extension waits forever. Here the owner marks its file and holds a
file lock on it. A marked file without a lock is abandoned and is removed; a file without the mark belongs to another
program.

`remove_abandoned` must be called after killing processes that may hold such a lock: a plain training ignores the mark.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from sys import abiflags, version_info
from typing import Any

from ..scratch import try_lock

_MARK = b"held by ds-advise"


def install(note: Callable[[dict[str, Any]], None]) -> None:
    """note: records an event of this process: `waits_for` is the lock of another process, "" when it is free."""
    from torch.utils import file_baton

    baton: Any = file_baton.FileBaton
    plainly_acquire = baton.try_acquire

    def try_acquire(self: Any) -> bool:
        lock = Path(self.lock_file_path)
        _remove_if_abandoned(lock)
        try:
            self.fd = _marked_file(lock)
        except FileExistsError:
            return False
        except OSError:  # a file system without locks or without links
            return bool(plainly_acquire(self))
        return True

    def wait(self: Any) -> None:
        lock = Path(self.lock_file_path)
        note({"waits_for": str(lock)})
        while lock.exists():
            _remove_if_abandoned(lock)
            time.sleep(self.wait_seconds)
        note({"waits_for": ""})

    def release(self: Any) -> None:
        Path(self.lock_file_path).unlink()  # before the unlock: afterwards the file may be another owner's
        os.close(self.fd)

    baton.try_acquire, baton.wait, baton.release = try_acquire, wait, release


def _marked_file(lock: Path) -> int:
    """Create the lock file, marked and locked atomically. Returns its descriptor. Raises FileExistsError."""
    descriptor, draft = tempfile.mkstemp(prefix="lock-", dir=lock.parent)
    try:
        try_lock(descriptor)
        os.write(descriptor, _MARK)
        # Atomic, and fails if the lock exists: nobody sees a lock without its mark and owner.
        os.link(draft, lock)
    except OSError:
        os.close(descriptor)
        raise
    finally:
        Path(draft).unlink()
    return descriptor


def _remove_if_abandoned(lock: Path) -> None:
    with contextlib.suppress(OSError), lock.open("r+b") as stream:
        # Only the holder of the file lock may remove the file.
        if (
            stream.read() == _MARK
            and try_lock(stream.fileno())
            # The file may have been replaced by another owner's between opening and locking.
            and os.path.samestat(os.fstat(stream.fileno()), lock.stat())
        ):
            lock.unlink()


def builder(lock: Path) -> str:
    """Who builds under the lock: `pid 7` or `a process of another container`; "" if no process here does. Raises
    OSError for a lock that is gone."""
    process = _process_of(lock)
    return f"pid {process}" if process else "a process of another container" if _is_held(lock) else ""


def _process_of(lock: Path) -> int | None:
    """The number of a process that compiles an op: it has the op's lock open, under any name (ds-advise's own was
    created under another one), or is a compiler of it, which is also seen if its files are not readable."""
    wanted = lock.stat()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if f"-DTORCH_EXTENSION_NAME={lock.parent.name}".encode() in arguments:
                return int(process.name)
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed since
                    if os.path.samestat(descriptor.stat(), wanted):
                        return int(process.name)
    return None


def _is_held(lock: Path) -> bool:
    """Whether a marked lock has a living owner, in whatever container."""
    with lock.open("rb") as stream:
        return stream.read() == _MARK and not try_lock(stream.fileno())


def build_folder(environment: Mapping[str, str], torch_build: str) -> Path:
    """The folder in which torch builds extensions for this Python, one folder each (`_get_build_directory` in
    torch/utils/cpp_extension.py). torch_build: what torch is built for, such as `cu128`."""
    if named := environment.get("TORCH_EXTENSIONS_DIR"):
        return Path(named)
    return _default_root(environment) / f"py{version_info.major}{version_info.minor}{abiflags}_{torch_build}"


def _default_root(environment: Mapping[str, str]) -> Path:
    """The folder with one folder of extensions for each Python and build of torch."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  Path.home() raises without a home
    return Path(environment.get("XDG_CACHE_HOME") or f"{home}/.cache") / "torch_extensions"


def remove_abandoned() -> None:
    """Remove the abandoned locks of all extensions in torch's folder, whichever Python and torch build them."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    locks = Path(named).glob("*/lock") if named else _default_root(os.environ).glob("*/*/lock")
    for lock in locks:
        _remove_if_abandoned(lock)
