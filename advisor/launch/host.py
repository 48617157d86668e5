"""This node's memory while a training runs: processes, free memory, swap, the OOM killer's counters, GPUs."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ...probes.kernel_files import memory_groups, read_pairs
from ...probes.machine import host_memory_bytes, visible_handles
from ...probes.real_run.watch import COMPILERS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The node's memory at one moment."""

    host_bytes: int
    """Anonymous and shared memory of the training's processes, without mapped files, which can be dropped. Compilers of
    extensions, which take gigabytes once, are left out."""
    free_bytes: int
    """Free memory of the machine or of the container, whichever is less."""
    swapped_out_bytes: int
    """Written to swap since the machine booted."""
    gpus: tuple[tuple[int, int], ...]
    """(used, total) of every visible GPU, all processes together."""


class HostWatcher:
    """Samples the memory of the descendants of a process and of the node around them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.memory_bytes = host_memory_bytes()
        self._pynvml, self._handles = _gpu_handles()

    def sample(self) -> MemorySample:
        return MemorySample(
            host_bytes=self._held_bytes(),
            free_bytes=_free_bytes(),
            swapped_out_bytes=(_vmstat("pswpout") or 0) * resource.getpagesize(),
            gpus=self._gpus(),
        )

    def _held_bytes(self) -> int:
        held = 0
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._pid).children(recursive=True):
                status = read_pairs(Path(f"/proc/{process.pid}/status"))
                if status.get("Name", "").strip() in COMPILERS:
                    continue
                held += sum(1024 * int(status.get(name, "0").split()[0]) for name in ("RssAnon", "RssShmem"))
        return held

    def _gpus(self) -> tuple[tuple[int, int], ...]:
        if self._pynvml is None:
            return ()
        try:
            infos = [self._pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        except self._pynvml.NVMLError:
            return ()
        return tuple((int(info.used), int(info.total)) for info in infos)


def oom_kills(root: Path = Path("/")) -> dict[str, int]:
    """Processes killed by the kernel because memory ran out, by the counter's file: of this cgroup and those above it
    (cgroup v2 memory.events, v1 memory.oom_control), and of the machine (/proc/vmstat)."""
    counts = {str(group.events_file): group.killed for group in memory_groups(root)}
    counts[str(root / "proc/vmstat")] = _vmstat("oom_kill", root)
    return {name: count for name, count in counts.items() if count is not None}


def _free_bytes() -> int:
    free = int(psutil.virtual_memory().available)
    for group in memory_groups():
        limit_bytes, counts = group.limit_bytes, group.counters()
        if limit_bytes is not None:
            free = min(free, limit_bytes - counts.get("anon", counts.get("total_rss", 0)) - counts.get("shmem", 0))
    return free


def _vmstat(name: str, root: Path = Path("/")) -> int | None:
    count = read_pairs(root / "proc/vmstat", " ").get(name, "")
    return int(count) if count.isdecimal() else None


def _gpu_handles() -> tuple[Any, list[Any]]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, visible_handles(pynvml)
    except Exception:  # no library, driver or permission: the GPUs' memory is unknown
        return None, []
