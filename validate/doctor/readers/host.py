"""Memory, processor and limits of this host, from the files under /proc, /sys and /dev (or a copy of them)."""

from __future__ import annotations

import errno
import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..facts import Host, Memory, Processor
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
    """Host memory and what bounds it: RAM, swap, the cgroup's limit (v1 or v2), page locking, /dev/shm, huge pages."""
    kib = {name: int(value.split()[0]) * 1024 for name, value in _pairs(root / "proc/meminfo") if value.split()[:1]}
    huge_pages = kib.get("HugePages_Total", 0) // 1024  # a count, though it stands among sizes
    limit, used, killed = _memory_limit(root, kib["MemTotal"])
    try:
        shared: tuple[int | None, int | None] = space(root / "dev/shm")
    except OSError:
        shared = None, None
    return Memory(
        total_bytes=kib["MemTotal"],
        available_bytes=kib.get("MemAvailable", kib.get("MemFree", 0)),
        swap_bytes=kib.get("SwapTotal", 0),
        swap_used_bytes=kib.get("SwapTotal", 0) - kib.get("SwapFree", 0),
        limit_bytes=limit,
        limit_used_bytes=used,
        killed=killed,
        lockable_bytes=None if _may_lock_all(root) else _limit(root, "Max locked memory"),
        shared_bytes=shared[0],
        shared_free_bytes=shared[1],
        huge_bytes=huge_pages * kib.get("Hugepagesize", 0),
        overcommit=_number(root / "proc/sys/vm/overcommit_memory") or 0,
    )


def _memory_limit(root: Path, total: int) -> tuple[int | None, int | None, int]:
    """(tightest limit below the machine's RAM, what is used of it, processes killed), over this cgroup and those
    above."""
    limit = used = None
    killed = 0
    for folder in _cgroups(root, "memory"):
        found = _number(folder / "memory.max")
        if found is None:
            found = _number(folder / "memory.limit_in_bytes")
        if found is not None and found < min(total, limit or total):
            limit = found
            taken = _number(folder / "memory.current")
            if taken is None:
                taken = _number(folder / "memory.usage_in_bytes")
            kept = dict(_pairs(folder / "memory.stat", " "))
            droppable = int(kept.get("total_inactive_file", kept.get("inactive_file", "0")))
            used = None if taken is None else max(0, taken - droppable)
        for name in ("memory.events", "memory.oom_control"):
            killed = max(killed, int(dict(_pairs(folder / name, " ")).get("oom_kill", "0")))
    return limit, used, killed


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup for a controller and those above it, in version 2's tree and in version 1's."""
    base = root / "sys/fs/cgroup"
    for entry in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = entry.partition(":")
        names, _, own = rest.partition(":")
        if number == "0" and not names:
            top = base
        elif controller in names.split(","):
            top = base / controller
        else:
            continue
        folder = top / own.strip("/")
        yield from (place for place in (folder, *folder.parents) if place == top or top in place.parents)


def _may_lock_all(root: Path) -> bool:
    effective = dict(_pairs(root / "proc/self/status")).get("CapEff", "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)


def _limit(root: Path, name: str) -> int | None:
    """A soft limit of this process, None for none."""
    for line in _text(root / "proc/self/limits").splitlines():
        if line.startswith(name):
            value = line[len(name) :].split()[0]
            return int(value) if value.isdigit() else None
    return None


def read_processor(root: Path) -> Processor:
    """Cores that may be used, the instructions that DeepSpeed's CPU Adam is compiled for, and the NUMA nodes."""
    cpuinfo = _pairs(root / "proc/cpuinfo")
    known = dict(reversed(list(cpuinfo)))  # the first processor's lines
    flags = set(known.get("flags", known.get("Features", "")).split())
    usable = cpu_list(dict(_pairs(root / "proc/self/status")).get("Cpus_allowed_list", ""))
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    online = cpu_list(_text(root / "sys/devices/system/cpu/online")) or usable
    return Processor(
        name=" ".join(known.get("model name", platform.machine()).split()),
        online=len(online),
        usable=usable or online,
        quota=_quota(root),
        vectors=_vectors(flags),
        nodes=tuple(cpus for cpus in (cpu_list(_text(node / "cpulist")) for node in nodes) if cpus),
        governor=_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        numactl=any((Path(folder) / "numactl").is_file() for folder in os.get_exec_path()),
    )


def _vectors(flags: set[str]) -> str:
    """As DeepSpeed chooses them (ops/op_builder/builder.py `simd_width`, 0.19.8)."""
    for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sve", "SVE"), ("asimd", "NEON")):
        if flag in flags:
            return name
    return ""


def _quota(root: Path) -> float | None:
    quotas = []
    for folder in _cgroups(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        quota, period = quota or _text(folder / "cpu.cfs_quota_us"), period or _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def read_host(root: Path, environment: Mapping[str, str], run: Runner = run_tool) -> Host:
    """The operating system's kind and limits, its network interfaces and the port on which ranks meet."""
    release = {name: value.strip('"') for name, value in _pairs(root / "etc/os-release", "=")}
    port = rank_port(environment)
    return Host(
        system=release.get("PRETTY_NAME", platform.system()),
        kernel=_text(root / "proc/sys/kernel/osrelease"),
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
        name in _text(root / "proc/1/cgroup") for name in ("docker", "kubepods", "lxc", "containerd")
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


def _pairs(file: Path, separator: str = ":") -> Iterator[tuple[str, str]]:
    for line in _text(file).splitlines():
        name, found, value = line.partition(separator)
        if found:
            yield name.strip(), value.strip()


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdigit() else None


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError:
        return ()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
