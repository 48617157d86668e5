"""The kind of the error that ended a rank: memory, disk, communication, or another one."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, Literal

ErrorKind = Literal["gpu_out_of_memory", "host_out_of_memory", "communication_timeout", "disk_full", "crash"]

_PATTERNS: tuple[tuple[ErrorKind, str], ...] = (
    ("gpu_out_of_memory", r"(CUDA|HIP|XPU) (error: )?out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"),
    # torch.save's archive gives no reason for a failed write.
    (
        "disk_full",
        r"No space left on device|Disk quota exceeded|File too large|PytorchStreamWriter failed|"
        r"unexpected pos \d+ vs|basic_ios::clear: iostream error",
    ),
    (
        "host_out_of_memory",
        r"can't allocate memory|[Cc]annot allocate memory|MemoryError|std::bad_alloc|"
        r"unable to (mmap|allocate shared memory)|CUDA error: (host )?memory allocation",
    ),
    (
        "communication_timeout",
        r"Watchdog caught collective operation timeout|[Tt]imed out (waiting|after)|"
        r"wait timeout|collective operation timeout|Socket Timeout|TIMEOUT",
    ),
)
"""Error messages of torch, NCCL, gloo, the C library and Linux. The first pattern that matches gives the kind."""

_KINDS_BY_ERRNO: dict[int | None, ErrorKind] = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.ENOMEM: "host_out_of_memory",
}


def kind_of_error(error: Mapping[str, Any]) -> ErrorKind:
    """The kind of an error in the event log. CUDA and Python have classes for exhausted memory; torch's CPU allocator
    raises a RuntimeError."""
    if is_compilers(error):
        return "crash"
    by_type: ErrorKind | None = "host_out_of_memory" if error["type"] == "MemoryError" else None
    text = f"{error['type']}: {error['message']}{error['details']}"
    return _KINDS_BY_ERRNO.get(error.get("errno")) or by_type or kind_by_text(text) or "crash"


def is_compilers(error: Mapping[str, Any]) -> bool:
    """Whether the build of an extension failed. Includes a compiler that a memory limit ended (torch 2.13
    `utils/cpp_extension.py`): all plans compile the same."""
    return "Error building extension" in error["message"]


def kind_by_text(text: str) -> ErrorKind | None:
    """The kind of the first pattern that an error message or the end of a log has; None for none."""
    return next((kind for kind, pattern in _PATTERNS if re.search(pattern, text)), None)
