"""Memory, processor and limits of this host, from the files under /proc, /sys and /dev (or a copy of them)."""

from __future__ import annotations

import errno
import os
import platform
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from ...probes.cgroup import MemoryGroup, cpu_quota, memory_groups
from ...probes.kernel_files import read_number, read_pairs, read_text
from .facts import Host, Memory, Processor
from .tools import Runner, run_tool

Space = tuple[int, int]
"""Bytes of a file system, and bytes that are free in it."""

_CAP_IPC_LOCK = 14
"""Bit of the capability that lifts RLIMIT_MEMLOCK (linux/capability.h)."""


def space_of(folder: Path) -> Space:
    """Size and free space of the file system that holds a folder. Raises OSError."""
    known = os.statvfs(folder)
    return known.f_frsize * known.f_blocks, known.f_frsize * known.f_bavail


def read_memory(root: Path, space: Callable[[Path], Space] = space_of) -> Memory:
    """Host memory and what bounds it: RAM, swap, the container's limit, page locking, /dev/shm, huge pages."""
    kib = {name: int(value.split()[0]) * 1024 for name, value in read_pairs(root / "proc/meminfo").items() if value}
    huge_pages = kib.get("HugePages_Total", 0) // 1024  # a count, though it stands among sizes
    groups = memory_groups(root)
    limits = [(limit, group) for group in groups if (limit := group.limit_bytes) and limit < kib["MemTotal"]]
    limit_bytes, tightest = min(limits, key=lambda pair: pair[0], default=(None, None))
    try:
        shared: tuple[int | None, int | None] = space(root / "dev/shm")
    except OSError:
        shared = None, None
    return Memory(
        total_bytes=kib["MemTotal"],
        available_bytes=kib.get("MemAvailable", kib.get("MemFree", 0)),
        swap_bytes=kib.get("SwapTotal", 0),
        swap_used_bytes=kib.get("SwapTotal", 0) - kib.get("SwapFree", 0),
        limit_bytes=limit_bytes,
        limit_used_bytes=_kept_bytes(tightest) if tightest else None,
        killed=max(group.killed or 0 for group in groups),
        lockable_bytes=None if _may_lock_all(root) else _limit(root, "Max locked memory"),
        shared_bytes=shared[0],
        shared_free_bytes=shared[1],
        huge_bytes=huge_pages * kib.get("Hugepagesize", 0),
        overcommit=read_number(root / "proc/sys/vm/overcommit_memory") or 0,
    )


def _kept_bytes(group: MemoryGroup) -> int | None:
    """A control group's memory without the file pages that the kernel drops first."""
    used_bytes, counters = group.used_bytes, group.counters()
    dropped_bytes = counters.get("total_inactive_file", counters.get("inactive_file", 0))
    return None if used_bytes is None else max(0, used_bytes - dropped_bytes)


def _may_lock_all(root: Path) -> bool:
    effective = read_pairs(root / "proc/self/status").get("CapEff", "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)


def _limit(root: Path, name: str) -> int | None:
    """A soft limit of this process, None for none."""
    for line in read_text(root / "proc/self/limits").splitlines():
        if line.startswith(name):
            value = line[len(name) :].split()[0]
            return int(value) if value.isdigit() else None
    return None


def read_processor(root: Path) -> Processor:
    """Cores that may be used, the instructions that DeepSpeed's CPU Adam is compiled for, and the NUMA nodes."""
    known = read_pairs(root / "proc/cpuinfo")  # of each name the first, so the first processor's
    flags = set(known.get("flags", known.get("Features", "")).split())
    usable = cpu_list(read_pairs(root / "proc/self/status").get("Cpus_allowed_list", ""))
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    online = cpu_list(read_text(root / "sys/devices/system/cpu/online")) or usable
    return Processor(
        name=" ".join(known.get("model name", platform.machine()).split()),
        online=len(online),
        usable=usable or online,
        quota=cpu_quota(root),
        vectors=_vectors(flags),
        nodes=tuple(cpus for cpus in (cpu_list(read_text(node / "cpulist")) for node in nodes) if cpus),
        governor=read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        numactl=any((Path(folder) / "numactl").is_file() for folder in os.get_exec_path()),
    )


def _vectors(flags: set[str]) -> str:
    """As DeepSpeed chooses them (ops/op_builder/builder.py `simd_width`, 0.19.8)."""
    for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sve", "SVE"), ("asimd", "NEON")):
        if flag in flags:
            return name
    return ""


def read_host(root: Path, environment: Mapping[str, str], run: Runner = run_tool) -> Host:
    """The operating system's kind and limits, its network interfaces and the port on which ranks meet."""
    release = {name: value.strip('"') for name, value in read_pairs(root / "etc/os-release", "=").items()}
    port = rank_port(environment)
    return Host(
        system=release.get("PRETTY_NAME", platform.system()),
        kernel=read_text(root / "proc/sys/kernel/osrelease"),
        container=_container(root, environment),
        open_files=_limit(root, "Max open files"),
        processes=_limit(root, "Max processes"),
        rdma=_names(root / "sys/class/infiniband"),
        interfaces=_names(root / "sys/class/net"),
        own_name_resolves=_resolves(socket.gethostname(), run),
        port=port,
        port_in_use=_in_use(port),
    )


def rank_port(environment: Mapping[str, str]) -> int:
    """The port on which ranks meet: MASTER_PORT, or DeepSpeed's default (constants.py, 0.19.8)."""
    named = environment.get("MASTER_PORT", "")
    return int(named) if named.isdigit() and int(named) < 2**16 else 29500


def _container(root: Path, environment: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    inside = (root / "run/.containerenv").exists() or any(
        name in read_text(root / "proc/1/cgroup") for name in ("docker", "kubepods", "lxc", "containerd")
    )
    return "container" if inside else ""


def _resolves(name: str, run: Runner) -> bool | None:
    """Whether a name is found; None where nobody can be asked. (Python's own look-up may take minutes and has no
    limit.)"""
    code = run(["getent", "ahosts", name], "", 2.0).code
    return None if code is None else code == 0


def _in_use(port: int) -> bool | None:
    """Whether somebody listens on the port here; None where that cannot be told."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return True if error.errno == errno.EADDRINUSE else None
    return False


def cpu_list(text: str) -> frozenset[int]:
    """The numbers in `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError:
        return ()
