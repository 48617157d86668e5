"""Memory of a running training on this node, and whether it compiles, by the processes that a command has started."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ..machine import query_nvml, read_pairs, visible_handles

_COMPILERS = frozenset(
    ("ninja", "c++", "g++", "clang++", "cc1plus", "as", "ld", "nvcc", "cudafe++", "cicc", "ptxas", "hipcc")
)
"""Names of processes that build DeepSpeed's extensions at their first use."""

_EVERY_S = 1.0
"""Least interval between two samples."""

_SHARE = 0.002
"""Largest share of a core for the samples, and for the search for processes: a busy machine has thousands, and the next
search waits longer."""


_RESIDENT, _OWN = ("RssAnon", "RssShmem"), ("Private_Dirty",)
"""Lines of `/proc/PID/status` of a process, and of `smaps_rollup` of a fork: pages that only it has."""


class Extension(NamedTuple):
    """An extension of DeepSpeed that is being compiled."""

    folder: Path
    is_rebuilt: bool
    """Whether the folder had its library: the command of its build has changed, which has the paths of the Python
    environment, or its sources."""
    last_s: float | None = None
    """How long its last whole build took; None if it is not known."""


class MemorySampler:
    """The memory of the descendants of process `pid`, and of the GPUs with `gpus`. Bytes are those of the last sample,
    peaks those of all."""

    def __init__(self, pid: int, *, gpus: bool) -> None:
        self._pid, self._gpus = pid, gpus
        self._processes = list[int]()
        self._forks = dict[int, int]()
        """Processes that were forked, such as the workers of a data loader, with the memory that is theirs alone."""
        self._search_at = self._sample_at = self._forks_at = -math.inf
        self.host_bytes = 0
        """Anonymous and shared memory of the training's processes. The pages that a fork shares with its parent count
        once. Mapped files are excluded, because the kernel can drop them; compilers of extensions too, because they
        take gigabytes only once."""
        self.host_peak_bytes = 0
        self.device_bytes: int | None = None
        """Memory of all processes on the fullest visible GPU; None without a GPU."""
        self.device_peak_bytes: int | None = None
        self.compiles = False
        self.extension: Extension | None = None
        """What is being compiled; None if it is not known."""
        self._built = dict[Path, Extension]()
        """Every extension as it was when its build was first seen: at its end the linker removes the old library."""

    def sample(self) -> bool:
        """Take a sample, unless the last one was taken too recently. Returns whether it was taken."""
        if time.monotonic() < self._sample_at:
            return False
        if time.monotonic() >= self._search_at:
            began_s = time.thread_time()
            with contextlib.suppress(psutil.Error):
                self._processes = [each.pid for each in psutil.Process(self._pid).children(recursive=True)]
            self._forks = {each: self._forks.get(each, 0) for each in self._processes if _is_fork(each)}
            self._search_at = _next_at(began_s)
        if self._forks and time.monotonic() >= self._forks_at:  # the kernel walks all pages of a process
            began_s = time.thread_time()
            self._forks = {each: _bytes(read_pairs(Path(f"/proc/{each}/smaps_rollup")), _OWN) for each in self._forks}
            self._forks_at = _next_at(began_s)
        began_s = time.thread_time()
        self._read()
        if self._gpus and (device_bytes := query_nvml(_most_used, None)) is not None:
            self.device_bytes = device_bytes
            self.device_peak_bytes = max(self.device_peak_bytes or 0, device_bytes)
        self._sample_at = _next_at(began_s)
        return True

    def _read(self) -> None:
        host_bytes, self.compiles, self.extension = 0, False, None
        for process in self._processes:
            status = read_pairs(Path(f"/proc/{process}/status"))
            if status.get("Name", "").strip() in _COMPILERS:
                self.compiles = True
                self.extension = self.extension or self._extension(process)
            elif process in self._forks:
                host_bytes += self._forks[process]
            else:
                host_bytes += _bytes(status, _RESIDENT)
        self.host_bytes = host_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, host_bytes)

    def _extension(self, pid: int) -> Extension | None:
        folder = _build_folder(pid)
        if folder is None:
            return None
        if folder not in self._built:
            library = f"{folder.name}.so"
            self._built[folder] = Extension(folder, (folder / library).exists(), _last_build_s(folder, library))
        return self._built[folder]


def _is_fork(pid: int) -> bool:
    """Whether a process runs what its parent does: `exec` replaces the command line."""
    status, commands = read_pairs(Path(f"/proc/{pid}/status")), list[bytes]()
    for each in (str(pid), status.get("PPid", "")):
        with contextlib.suppress(OSError):
            commands.append(Path(f"/proc/{each}/cmdline").read_bytes())
    return len(commands) == 2 and commands[0] == commands[1]


def _bytes(lines: Mapping[str, str], names: Sequence[str]) -> int:
    return sum(1024 * int(lines.get(name, "0").split()[0]) for name in names)


def _next_at(began_s: float) -> float:
    """When what began at this CPU time of the thread may be done again."""
    return time.monotonic() + max(_EVERY_S, (time.thread_time() - began_s) / _SHARE)


def _build_folder(pid: int) -> Path | None:
    """The folder of the extension that a compiler builds: torch starts ninja in the folder of its name (torch 2.13
    utils/cpp_extension.py `_run_ninja_build`)."""
    with contextlib.suppress(OSError):
        folder = Path(f"/proc/{pid}/cwd").readlink()
        return folder if (folder / "build.ninja").exists() else None
    return None


def _last_build_s(folder: Path, library: str) -> float | None:
    """The seconds of the last whole build: when its library was done, by ninja's log, which has milliseconds since the
    begin of each build."""
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split("\t") for line in (folder / ".ninja_log").read_text(encoding="utf-8").splitlines())
        ends = [int(parts[1]) for parts in lines if len(parts) > 3 and parts[3] == library]
        return ends[-1] / 1000 if ends else None
    return None


def _most_used(nvml: Any) -> int | None:
    infos = map(nvml.nvmlDeviceGetMemoryInfo, visible_handles(nvml))
    return max((int(info.used) for info in infos), default=None)
