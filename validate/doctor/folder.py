"""The folder of --nvme, which DeepSpeed swaps to: drive, file system, free space and O_DIRECT."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .findings import DoctorFinding, Findings, note, ok, problem, warning

Space = tuple[int, int]
"""Size of a file system and its free space, in bytes."""

_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "virtiofs"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.glusterfs"),
    )
)
_BLOCK = 4096
"""Alignment of O_DIRECT requests in bytes; the logical blocks of drives are 512 or 4096."""

_SMALL_BYTES = 100 * 10**9
"""A model of 7 B parameters swaps 18 bytes per parameter: fp32 weights, two states, gradients and weights in half
precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to swap to."""

    path: str
    filesystem: str = ""
    device: str = "unknown"
    """A key of `_DRIVES`."""
    free_bytes: int = 0
    error: str = ""
    """Why it is unusable, "" where it is usable."""
    direct_error: str = ""
    """Why a file cannot be opened with O_DIRECT, "" where it can."""


def space_of(folder: Path) -> Space:
    """Size and free space of the file system of a folder. Raises OSError."""
    known = os.statvfs(folder)
    return known.f_frsize * known.f_blocks, known.f_frsize * known.f_bavail


def read_folder(
    path: str,
    root: Path = Path("/"),
    *,
    space: Callable[[Path], Space] = space_of,
    direct: Callable[[Path], str] | None = None,
) -> Folder:
    """Examine a folder with the mounts and drives under `root`. Only `direct` writes to it, and leaves nothing."""
    try:
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            return Folder(path=path, error="it is no folder" if folder.exists() else "it does not exist")
        free_bytes = space(folder)[1]
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~user of an unknown user
        return Folder(path=path, error=str(error))
    filesystem, source, number = mount_of(folder, root)
    error_text = "" if os.access(folder, os.W_OK | os.X_OK) else "this user may not write there"
    return Folder(
        path=path,
        filesystem=filesystem,
        device=_device(filesystem, source, number, root),
        free_bytes=free_bytes,
        error=error_text,
        direct_error="" if error_text else (direct or direct_io_error)(folder),
    )


def mount_of(folder: Path, root: Path = Path("/")) -> tuple[str, str, str]:
    """(file system, source, device number) of the mount of a folder, "" where they are unknown."""
    depth = -1
    found = ("", "", "")
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            fields = before.split()
            rest = after.split()
            if len(fields) < 5 or len(rest) < 2:
                continue
            point = Path(fields[4].replace("\\040", " "))
            if (folder == point or point in folder.parents) and len(point.parts) >= depth:
                depth = len(point.parts)
                found = (rest[0], rest[1], fields[2])
    return found


def _device(filesystem: str, source: str, number: str, root: Path) -> str:
    if filesystem in _MEMORY:
        return "memory"
    if filesystem in NETWORK_FILE_SYSTEMS:
        return "network"
    if filesystem == "overlay":
        return "layered"
    drives = _drives(root / "sys/dev/block" / number) or _drives(root / "sys/class/block" / Path(source).name)
    kinds = {_drive_kind(drive) for drive in drives}
    slowest_first = ("disk", "unknown", "virtual", "ssd", "nvme")
    return next((kind for kind in slowest_first if kind in kinds), "unknown")


def _drives(block: Path) -> list[Path]:
    """The drives of a block device: itself, the drive of a partition, the members of a RAID or of a mapped device."""
    if not block.exists():
        return []
    block = block.resolve()
    members = sorted((block / "slaves").iterdir()) if (block / "slaves").is_dir() else []
    if members:
        return [drive for member in members for drive in _drives(member)]
    return [block.parent if (block / "partition").exists() else block]


def _drive_kind(drive: Path) -> str:
    if drive.name.startswith("nvme"):
        return "nvme"
    if drive.name.startswith(("vd", "xvd")):  # virtual drives always report rotational
        return "virtual"
    try:
        return "disk" if (drive / "queue/rotational").read_text(encoding="ascii").strip() == "1" else "ssd"
    except (OSError, UnicodeDecodeError):
        return "unknown"


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


_MEASURE = "ds-advise bench --nvme PATH measures it"
_DRIVES: dict[str, DoctorFinding] = {
    "nvme": ok("an NVMe drive"),
    "memory": problem("the folder is in RAM", "swapping to RAM frees no memory", "name a folder on a drive"),
    "network": warning(
        "a network drive",
        "every step reads and writes all optimizer states, which takes minutes",
        "name a folder on a local drive",
    ),
    "layered": warning(
        "the container's own layers",
        "swap files fill the drive of the container engine",
        "mount a folder of the NVMe drive: docker run -v /mnt/nvme:/nvme",
    ),
    "disk": warning(
        "a rotating disk", "0.2 GB/s instead of 3 or more: a step takes minutes", "name a folder on an NVMe drive"
    ),
    "ssd": note("an SSD that is not NVMe", "SATA reaches 0.5 GB/s, a fifth of a slow NVMe drive or less", _MEASURE),
    "virtual": note("a virtual drive", "its physical drive is unknown", _MEASURE),
    "unknown": note("a drive of unknown kind", "its speed determines the speed of training", _MEASURE),
}
"""Kind of drive -> finding."""


def swap_folder(folder: Folder) -> Findings:
    """The folder exists and is writable."""
    if folder.error:
        yield problem(
            folder.error,
            "DeepSpeed writes its swap files there",
            "name a writable folder on the drive: nvme_path in the configuration",
        )


def drive(folder: Folder) -> Findings:
    """The folder is on a local NVMe drive."""
    if not folder.error:
        row = _DRIVES[folder.device]
        yield DoctorFinding(row.status, f"{row.what} ({folder.filesystem or 'unknown'})", row.why, row.fix)


def direct_io(folder: Folder) -> Findings:
    """Files open with O_DIRECT, which DeepSpeed uses (ops/csrc/aio/common/deepspeed_aio_common.cpp, 0.19.8)."""
    if folder.direct_error:
        yield problem(
            f"files cannot be opened with O_DIRECT: {folder.direct_error}",
            "DeepSpeed opens its swap files with O_DIRECT and stops",
            "name a folder on ext4 or xfs",
        )
    elif not folder.error:
        yield ok("files open with O_DIRECT")


def free_space(folder: Folder) -> Findings:
    """The drive has room for the states of a model worth swapping."""
    free = f"{folder.free_bytes / 10**9:,.0f} GB free"
    if not folder.error and folder.free_bytes < _SMALL_BYTES:
        yield note(free, "full training swaps 18 bytes per parameter: 126 GB for a 7 B model", "free space there")
    elif not folder.error:
        yield ok(free)
