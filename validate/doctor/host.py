"""Host memory and its limits, the processor (from /proc, /sys and /dev, or a copy of them), and the folder of
--nvme."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import psutil

from ...estimators.phrase import gib, phrase
from ...probes.machine import MemoryGroup, cpu_quota, memory_groups, read_pairs
from .findings import Findings, counted, note, ok, problem, warning
from .gpus import Graphics

_CAP_IPC_LOCK = 14
"""Bit of the capability that lifts RLIMIT_MEMLOCK (linux/capability.h)."""

_LOW_SHARE = 0.1
"""Share of free RAM below which no offload fits."""

_MIN_SHARED_BYTES = 512 * 2**20
"""Minimum below which DeepSpeed's own ds_report warns (env_report.py `get_shm_size`, 0.19.8)."""

_MIN_LOCKED_BYTES = 10**9
"""Size of one rank's parameter swap buffers by default: 5 buffers of 1e8 elements of 2 bytes."""


NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "virtiofs"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.glusterfs"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Host memory."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None
    """The container's memory limit (cgroup); None without a limit."""
    limit_used_bytes: int | None = None
    """Memory in use under the limit, without pages that the kernel can drop."""
    killed: int = 0
    """Number of processes in the container that the kernel killed for lack of memory."""
    lockable_bytes: int | None = None
    """RLIMIT_MEMLOCK; None without a limit."""
    shared_bytes: int | None = None
    """The size of /dev/shm; None if it is missing."""
    shared_free_bytes: int | None = None
    rdma: bool = False
    """Whether there is an InfiniBand or RoCE adapter, whose buffers are locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPU."""

    usable: int
    """Number of CPUs that this process may run on."""
    quota: float | None = None
    """The container's CPU quota in CPUs; None without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder for swapping."""

    path: str
    filesystem: str = ""
    error: str = ""
    """Why the folder is unusable; "" if it is usable."""


def read_memory(root: Path) -> Memory:
    """Read RAM, the container's limit, page locking and /dev/shm."""
    kib = {name: int(value.split()[0]) * 1024 for name, value in read_pairs(root / "proc/meminfo").items() if value}
    groups = memory_groups(root)
    limits = [(limit, group) for group in groups if (limit := group.limit_bytes) and limit < kib["MemTotal"]]
    limit_bytes, tightest = min(limits, key=lambda pair: pair[0], default=(None, None))
    shared = None
    with suppress(OSError):
        shared = disk_usage(root / "dev/shm")
    return Memory(
        total_bytes=kib["MemTotal"],
        available_bytes=kib.get("MemAvailable", kib.get("MemFree", 0)),
        limit_bytes=limit_bytes,
        limit_used_bytes=_used_bytes(tightest) if tightest else None,
        killed=max(group.killed or 0 for group in groups),
        lockable_bytes=_lockable_bytes(root),
        shared_bytes=shared and shared.total,
        shared_free_bytes=shared and shared.free,
        rdma=any((root / "sys/class/infiniband").glob("*")),
    )


def _used_bytes(group: MemoryGroup) -> int | None:
    """Memory of a control group without the file pages that the kernel drops first."""
    used_bytes = group.used_bytes
    counters = group.counters()
    dropped_bytes = counters.get("total_inactive_file", counters.get("inactive_file", 0))
    return None if used_bytes is None else max(0, used_bytes - dropped_bytes)


def _lockable_bytes(root: Path) -> int | None:
    """RLIMIT_MEMLOCK, None for no limit."""
    import resource  # which Windows lacks

    capabilities = int(read_pairs(root / "proc/self/status").get("CapEff", "0"), 16)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY or capabilities >> _CAP_IPC_LOCK & 1 else limit


def read_processor(root: Path) -> Processor:
    """Read the usable cores and their quota."""
    return Processor(usable=len(os.sched_getaffinity(0)), quota=cpu_quota(root))


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


def ram(memory: Memory) -> Findings:
    """Check the available RAM."""
    seen = phrase(
        "{available} of {total} GiB available", available=gib(memory.available_bytes), total=gib(memory.total_bytes)
    )
    if memory.available_bytes < _LOW_SHARE * memory.total_bytes:
        yield warning(
            seen,
            "a process that loads a model or offloads to RAM is killed when RAM runs out",
            "end the processes that hold it: ps aux --sort=-rss | head",
        )
    else:
        yield ok(seen)


def memory_limit(memory: Memory) -> Findings:
    """Check the container's memory limit, and for processes that the kernel killed in it."""
    if memory.killed:
        yield warning(
            phrase(
                "the kernel has killed {count} processes in this container or session for memory", count=memory.killed
            )
            if memory.killed > 1
            else phrase("the kernel has killed a process in this container or session for memory"),
            "a killed rank ends without a message, and the other ranks hang",
            "give the container more memory, or pass --ram to ds-advise for a plan that needs less",
        )
    if memory.limit_bytes is not None:
        seen = phrase(
            "{limit} of the machine's {total} GiB may be used",
            limit=gib(memory.limit_bytes),
            total=gib(memory.total_bytes),
        )
        if memory.limit_used_bytes is not None:
            seen = phrase("{words}, {used} in use", words=seen, used=gib(memory.limit_used_bytes))
        yield note(
            seen,
            "a job beyond the container's limit is killed without a message, however much RAM is free",
            phrase("pass --ram {limit}GiB to ds-advise", limit=memory.limit_bytes // 2**30),
        )
    elif not memory.killed:
        yield ok("no limit below the machine's RAM")


def locked_memory(memory: Memory, folder: Folder | None = None) -> Findings:
    """Check the limit of page-locked memory.

    It does not apply to CUDA's pinned memory, but to DeepSpeed's swap buffers, which are locked with mlock
    (ops/csrc/pin_memory/page_alloc.cpp, runtime/swap_tensor/ of 0.19.8), and the buffers of RDMA adapters.
    """
    limit = memory.lockable_bytes
    fix = "ulimit -l unlimited (limits.conf: memlock; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimits)"
    if limit is None or limit >= _MIN_LOCKED_BYTES:
        yield ok("no limit" if limit is None else phrase("{limit} GiB may be locked", limit=gib(limit)))
        return
    seen = phrase("a process may lock {limit} MiB", limit=f"{limit / 2**20:,.0f}")
    if folder is not None:
        yield problem(seen, "DeepSpeed locks its NVMe buffers, which then fails", fix)
    elif memory.rdma:
        yield problem(seen, "InfiniBand registers the buffers of NCCL, which then fails", fix)
    else:
        yield note(seen, "CUDA pins memory without it; offload to NVMe locks its buffers and fails", fix)


def shared_memory(memory: Memory, graphics: Graphics | None = None) -> Findings:
    """Check /dev/shm, which NCCL and data loaders use."""
    free_bytes = memory.shared_free_bytes or 0
    fix = "docker run --shm-size=16g or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if memory.shared_bytes is None:
        yield problem("/dev/shm is missing", "NCCL and data loaders with workers fail", fix)
    elif memory.shared_bytes < _MIN_SHARED_BYTES:
        report = problem if graphics is not None and len(graphics.gpus) > 1 else warning
        yield report(
            phrase("/dev/shm has {shared} MiB", shared=memory.shared_bytes // 2**20),
            'NCCL between GPUs stops with "No space left on device", data loaders with "bus error"',
            fix,
        )
    elif free_bytes < _MIN_SHARED_BYTES:
        yield warning(
            phrase("/dev/shm is full: {free} MiB free", free=free_bytes // 2**20),
            "NCCL and data loaders put their buffers there",
            "remove the files of earlier runs: ls -la /dev/shm",
        )
    else:
        yield ok(phrase("/dev/shm has {free} GiB free", free=gib(free_bytes)))


def cores(processor: Processor, graphics: Graphics | None = None) -> Findings:
    """Check the cores for data loading and CPU Adam, and whether the quota agrees with them."""
    usable = processor.usable
    ranks = max(1, len(graphics.gpus) if graphics else 1)
    if processor.quota is not None and processor.quota < 0.9 * usable:
        yield warning(
            phrase(
                "{usable} visible, a quota of {quota}", usable=counted(usable, "core"), quota=f"{processor.quota:g}"
            ),
            "a thread is started for each visible core, and all are paused when the quota is used up",
            f"export OMP_NUM_THREADS={max(1, int(processor.quota / ranks))}",
        )
    elif usable < 2 * ranks:
        yield warning(
            phrase("{usable} for {ranks}", usable=counted(usable, "core"), ranks=counted(ranks, "rank")),
            "kernel launches, data loading and CPU Adam share them",
            "use a machine with more cores per GPU",
        )
    else:
        yield ok(phrase("{usable} cores", usable=usable))


def swap_folder(folder: Folder) -> Findings:
    """Check that the folder exists, is writable, and is on a local drive."""
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
