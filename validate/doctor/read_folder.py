"""A folder to swap to: what drive and file system it is on, its free space, and whether the page cache can be passed
by."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .facts import Folder
from .read_host import Space, space_of

_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "ceph",
    "lustre",
    "beegfs",
    "gpfs",
    "glusterfs",
    "9p",
    "virtiofs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.juicefs",
    "fuse.glusterfs",
}
_BLOCK = 4096
"""Bytes to which a request past the page cache is aligned; the logical blocks of drives are 512 or 4096."""


def read_folder(
    path: str,
    root: Path = Path("/"),
    *,
    space: Callable[[Path], Space] = space_of,
    direct: Callable[[Path], str] | None = None,
) -> Folder:
    """What is known of the folder. Its name is looked up in the mounts and drives under `root`; it is written to only
    by `direct`, which leaves nothing behind."""
    try:
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            return Folder(path=path, error="it is no folder" if folder.exists() else "it does not exist")
        free = space(folder)[1]
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~user of whom nobody knows
        return Folder(path=path, error=str(error))
    filesystem, source, number = mount_of(folder, root)
    barred = "" if os.access(folder, os.W_OK | os.X_OK) else "this user may not write there"
    return Folder(
        path=path,
        filesystem=filesystem,
        device=_device(filesystem, source, number, root),
        free_bytes=free,
        error=barred,
        direct_error="" if barred else (direct or why_not_direct)(folder),
    )


def mount_of(folder: Path, root: Path = Path("/")) -> tuple[str, str, str]:
    """(file system, source, device number) of the mount that a folder is on, "" where they are not told."""
    best, found = -1, ("", "", "")
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            fields, rest = before.split(), after.split()
            if len(fields) < 5 or len(rest) < 2:
                continue
            point = Path(fields[4].replace("\\040", " "))
            if (folder == point or point in folder.parents) and len(point.parts) >= best:
                best, found = len(point.parts), (rest[0], rest[1], fields[2])
    return found


def _device(filesystem: str, source: str, number: str, root: Path) -> str:
    if filesystem in _MEMORY:
        return "memory"
    if filesystem in _NETWORK:
        return "network"
    if filesystem == "overlay":
        return "layered"
    drives = _drives(root / "sys/dev/block" / number) or _drives(root / "sys/class/block" / Path(source).name)
    kinds = {_kind(drive) for drive in drives}
    for kind in ("disk", "unknown", "virtual", "ssd", "nvme"):  # the slowest decides
        if kind in kinds:
            return kind
    return "unknown"


def _drives(block: Path) -> list[Path]:
    """The drives under a block device: itself, the whole of a partition, the members of a RAID or of a mapped
    device."""
    if not block.exists():
        return []
    block = block.resolve()
    members = sorted((block / "slaves").iterdir()) if (block / "slaves").is_dir() else []
    if members:
        return [drive for member in members for drive in _drives(member)]
    return [block.parent if (block / "partition").exists() else block]


def _kind(drive: Path) -> str:
    if drive.name.startswith("nvme"):
        return "nvme"
    if drive.name.startswith(("vd", "xvd")):  # a virtual machine's, which calls itself rotating whatever it is on
        return "virtual"
    try:
        return "disk" if (drive / "queue/rotational").read_text(encoding="ascii").strip() == "1" else "ssd"
    except (OSError, UnicodeDecodeError):
        return "unknown"


def why_not_direct(folder: Path) -> str:
    """Why a file in the folder cannot be written past the page cache; "" where it can. The file that is tried has no
    name (O_TMPFILE), or loses it at once, so that nothing is left even by a killed process."""
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
            import mmap

            with mmap.mmap(-1, _BLOCK) as aligned:
                os.write(file, aligned)
        finally:
            os.close(file)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""
