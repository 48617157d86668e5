"""The folder of --nvme, which DeepSpeed swaps to: drive, file system, free space and O_DIRECT."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...estimators.phrase import phrase
from .findings import Findings, ok, problem, warning

Space = tuple[int, int]
"""Size of a file system and its free space, in bytes."""

NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "virtiofs"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.glusterfs"),
    )
)
_BLOCK = 4096
"""Alignment of O_DIRECT requests in bytes; the logical blocks of drives are 512 or 4096."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to swap to."""

    path: str
    filesystem: str = ""
    error: str = ""
    """Why it is unusable, "" where it is usable."""
    direct_error: str = ""
    """Why a file cannot be opened with O_DIRECT, "" where it can."""


def space_of(folder: Path) -> Space:
    """Size and free space of the file system of a folder. Raises OSError."""
    known = os.statvfs(folder)
    return known.f_frsize * known.f_blocks, known.f_frsize * known.f_bavail


def read_folder(path: str, root: Path = Path("/"), *, direct: Callable[[Path], str] | None = None) -> Folder:
    """Examine a folder with the mounts and drives under `root`. Only `direct` writes to it, and leaves nothing."""
    try:
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            return Folder(path=path, error="it is not a folder" if folder.exists() else "it does not exist")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~user of an unknown user
        return Folder(path=path, error=str(error))
    error_text = "" if os.access(folder, os.W_OK | os.X_OK) else "this user may not write there"
    return Folder(
        path=path,
        filesystem=mount_of(folder, root),
        error=error_text,
        direct_error="" if error_text else (direct or direct_io_error)(folder),
    )


def mount_of(folder: Path, root: Path = Path("/")) -> str:
    """The file system of the mount of a folder, "" where it is unknown."""
    depth, found = -1, ""
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            fields = before.split()
            rest = after.split()
            if len(fields) < 5 or not rest:
                continue
            point = Path(fields[4].replace("\\040", " "))
            if (folder == point or point in folder.parents) and len(point.parts) >= depth:
                depth = len(point.parts)
                found = rest[0]
    return found


def direct_io_error(folder: Path) -> str:
    """Why a file in the folder cannot be written with O_DIRECT; "" where it can. The test file has no name (O_TMPFILE)
    or loses it at once, so a killed process leaves nothing."""
    flags = os.O_RDWR | getattr(os, "O_DIRECT", 0)
    try:
        try:
            file = os.open(folder, flags | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            name = folder / f".ds-advise-doctor-{os.getpid()}"
            try:
                file = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
            finally:
                name.unlink(missing_ok=True)
        try:
            with mmap.mmap(-1, _BLOCK) as aligned:
                os.write(file, aligned)
        finally:
            os.close(file)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def swap_folder(folder: Folder) -> Findings:
    """The folder exists, is writable, and is on a drive of this machine."""
    filesystem = folder.filesystem
    if folder.error:
        yield problem(
            folder.error,
            "DeepSpeed writes its swap files there",
            "name a writable folder on the drive: nvme_path in the configuration",
        )
    elif filesystem in ("tmpfs", "ramfs", "devtmpfs"):
        yield problem(
            phrase("the folder is in RAM ({filesystem})", filesystem=filesystem),
            "swapping to RAM frees no memory",
            "name a folder on a drive",
        )
    elif filesystem in NETWORK_FILE_SYSTEMS:
        yield warning(
            phrase("a network drive ({filesystem})", filesystem=filesystem),
            "every step reads and writes all optimizer states, which takes minutes",
            "name a folder on a local drive",
        )
    else:
        yield ok(
            phrase(
                "a folder on {filesystem}; ds-advise bench --nvme PATH measures its drive",
                filesystem=filesystem or phrase("an unknown file system"),
            )
        )


def direct_io(folder: Folder) -> Findings:
    """Files open with O_DIRECT, which DeepSpeed uses (ops/csrc/aio/common/deepspeed_aio_common.cpp, 0.19.8)."""
    if folder.direct_error:
        yield problem(
            phrase("files cannot be opened with O_DIRECT: {direct_error}", direct_error=folder.direct_error),
            "DeepSpeed opens its swap files with O_DIRECT and stops",
            "name a folder on ext4 or xfs",
        )
    elif not folder.error:
        yield ok("files open with O_DIRECT")
