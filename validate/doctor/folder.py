"""The folder of --nvme, which DeepSpeed swaps to: its file system."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...estimators.phrase import phrase
from .findings import Findings, ok, problem, warning

NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "virtiofs"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.glusterfs"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to swap to."""

    path: str
    filesystem: str = ""
    error: str = ""
    """Why it is unusable, "" where it is usable."""


def read_folder(path: str) -> Folder:
    """Examine a folder and its mount."""
    try:
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            return Folder(path=path, error="it is not a folder" if folder.exists() else "it does not exist")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~user of an unknown user
        return Folder(path=path, error=str(error))
    mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.is_relative_to(mount.mountpoint)]
    innermost = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    refused = "" if os.access(folder, os.W_OK | os.X_OK) else "this user may not write there"
    return Folder(path=path, filesystem=innermost.fstype if innermost else "", error=refused)


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
