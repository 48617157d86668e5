"""This node's memory while a training runs: its processes, what is left, the swap, the OOM killer's counters, the
GPUs."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ....probes.this_machine import host_memory_bytes, limit_files, read_text, visible_handles


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look.

    host_bytes:  memory of the training's processes that cannot be dropped: anonymous and shared, without mapped files.
    free_bytes:  what a process here may still take: the machine's or the container's, whichever is less.
    swapped_out_bytes: written to swap since the machine began.
    gpus:        (used, total) of every visible GPU, all processes together.
    """

    host_bytes: int
    free_bytes: int
    swapped_out_bytes: int
    gpus: tuple[tuple[int, int], ...]


class Node:
    """Looks at the descendants of a process and at the node around them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.memory_bytes = host_memory_bytes()
        self._pynvml, self._handles = _gpu_handles()

    def look(self) -> Sample:
        return Sample(
            host_bytes=self._held(), free_bytes=self._free(), swapped_out_bytes=_swapped_out_bytes(), gpus=self._gpus()
        )

    def _held(self) -> int:
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._pid).children(recursive=True):
                total += _unmapped_bytes(process.pid)
        return total

    def _free(self) -> int:
        free = int(psutil.virtual_memory().available)
        for file in limit_files(Path("/"), "memory.stat", "memory/memory.stat"):
            limit = read_text(file.with_name("memory.max")) or read_text(file.with_name("memory.limit_in_bytes"))
            if limit.isdigit():
                counts = dict(line.split() for line in read_text(file).splitlines())
                held = int(counts.get("anon", counts.get("total_rss", 0))) + int(counts.get("shmem", 0))
                free = min(free, int(limit) - held)
        return free

    def _gpus(self) -> tuple[tuple[int, int], ...]:
        if self._pynvml is None:
            return ()
        try:
            infos = [self._pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        except self._pynvml.NVMLError:
            return ()
        return tuple((int(info.used), int(info.total)) for info in infos)


def oom_kills(root: Path = Path("/")) -> dict[str, int]:
    """How often the kernel has killed a process for want of memory, by the counter that says so: of this cgroup and
    those above it (cgroup v2 memory.events, v1 memory.oom_control), and of the machine (/proc/vmstat)."""
    files = [*limit_files(root, "memory.events", "memory/memory.oom_control"), root / "proc/vmstat"]
    found = {}
    for file in files:
        for line in read_text(file).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                found[str(file)] = int(value)
    return found


def _unmapped_bytes(pid: int) -> int:
    total = 0
    for line in read_text(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) * 1024
    return total


def _swapped_out_bytes() -> int:
    for line in read_text(Path("/proc/vmstat")).splitlines():
        name, _, pages = line.partition(" ")
        if name == "pswpout":
            return int(pages) * resource.getpagesize()
    return 0


def _gpu_handles() -> tuple[Any, list[Any]]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, visible_handles(pynvml)
    except Exception:  # no library, no driver, no permission: all mean that nobody can tell
        return None, []
