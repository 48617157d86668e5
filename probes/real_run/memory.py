"""What this process holds, read from the system: resident memory, the driver's view of the GPU, files on NVMe."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Resident memory now."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The highest resident memory since the start, or since `restart_peak`."""
    return _status("VmHWM")


def restart_peak() -> None:
    """Let the peak begin anew (Linux: 5 to clear_refs), without what was freed and the C library keeps (glibc); where
    that is not allowed it stays what it was."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def data_bytes() -> int:
    """Private writable memory as RLIMIT_DATA counts it."""
    return _status("VmData")


def _status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {name}")


def storage_bytes() -> tuple[int, int]:
    """(read, written) by this process from and to block devices so far, pages of the cache not counted; zeros where the
    system does not say."""
    with contextlib.suppress(OSError):
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counts["read_bytes"]), int(counts["write_bytes"])
    return 0, 0


def folder_bytes(folder: str) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) if folder else 0


def device_bytes(index: int) -> int | None:
    """What the driver says this process holds on a GPU; where it cannot tell processes apart (containers), all that is
    used on the GPU; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no permission: all mean that nobody can tell
        return None
    try:
        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
