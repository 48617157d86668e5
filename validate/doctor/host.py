"""Host memory and its limits, the processor (from /proc, /sys and /dev, or a copy of them), and the folder of
--nvme."""

from __future__ import annotations

import os
import re
from pathlib import Path
from shutil import disk_usage

import psutil

from ...estimators.units import gib
from ...probes.machine import cpu_quota, memory_groups, read_pairs
from .findings import Findings, note, ok, problem, warning
from .machine import ExaminedMachine

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


def _meminfo(machine: ExaminedMachine) -> dict[str, int]:
    """Name -> bytes."""
    pairs = read_pairs(machine.root / "proc/meminfo")
    return {name: int(value.split()[0]) * 1024 for name, value in pairs.items() if value}


def ram(machine: ExaminedMachine) -> Findings:
    """Check the available RAM."""
    memory = _meminfo(machine)
    total, available = memory["MemTotal"], memory.get("MemAvailable", memory.get("MemFree", 0))
    seen = f"{gib(available)} of {gib(total)} GiB available"
    if available < _LOW_SHARE * total:
        yield warning(
            seen,
            "a process that loads a model or offloads to RAM is killed when RAM runs out",
            "end the processes that hold it: ps aux --sort=-rss | head",
        )
    else:
        yield ok(seen)


def memory_limit(machine: ExaminedMachine) -> Findings:
    """Check the container's memory limit (cgroup), and for processes that the kernel killed in it."""
    total, groups = _meminfo(machine)["MemTotal"], memory_groups(machine.root)
    killed = max((group.killed or 0 for group in groups), default=0)
    if killed:
        processes = f"{killed} processes" if killed > 1 else "a process"
        yield warning(
            f"the kernel has killed {processes} in this container or session for memory",
            "a killed rank ends without a message, and the other ranks hang",
            "give the container more memory, or pass --ram to ds-advise for a plan that needs less",
        )
    limits = [(limit, group) for group in groups if (limit := group.limit_bytes) and limit < total]
    if limits:
        limit, group = min(limits, key=lambda pair: pair[0])
        seen = f"{gib(limit)} of the machine's {gib(total)} GiB may be used"
        used, counters = group.used_bytes, group.counters()
        if used is not None:  # without the file pages that the kernel drops first
            used = max(0, used - counters.get("total_inactive_file", counters.get("inactive_file", 0)))
            seen += f", {gib(used)} in use"
        yield note(
            seen,
            "a job beyond the container's limit is killed without a message, however much RAM is free",
            f"pass --ram {limit // 2**30}GiB to ds-advise",
        )
    elif not killed:
        yield ok("no limit below the machine's RAM")


def locked_memory(machine: ExaminedMachine) -> Findings:
    """Check the limit of page-locked memory (RLIMIT_MEMLOCK).

    It does not apply to CUDA's pinned memory, but to DeepSpeed's swap buffers, which are locked with mlock
    (ops/csrc/pin_memory/page_alloc.cpp, runtime/swap_tensor/ of 0.19.8), and the buffers of RDMA adapters.
    """
    import resource  # which Windows lacks

    capabilities = int(read_pairs(machine.root / "proc/self/status").get("CapEff", "0"), 16)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    fix = "ulimit -l unlimited (limits.conf: memlock; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimits)"
    seen = f"a process may lock {limit / 2**20:,.0f} MiB"
    if limit == resource.RLIM_INFINITY or capabilities >> _CAP_IPC_LOCK & 1:
        yield ok("no limit")
    elif limit >= _MIN_LOCKED_BYTES:
        yield ok(f"{gib(limit)} GiB may be locked")
    elif machine.nvme is not None:
        yield problem(seen, "DeepSpeed locks its NVMe buffers, which then fails", fix)
    elif any((machine.root / "sys/class/infiniband").glob("*")):  # InfiniBand or RoCE
        yield problem(seen, "InfiniBand registers the buffers of NCCL, which then fails", fix)
    else:
        yield note(seen, "CUDA pins memory without it; offload to NVMe locks its buffers and fails", fix)


def shared_memory(machine: ExaminedMachine) -> Findings:
    """Check /dev/shm, which NCCL and data loaders use."""
    fix = "docker run --shm-size=16g or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    try:
        shared = disk_usage(machine.root / "dev/shm")
    except OSError:
        yield problem("/dev/shm is missing", "NCCL and data loaders with workers fail", fix)
        return
    if shared.total < _MIN_SHARED_BYTES:
        report = problem if (machine.gpu_count or 0) > 1 else warning
        yield report(
            f"/dev/shm has {shared.total // 2**20} MiB",
            'NCCL between GPUs stops with "No space left on device", data loaders with "bus error"',
            fix,
        )
    elif shared.free < _MIN_SHARED_BYTES:
        yield warning(
            f"/dev/shm is full: {shared.free // 2**20} MiB free",
            "NCCL and data loaders put their buffers there",
            "remove the files of earlier runs: ls -la /dev/shm",
        )
    else:
        yield ok(f"/dev/shm has {gib(shared.free)} GiB free")


def cores(machine: ExaminedMachine) -> Findings:
    """Check the cores for data loading and CPU Adam, and whether the container's quota agrees with them."""
    usable, quota = len(os.sched_getaffinity(0)), cpu_quota(machine.root)
    ranks = max(1, machine.gpu_count or 1)
    visible = f"{usable} core{'s' * (usable > 1)}"
    if quota is not None and quota < 0.9 * usable:
        yield warning(
            f"{visible} visible, a quota of {quota:g}",
            "a thread is started for each visible core, and all are paused when the quota is used up",
            f"export OMP_NUM_THREADS={max(1, int(quota / ranks))}",
        )
    elif usable < 2 * ranks:
        yield warning(
            f"{visible} for {ranks} rank{'s' * (ranks > 1)}",
            "kernel launches, data loading and CPU Adam share them",
            "use a machine with more cores per GPU",
        )
    else:
        yield ok(visible)


def swap_folder(machine: ExaminedMachine) -> Findings:
    """Check that the folder exists, is writable, and is on a local drive."""
    if machine.nvme is None:
        return
    error = filesystem = ""
    try:
        folder = Path(machine.nvme).expanduser().resolve()
        if not folder.is_dir():
            error = f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
        elif not os.access(folder, os.W_OK | os.X_OK):
            error = f"this user may not write to {folder}"
        mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.is_relative_to(mount.mountpoint)]
        innermost = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
        filesystem = innermost.fstype if innermost else ""
    except (OSError, ValueError, RuntimeError) as problem_found:  # RuntimeError: ~user of an unknown user
        error = str(problem_found)
    if error:
        without_size, _, given_size = machine.nvme.rpartition(":")
        named = "name a writable folder on the drive: nvme_path in the configuration"
        has_size = re.fullmatch(r"[\d.]+ *[KMGT]?i?B?", given_size, re.IGNORECASE) and without_size
        fix = f"write --nvme {without_size}; doctor takes no size" if has_size else named
        yield problem(error, "DeepSpeed writes its swap files there", fix)
    elif filesystem in ("tmpfs", "ramfs", "devtmpfs"):
        yield problem(
            f"the folder is in RAM ({filesystem})",
            "swapping to RAM frees no memory",
            "name a folder on a drive",
        )
    elif filesystem in NETWORK_FILE_SYSTEMS:
        yield warning(
            f"a network drive ({filesystem})",
            "every step reads and writes all optimizer states, which takes minutes",
            "name a folder on a local drive",
        )
    else:
        kind = filesystem or "an unknown file system"
        yield ok(f"a folder on {kind}; ds-advise bench --nvme PATH measures its drive")
