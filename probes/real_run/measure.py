"""Measurements of a rank: time on the device and in collectives, and the system's counters of memory and storage."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from ..machine import query_nvml, read_pairs

_COLLECTIVES = """all_reduce reduce broadcast barrier all_gather all_gather_into_tensor all_gather_object reduce_scatter
    reduce_scatter_tensor all_to_all all_to_all_single scatter gather"""


class Clock:
    """Marks moments on the device: the host's clock for the CPU, events in the stream for CUDA.

    Events do not make the host wait between the phases of a step, which would slow down launch-bound training.
    """

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()  # CPU operations are synchronous
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def seconds(self, earlier: Any, later: Any) -> float:
        """Seconds between two marks. To be called after `synchronize`."""
        return float(earlier.elapsed_time(later)) / 1000.0 if self._cuda else later - earlier


class CollectiveTime:
    """Seconds for which collectives block the process, on a blocking backend (gloo). Nested calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def install(self) -> None:
        """Wrap torch's collectives and `Work.wait`. To be called before DeepSpeed is imported."""
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
    """Reset the peak of resident memory (Linux: 5 to clear_refs), after returning freed memory to the system (glibc).
    Without permission the peak stays."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def storage_bytes() -> tuple[int, int]:
    """(bytes read, bytes written) by this process on block devices, without the page cache; zeros if unknown."""
    counts = read_pairs(Path("/proc/self/io"))
    return int(counts.get("read_bytes", 0)), int(counts.get("write_bytes", 0))


def folder_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) if folder else 0


def gpu_memory(index: int | None) -> dict[str, Any]:
    """The fields of `RankReport` from torch's allocators and the driver; None without a GPU."""
    if index is None:
        return dict.fromkeys(("allocated_bytes", "reserved_bytes", "device_bytes", "host_pinned_bytes"))
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_bytes": device_bytes(index),
        "host_pinned_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak"),
    }


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
