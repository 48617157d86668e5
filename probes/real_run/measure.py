"""Measurements of a rank: time on the device and in collectives, and the system's counters of memory and storage."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ..machine import query_nvml, read_pairs

_COLLECTIVES = """all_reduce reduce broadcast barrier all_gather all_gather_into_tensor all_gather_object reduce_scatter
    reduce_scatter_tensor all_to_all all_to_all_single scatter gather"""


class CollectiveTime:
    """Seconds for which collectives block the process, on a blocking backend (gloo). Nested calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def install(self, dist: Any) -> None:
        """Wrap the collectives and `Work.wait` of `torch.distributed`. To be called before DeepSpeed is imported."""
        for name in _COLLECTIVES.split():
            # DeepSpeed's comm/torch.py calls torch.distributed's functions by these names.
            setattr(dist, name, self._timed(getattr(dist, name)))
        work: Any = dist.Work
        work.wait = self._timed(work.wait)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            self._depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - started

        return timed


def memory_bytes(name: Literal["VmRSS", "VmHWM", "VmData"]) -> int:
    """Memory of this process from /proc/self/status: resident, peak since the start or `restart_peak`, and private
    writable memory as counted by RLIMIT_DATA."""
    return int(read_pairs(Path("/proc/self/status"))[name].split()[0]) * 1024


def restart_peak() -> None:
    """Reset the peak of resident memory (Linux: 5 to clear_refs). Without permission the peak stays."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def release_freed() -> None:
    """Return freed memory to the system (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def limit_memory(data_bytes: int) -> None:
    """Limit the private writable memory of this process (RLIMIT_DATA), except of compilers that it starts: they may
    need more memory than a rank may use."""
    extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    build, most = extensions._run_ninja_build, resource.getrlimit(resource.RLIMIT_DATA)[1]

    @functools.wraps(build)
    def build_without_limit(*args: Any, **named: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        try:
            return build(*args, **named)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, most))

    extensions._run_ninja_build = build_without_limit
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, most))


class GpuPeaks:
    """Peaks of torch's allocator on this process's GPU between `restart` and `read`. What the script itself reads and
    resets stays as without it."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._earlier: dict[str, Any] = {}
        """The statistics of the script since it last reset them, before the last `restart`."""
        self._before_reset = (0, 0)

    def restart(self) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        if self._torch is None:
            self._torch = torch
            self._install(torch.cuda.memory)
        self._keep(self._statistics(), self._earlier)
        self._before_reset = (0, 0)
        torch._C._cuda_resetPeakMemoryStats(torch.cuda.current_device())

    def read(self) -> tuple[int, int]:
        """(allocated, reserved) bytes; zeros before the first `restart` with a GPU."""
        if self._torch is None:
            return 0, 0
        now, before = self._statistics(), self._before_reset
        return (
            max(before[0], now["allocated_bytes"]["all"]["peak"]),
            max(before[1], now["reserved_bytes"]["all"]["peak"]),
        )

    def _statistics(self) -> Any:
        return self._torch._C._cuda_memoryStats(self._torch.cuda.current_device())

    def _install(self, memory: Any) -> None:
        statistics, reset = memory.memory_stats_as_nested_dict, memory.reset_peak_memory_stats

        @functools.wraps(statistics)
        def all_statistics(device: Any = None) -> Any:
            found = statistics(device)
            self._keep(self._earlier, found)
            return found

        @functools.wraps(reset)
        def reset_all(device: Any = None) -> None:
            self._before_reset = self.read()
            self._earlier.clear()
            reset(device)

        memory.memory_stats_as_nested_dict = all_statistics
        memory.reset_peak_memory_stats = self._torch.cuda.reset_peak_memory_stats = reset_all

    def _keep(self, source: dict[str, Any], target: dict[str, Any]) -> None:
        """Raise the peaks in `target` to those in `source`."""
        for name, value in source.items():
            if isinstance(value, dict):
                self._keep(value, target.setdefault(name, {}))
            elif name == "peak":
                target[name] = max(value, target.get(name, 0))


def storage_bytes() -> tuple[int, int]:
    """(bytes read, bytes written) by this process on block devices, without the page cache; zeros if unknown."""
    counts = read_pairs(Path("/proc/self/io"))
    return int(counts.get("read_bytes", 0)), int(counts.get("write_bytes", 0))


def folder_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) if folder else 0


def gpu_memory(index: int | None) -> dict[str, int | None]:
    """The fields of `RankReport` of a whole process on a GPU; None without a GPU."""
    import torch

    pinned = None if index is None else torch.cuda.host_memory_stats().get("allocated_bytes.peak")
    return {"device_bytes": None if index is None else device_bytes(index), "host_pinned_bytes": pinned}


def device_bytes(index: int) -> int | None:
    """GPU memory of this process according to the driver. If the driver cannot distinguish processes (containers), all
    memory in use on the GPU; None without a driver."""

    def query(nvml: Any) -> int:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)

    return query_nvml(query, None)
