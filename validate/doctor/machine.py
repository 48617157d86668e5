"""The machine that the checks examine, with the two parts that several checks use: its GPUs and its packages.

GPUs are read through NVML (the library behind nvidia-smi) without a CUDA context. Each NVML query may fail on its own:
virtual GPUs, MIG, older drivers and missing permissions leave some values unknown. Source: NVIDIA's NVML API reference
(docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import platform
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, TypeVar

from ...probes.installed_packages import installed_version
from ...probes.machine import read_text
from .findings import Runner, run_program

_T = TypeVar("_T")

_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "ninja")
_ACCELERATORS = ("cuda", "cpu", "xpu", "npu", "mps", "hpu", "mlu", "sdaa", "supa", "klxpu")
"""DeepSpeed's accelerators if its list is not found: those of 0.19.8 (accelerator/real_accelerator.py)."""

_DISPLAY_OR_ACCELERATOR = ("0x03", "0x12")
"""PCI classes of graphics controllers and of processing accelerators."""
_NVIDIA = "0x10de"
_DRIVER_LIMIT_S = 2.0
"""Time limit of NVML's answer; a broken driver may never answer."""


def run_in_thread(function: Callable[[], _T]) -> Future[_T]:
    """Run a function in a daemon thread, which does not keep the program alive: a dead network drive or a hanging
    driver blocks a call, and such a call cannot be interrupted."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One NVIDIA GPU; a size is 0 if NVML does not report it."""

    name: str
    memory_bytes: int
    free_bytes: int
    processes: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of the compute processes on the GPU, in descending order of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """The NVIDIA driver and its GPUs; texts are "" if there is no driver."""

    driver: str = ""
    driver_cuda: str = ""
    """Newest CUDA version that the driver supports ("12.4")."""
    error: str = ""
    """Why NVML does not answer; "" if it does."""
    pci_gpus: int = 0
    """Number of NVIDIA GPUs among the PCI devices."""
    gpus: tuple[GpuState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSoftware:
    """Python packages, from their metadata; none is imported."""

    packages: Mapping[str, str]
    """Name -> version of the installed packages among `_PACKAGES`."""
    torch_cuda: str = ""
    """CUDA version of the torch build ("12.8"); "" for a build without CUDA. `torch_hip` is HIP's of a ROCm build
    ("6.2.41134-65d174c3e")."""
    torch_hip: str = ""
    accelerators: Sequence[str] = _ACCELERATORS
    """Names that DS_ACCELERATOR may have."""
    python: str = platform.python_version()

    @property
    def torch_build(self) -> str:
        """What torch is built for, as its folder of compiled ops names it: `rocm6241134-65d174c3e`, `cu128`, `cpu`."""
        kind, release = ("rocm", self.torch_hip) if self.torch_hip else ("cu", self.torch_cuda)
        return f"{kind}{release.replace('.', '')}" if release else "cpu"


@dataclass(frozen=True, kw_only=True)
class ExaminedMachine:
    """The machine, or a copy of its files below `root`."""

    root: Path = Path("/")
    environment: Mapping[str, str]
    nvme: str | None = None
    """Folder for swapping; None without offload to NVMe."""
    hosts: tuple[str, ...] = ()
    """The machines of the hostfile."""
    run: Runner = run_program
    nvml: Any = None
    """A module with the functions of pynvml; None for pynvml itself."""

    @cached_property
    def graphics_read(self) -> Future[Graphics]:
        return run_in_thread(lambda: _read_graphics(self.root, self.nvml))

    @cached_property
    def graphics(self) -> Graphics | None:
        """The GPUs; None if the driver does not answer in time."""
        with suppress(Exception):
            return self.graphics_read.result(_DRIVER_LIMIT_S)
        return None

    @property
    def gpu_count(self) -> int | None:
        return len(self.graphics.gpus) if self.graphics is not None else None

    @cached_property
    def software(self) -> InstalledSoftware:
        built = dict(
            re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)", _text_of("torch", "version.py"), re.MULTILINE)
        )
        accelerator = _text_of("deepspeed", "accelerator/real_accelerator.py")
        listed = re.search(r"^SUPPORTED_ACCELERATOR_LIST = \[(.+?)\]", accelerator, re.MULTILINE | re.DOTALL)
        names = re.findall(r"\w+", listed[1]) if listed else _ACCELERATORS
        return InstalledSoftware(
            packages={name: found for name in _PACKAGES if (found := installed_version(name))},
            torch_cuda=built.get("cuda", ""),
            torch_hip=built.get("hip", ""),
            accelerators=names,
        )


def _text_of(package: str, file: str) -> str:
    """A file of an installed package, which is not imported; "" if it is not found."""
    with suppress(PackageNotFoundError, OSError):
        return Path(str(distribution(package).locate_file(f"{package}/{file}"))).read_text(encoding="utf-8")
    return ""


def _read_graphics(root: Path, nvml: Any) -> Graphics:
    """Query NVML and the PCI bus."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    cards = [each for each in devices if read_text(each / "class").startswith(_DISPLAY_OR_ACCELERATOR)]
    pci_gpus = sum(read_text(each / "vendor") == _NVIDIA for each in cards)
    nvml = nvml or import_module("pynvml")

    def query(name: str, *arguments: Any) -> Any:
        """The result of an NVML query; None if the GPU, the driver or missing permissions prevent it."""
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError:
            return None

    def gpu(handle: Any) -> GpuState:
        memory, processes = query("nvmlDeviceGetMemoryInfo", handle), []
        for process in query("nvmlDeviceGetComputeRunningProcesses", handle) or ():
            # In a container NVML reports process ids of the host, whose names cannot be looked up.
            name = read_text(root / f"proc/{process.pid}/comm") or f"process {process.pid}"
            processes.append((name, int(process.usedGpuMemory or 0)))
        return GpuState(
            name=str(query("nvmlDeviceGetName", handle) or "GPU"),
            memory_bytes=int(memory.total) if memory else 0,
            free_bytes=int(memory.free) if memory else 0,
            processes=tuple(sorted(processes, key=lambda process: -process[1])),
        )

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Graphics(error=str(error), pci_gpus=pci_gpus)
    try:
        cuda = query("nvmlSystemGetCudaDriverVersion")
        return Graphics(
            driver=str(query("nvmlSystemGetDriverVersion") or ""),
            driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            pci_gpus=pci_gpus,
            gpus=tuple(gpu(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())),
        )
    except nvml.NVMLError as error:
        return Graphics(error=str(error), pci_gpus=pci_gpus)
    finally:
        nvml.nvmlShutdown()
