"""NVIDIA GPUs, read through NVML (the library behind nvidia-smi) without a CUDA context.

Each NVML query may fail on its own: virtual GPUs, MIG, older drivers and missing permissions leave some values unknown.
Source: NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...estimators.phrase import gib, phrase
from ...probes.machine import read_text
from .findings import Findings, ok, warning

_Answer = TypeVar("_Answer")

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAY_OR_ACCELERATOR = ("0x03", "0x12")
"""PCI classes of graphics controllers and of processing accelerators."""

_IDLE_SHARE = 0.05
"""Share of a GPU's memory that the driver may keep: 0.5 to 1 GiB of 80."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One NVIDIA GPU. A field is None if NVML does not report its value."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    processes: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of the compute processes on the GPU, in descending order of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """The NVIDIA driver and its GPUs."""

    driver: str = ""
    """Driver version; "" if there is no driver."""
    driver_cuda: str = ""
    """Newest CUDA version that the driver supports ("12.4"); "" if there is no driver."""
    error: str = ""
    """Why NVML does not answer; "" if it does."""
    on_the_bus: int = 0
    """Number of NVIDIA GPUs among the PCI devices."""
    module_loaded: bool = False
    """Whether the driver's kernel module is loaded."""
    device_files: bool = False
    """Whether /dev/nvidiactl (or /dev/dxg under WSL) exists."""
    other_vendor: str = ""
    """"AMD" if the bus has only AMD's accelerators, else ""."""
    gpus: tuple[GpuState, ...] = ()


def read_graphics(root: Path = Path("/"), nvml: Any = None) -> Graphics:
    """Query NVML, the PCI bus and the kernel. nvml: a module with the functions of pynvml; None for pynvml itself."""
    vendors = [vendor for device in sorted((root / "sys/bus/pci/devices").glob("*")) if (vendor := _vendor(device))]
    nvidia = vendors.count("NVIDIA")
    machine: dict[str, Any] = {
        "on_the_bus": nvidia,
        "module_loaded": (root / "proc/driver/nvidia/version").exists(),
        "device_files": (root / "dev/nvidiactl").exists() or (root / "dev/dxg").exists(),
        "other_vendor": "AMD" if not nvidia and "AMD" in vendors else "",
    }
    nvml = nvml or import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Graphics(error=str(error), **machine)
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        cuda = _query(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        return Graphics(
            driver=str(_query(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
            driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=tuple(_gpu(nvml, handle, index, root) for index, handle in enumerate(handles)),
            **machine,
        )
    except nvml.NVMLError as error:
        return Graphics(error=str(error), **machine)
    finally:
        nvml.nvmlShutdown()


def _vendor(device: Path) -> str:
    if not read_text(device / "class").startswith(_DISPLAY_OR_ACCELERATOR):
        return ""
    return _VENDORS.get(read_text(device / "vendor"), "")


def _query(nvml: Any, function: Callable[..., _Answer], *arguments: Any) -> _Answer | None:
    """The result of an NVML query; None if the GPU, the driver or missing permissions prevent it."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, handle: Any, index: int, root: Path) -> GpuState:
    def ask(name: str) -> Any:
        return _query(nvml, getattr(nvml, name), handle)

    memory = ask("nvmlDeviceGetMemoryInfo")
    processes = []
    for process in ask("nvmlDeviceGetComputeRunningProcesses") or ():
        # In a container NVML reports process ids of the host, whose names cannot be looked up.
        process_name = read_text(root / f"proc/{process.pid}/comm") or f"process {process.pid}"
        processes.append((process_name, int(process.usedGpuMemory or 0)))
    return GpuState(
        index=index,
        name=str(ask("nvmlDeviceGetName") or "GPU"),
        memory_bytes=int(memory.total) if memory else 0,
        free_bytes=int(memory.free) if memory else 0,
        processes=tuple(sorted(processes, key=lambda process: -process[1])),
    )


def gpus(graphics: Graphics) -> Findings:
    """Check that all GPUs are of one model."""
    if not graphics.gpus:
        return
    models = [(gpu.name, gpu.memory_bytes) for gpu in graphics.gpus]
    listed = ", ".join(f"{models.count(model)} x {model[0]} ({gib(model[1])} GiB)" for model in sorted(set(models)))
    if len(set(models)) > 1:
        yield warning(
            listed,
            "every rank holds the same share of the model and waits for the slowest",
            "select GPUs of one model: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1",
        )
    else:
        yield ok(listed)


def gpu_memory(graphics: Graphics) -> Findings:
    """Check that no other process holds GPU memory."""
    used = [gpu for gpu in graphics.gpus if gpu.memory_bytes - gpu.free_bytes > _IDLE_SHARE * gpu.memory_bytes]
    for gpu in used:
        by = ", ".join(f"{name} ({gib(size)} GiB)" if size else name for name, size in gpu.processes[:3])
        yield warning(
            phrase(
                "GPU {index}: {used} of {memory} GiB in use by {processes}",
                index=gpu.index,
                used=gib(gpu.memory_bytes - gpu.free_bytes),
                memory=gib(gpu.memory_bytes),
                processes=by or phrase("no visible process"),
            ),
            "training has that much less memory and shares the GPU's time",
            "end the processes of earlier runs (nvidia-smi lists them), or exclude this GPU with CUDA_VISIBLE_DEVICES",
        )
    if graphics.gpus and not used:
        yield ok("free on all GPUs")
