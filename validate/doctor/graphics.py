"""The GPUs, by NVML (the library behind nvidia-smi). No CUDA context is made, so nothing of a GPU's memory is taken.

Every question to NVML is asked apart: virtual GPUs, MIG, older drivers and missing permissions each leave some
unanswered, and those are unknown and not errors. The functions are those of NVIDIA's NVML API reference
(docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...probes.kernel_files import read_number, read_text
from .facts import NO_PYNVML, GpuState, Graphics, Pair, Pcie
from .read_host import cpu_list

_Answer = TypeVar("_Answer")
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAY_OR_ACCELERATOR = ("0x03", "0x12")
"""PCI classes of graphics controllers and of processing accelerators."""

_P2P_WRITE = 1
"""NVML_P2P_CAPS_INDEX_WRITE. (pynvml's ..._READ is a tuple by a stray comma.)"""

_PATHS = {0: "board", 10: "switch", 20: "switches", 30: "host bridge", 40: "node", 50: "sockets"}
_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_SLOWED = ((0x04, "power"), (0x20, "heat"), (0x40, "heat"), (0x80, "power brake"), (0x08, "hardware"))
"""Bits of nvmlDeviceGetCurrentClocksEventReasons. Idleness and clocks that a user set are none of them."""

_MOST_NVLINKS = 18


def read_graphics(root: Path = Path("/"), nvml: Any = None) -> Graphics:
    """All that NVML, the PCI bus and the kernel tell; `nvml` is a module with pynvml's functions, or None for
    pynvml."""
    vendors = [vendor for device in sorted((root / "sys/bus/pci/devices").glob("*")) if (vendor := _vendor(device))]
    nvidia = vendors.count("NVIDIA")
    machine: dict[str, Any] = {
        "on_the_bus": nvidia,
        "module_loaded": (root / "proc/driver/nvidia/version").exists(),
        "device_files": (root / "dev/nvidiactl").exists()
        or (root / "dev/dxg").exists(),  # dxg: Windows' subsystem for Linux
        "other_vendor": "AMD" if not nvidia and "AMD" in vendors else "",
    }
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return Graphics(error=NO_PYNVML, **machine)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Graphics(error=str(error), **machine)
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        cuda = _asked(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        return Graphics(
            driver=str(_asked(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
            driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=tuple(_gpu(nvml, handle, index, root) for index, handle in enumerate(handles)),
            pairs=tuple(
                _pair(nvml, handles, first, second) for second in range(len(handles)) for first in range(second)
            ),
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


def _asked(nvml: Any, question: Callable[..., _Answer], *arguments: Any) -> _Answer | None:
    """NVML's answer; None where the GPU, the driver or the user's rights do not allow one."""
    try:
        return question(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _gpu(nvml: Any, handle: Any, index: int, root: Path) -> GpuState:
    def ask(name: str, *arguments: Any) -> Any:
        return _asked(nvml, getattr(nvml, name, _missing), handle, *arguments)

    memory = ask("nvmlDeviceGetMemoryInfo")
    mig = ask("nvmlDeviceGetMigMode")
    limit, default = ask("nvmlDeviceGetEnforcedPowerLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
    link = [
        ask(f"nvmlDeviceGet{what}")
        for what in ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth")
    ]
    slowed = ask("nvmlDeviceGetCurrentClocksEventReasons")
    slowed = ask("nvmlDeviceGetCurrentClocksThrottleReasons") if slowed is None else slowed
    states = [ask("nvmlDeviceGetNvLinkState", number) for number in range(_MOST_NVLINKS)]
    rows = ask("nvmlDeviceGetRemappedRows")
    device = _pci_device(ask("nvmlDeviceGetPciInfo"), root)
    numa_node = read_number(device / "numa_node")
    return GpuState(
        index=index,
        name=str(ask("nvmlDeviceGetName") or "GPU"),
        memory_bytes=int(memory.total) if memory else 0,
        free_bytes=int(memory.free) if memory else 0,
        capability=ask("nvmlDeviceGetCudaComputeCapability"),
        holders=_holders(ask, root),
        compute_mode=_COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode"), "default"),  # type: ignore[arg-type]
        mig=bool(mig and mig[0]),
        uncorrected_errors=ask("nvmlDeviceGetTotalEccErrors", 1, 0),  # since the driver was loaded
        remapping_failed=bool(rows and rows[3]),
        power_limit_w=limit / 1000 if limit else None,
        default_power_limit_w=default / 1000 if default else None,
        temperature_c=ask("nvmlDeviceGetTemperature", 0),
        slowed_by=tuple(dict.fromkeys(name for bit, name in _SLOWED if slowed and slowed & bit)),
        pcie=None
        if None in link
        else Pcie(
            generation=link[0], width=link[1], most_generation=link[2], most_width=max(link[3], _own_width(device))
        ),
        nvlinks=(states.count(1), states.count(0)),
        numa_node=-1 if numa_node is None else numa_node,
        near_cpus=cpu_list(read_text(device / "local_cpulist")),
    )


def _missing(*_: Any) -> None:
    """In place of a function that an older pynvml lacks."""


def _holders(ask: Callable[..., Any], root: Path) -> tuple[tuple[str, int], ...]:
    """(name, bytes) of the processes that compute on a GPU, the largest first. In a container NVML gives the numbers
    that the processes have outside, whose names cannot be looked up."""
    found = []
    for process in ask("nvmlDeviceGetComputeRunningProcesses") or ():
        name = read_text(root / f"proc/{process.pid}/comm") or f"process {process.pid}"
        found.append((name, int(process.usedGpuMemory or 0)))
    return tuple(sorted(found, key=lambda holder: -holder[1]))


def _pci_device(pci: Any, root: Path) -> Path:
    """The kernel's folder for a PCI device; one that does not exist where the device is not told."""
    devices = root / "sys/bus/pci/devices"
    if pci is None:
        return devices / "unknown"
    bus = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    # NVML writes the domain with eight digits, the kernel with four.
    return devices / re.sub(r"^0{4}(?=[0-9a-f]{4}:)", "", bus.lower())


def _own_width(device: Path) -> int:
    """Lanes that the card itself has; NVML tells what card and slot have together. Virtual machines show nonsense."""
    width = read_number(device / "max_link_width")
    return width if width in (1, 2, 4, 8, 12, 16, 32) else 0


def _pair(nvml: Any, handles: list[Any], first: int, second: int) -> Pair:
    status = _asked(
        nvml, getattr(nvml, "nvmlDeviceGetP2PStatus", _missing), handles[first], handles[second], _P2P_WRITE
    )
    path = _asked(nvml, getattr(nvml, "nvmlDeviceGetTopologyCommonAncestor", _missing), handles[first], handles[second])
    return Pair(
        first=first,
        second=second,
        direct=None if status is None else status == 0,
        path=_PATHS.get(path, "") if path is not None else "",
    )
