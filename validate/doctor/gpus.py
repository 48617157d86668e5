"""NVIDIA GPUs and their links, read through NVML (the library behind nvidia-smi) without a CUDA context.

Each NVML query may fail on its own: virtual GPUs, MIG, older drivers and missing permissions leave some values unknown.
Source: NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...estimators.phrase import gib
from ...probes.kernel_files import read_number, read_text
from .findings import Findings, note, ok, problem, warning

_Answer = TypeVar("_Answer")

NO_PYNVML = "pynvml is not installed"

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAY_OR_ACCELERATOR = ("0x03", "0x12")
"""PCI classes of graphics controllers and of processing accelerators."""

_P2P_WRITE = 1
"""NVML_P2P_CAPS_INDEX_WRITE. (pynvml's ..._READ is a tuple by a stray comma.)"""

_THROTTLE_REASONS = ((0x20, "heat"), (0x40, "heat"), (0x80, "power brake"), (0x08, "hardware"))
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that no user setting causes."""

_MAX_NVLINKS = 18

_IDLE_SHARE = 0.05
"""Share of a GPU's memory that the driver may keep: 0.5 to 1 GiB of 80."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A GPU's host link as negotiated now. The maximum generation is that of GPU and slot together, the maximum width
    that of the GPU. The generation falls while a GPU is idle."""

    generation: int
    width: int
    max_generation: int
    max_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One NVIDIA GPU; None stands for a value that NVML does not report."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int] | None = None
    """(8, 0) for sm_80."""
    processes: tuple[tuple[str, int], ...] = ()
    """(name, bytes) of the processes that compute on it."""
    mig: bool = False
    uncorrected_errors: int | None = None
    """Since the driver was loaded."""
    remapping_failed: bool = False
    temperature_c: int | None = None
    throttled_by: tuple[str, ...] = ()
    pcie: Pcie | None = None
    nvlinks: tuple[int, int] = (0, 0)
    """(active, inactive) links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """The NVIDIA driver and its GPUs."""

    driver: str = ""
    """Driver version, "" without one."""
    driver_cuda: str = ""
    """Newest CUDA version that the driver runs ("12.4"), "" without one."""
    error: str = ""
    """Why NVML does not answer, "" where it does."""
    on_the_bus: int = 0
    """Number of NVIDIA GPUs among the PCI devices."""
    module_loaded: bool = False
    """The kernel module of the driver is loaded."""
    device_files: bool = False
    """/dev/nvidiactl (or /dev/dxg under WSL) exists."""
    other_vendor: str = ""
    """"AMD" where only its accelerators are on the bus, else ""."""
    gpus: tuple[GpuState, ...] = ()
    peer_access: tuple[bool | None, ...] = ()
    """For each pair of GPUs: one may write into the memory of the other."""


def read_graphics(root: Path = Path("/"), nvml: Any = None) -> Graphics:
    """Query NVML, the PCI bus and the kernel. nvml: a module with the functions of pynvml, None for pynvml itself."""
    vendors = [vendor for device in sorted((root / "sys/bus/pci/devices").glob("*")) if (vendor := _vendor(device))]
    nvidia = vendors.count("NVIDIA")
    machine: dict[str, Any] = {
        "on_the_bus": nvidia,
        "module_loaded": (root / "proc/driver/nvidia/version").exists(),
        "device_files": (root / "dev/nvidiactl").exists() or (root / "dev/dxg").exists(),
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
        cuda = _query(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        peers = [
            _query(nvml, getattr(nvml, "nvmlDeviceGetP2PStatus", _missing), handles[first], handles[second], _P2P_WRITE)
            for second in range(len(handles))
            for first in range(second)
        ]
        return Graphics(
            driver=str(_query(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
            driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=tuple(_gpu(nvml, handle, index, root) for index, handle in enumerate(handles)),
            peer_access=tuple(None if status is None else status == 0 for status in peers),
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
    """The answer of NVML; None where the GPU, the driver or missing permissions prevent one."""
    try:
        return function(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _missing(*_: Any) -> None:
    """Replaces a function that an older pynvml lacks."""


def _gpu(nvml: Any, handle: Any, index: int, root: Path) -> GpuState:
    def ask(name: str, *arguments: Any) -> Any:
        return _query(nvml, getattr(nvml, name, _missing), handle, *arguments)

    memory = ask("nvmlDeviceGetMemoryInfo")
    mig = ask("nvmlDeviceGetMigMode")
    link = [
        ask(f"nvmlDeviceGet{what}")
        for what in ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth")
    ]
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons
    links = [ask("nvmlDeviceGetNvLinkState", number) for number in range(_MAX_NVLINKS)]
    rows = ask("nvmlDeviceGetRemappedRows")
    return GpuState(
        index=index,
        name=str(ask("nvmlDeviceGetName") or "GPU"),
        memory_bytes=int(memory.total) if memory else 0,
        free_bytes=int(memory.free) if memory else 0,
        capability=ask("nvmlDeviceGetCudaComputeCapability"),
        processes=_processes(ask, root),
        mig=bool(mig and mig[0]),
        uncorrected_errors=ask("nvmlDeviceGetTotalEccErrors", 1, 0),
        remapping_failed=bool(rows and rows[3]),
        temperature_c=ask("nvmlDeviceGetTemperature", 0),
        throttled_by=tuple(dict.fromkeys(name for bit, name in _THROTTLE_REASONS if reasons and reasons & bit)),
        pcie=None
        if None in link
        else Pcie(
            generation=link[0],
            width=link[1],
            max_generation=link[2],
            max_width=max(link[3], _card_width(ask("nvmlDeviceGetPciInfo"), root)),
        ),
        nvlinks=(links.count(1), links.count(0)),
    )


def _processes(ask: Callable[..., Any], root: Path) -> tuple[tuple[str, int], ...]:
    """(name, bytes) of the processes on a GPU, the largest first. In a container NVML reports process ids of the host,
    whose names cannot be looked up."""
    found = []
    for process in ask("nvmlDeviceGetComputeRunningProcesses") or ():
        name = read_text(root / f"proc/{process.pid}/comm") or f"process {process.pid}"
        found.append((name, int(process.usedGpuMemory or 0)))
    return tuple(sorted(found, key=lambda process: -process[1]))


def _card_width(pci: Any, root: Path) -> int:
    """Number of lanes of the card itself; NVML reports the maximum of card and slot. 0 where it is unknown (virtual
    machines show impossible widths)."""
    if pci is None:
        return 0
    bus = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    # NVML writes the PCI domain with eight digits, the kernel with four.
    device = re.sub(r"^0{4}(?=[0-9a-f]{4}:)", "", bus.lower())
    width = read_number(root / "sys/bus/pci/devices" / device / "max_link_width")
    return width if width in (1, 2, 4, 8, 12, 16, 32) else 0


def _named(gpus: Sequence[GpuState]) -> str:
    """`GPU 0`, `GPUs 0, 2 and 3`."""
    numbers = [str(gpu.index) for gpu in gpus]
    return f"GPU {numbers[0]}" if len(numbers) == 1 else f"GPUs {', '.join(numbers[:-1])} and {numbers[-1]}"


def gpus(graphics: Graphics) -> Findings:
    """All GPUs are of one model."""
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
    """No other process holds GPU memory."""
    used = [gpu for gpu in graphics.gpus if gpu.memory_bytes - gpu.free_bytes > _IDLE_SHARE * gpu.memory_bytes]
    for gpu in used:
        by = ", ".join(f"{name} ({gib(size)} GiB)" if size else name for name, size in gpu.processes[:3])
        yield warning(
            f"GPU {gpu.index}: {gib(gpu.memory_bytes - gpu.free_bytes)} of {gib(gpu.memory_bytes)} GiB in use by "
            f"{by or 'no visible process'}",
            "training has that much less memory and shares the GPU's time",
            "end the processes of earlier runs (nvidia-smi lists them), or exclude this GPU with CUDA_VISIBLE_DEVICES",
        )
    if graphics.gpus and not used:
        yield ok("free on all GPUs")


def mig(graphics: Graphics) -> Findings:
    """No GPU is split into MIG instances."""
    if split := [gpu for gpu in graphics.gpus if gpu.mig]:
        yield warning(
            f"{_named(split)}: split into MIG instances",
            "a process sees one instance, and NCCL cannot connect instances: multi-GPU training is impossible",
            "sudo nvidia-smi -mig 0, or train on one instance",
        )


def bf16(graphics: Graphics) -> Findings:
    """bf16 units exist from compute capability 8.0."""
    known = [gpu for gpu in graphics.gpus if gpu.capability is not None]
    if lacking := [gpu for gpu in known if gpu.capability and gpu.capability < (8, 0)]:
        yield note(
            f"{_named(lacking)}: no bf16 units, which exist from sm_80 on",
            "bf16 is emulated, several times slower than fp16",
            'use "fp16": {"enabled": true}',
        )
    elif known:
        yield ok("bf16 units exist")


def memory_errors(graphics: Graphics) -> Findings:
    """No uncorrected memory errors."""
    worn = [gpu for gpu in graphics.gpus if gpu.remapping_failed]
    failing = [gpu for gpu in graphics.gpus if gpu.uncorrected_errors and not gpu.remapping_failed]
    if worn:
        yield problem(
            f"{_named(worn)}: a defective memory row could not be remapped",
            "training stops with CUDA errors or computes wrong numbers",
            "replace the GPU",
        )
    if failing:
        yield warning(
            f"{_named(failing)}: {sum(gpu.uncorrected_errors or 0 for gpu in failing)} uncorrected memory errors since "
            "the driver was loaded",
            "each one ends the process that reads the memory",
            "sudo nvidia-smi --gpu-reset, or reboot; replace the GPU if errors recur",
        )
    if not worn and not failing and any(gpu.uncorrected_errors == 0 for gpu in graphics.gpus):
        yield ok("no uncorrected memory errors")


def throttling(graphics: Graphics) -> Findings:
    """No clock is lowered by heat or hardware right now."""
    if hot := [gpu for gpu in graphics.gpus if gpu.throttled_by]:
        reasons = sorted({reason for gpu in hot for reason in gpu.throttled_by})
        degrees = max((gpu.temperature_c or 0 for gpu in hot), default=0)
        yield warning(
            f"{_named(hot)}: clocks lowered by {', '.join(reasons)}{f' at {degrees} degrees' if degrees else ''}",
            "all ranks wait for the slowest GPU",
            "check the cooling and the power supply of the GPU",
        )
    elif graphics.gpus:
        yield ok("no clock is lowered by heat or hardware")


def pcie(graphics: Graphics) -> Findings:
    """Host links use all lanes. The generation is compared only while a GPU is busy: idle links slow down."""
    links = [(gpu, gpu.pcie) for gpu in graphics.gpus if gpu.pcie is not None]
    narrow = [(gpu, link) for gpu, link in links if link.width < link.max_width]
    slow = [(gpu, link) for gpu, link in links if gpu.processes and link.generation < link.max_generation]
    why = "offload, and communication between GPUs without NVLink, is slower by that factor"
    if narrow:
        yield warning(
            f"{_named([gpu for gpu, _ in narrow])}: PCIe x{narrow[0][1].width} of x{narrow[0][1].max_width}",
            why,
            "reseat the card, use a slot with all lanes, check the riser and the board's lane sharing",
        )
    if slow:
        yield warning(
            f"{_named([gpu for gpu, _ in slow])}: PCIe generation {slow[0][1].generation} of "
            f"{slow[0][1].max_generation} under load",
            why,
            "check the slot and the BIOS setting",
        )
    if links and not narrow and not slow:
        yield ok(f"x{links[0][1].width}, up to generation {links[0][1].max_generation}")


def nvlink(graphics: Graphics) -> Findings:
    """All NVLinks are active."""
    linked = [gpu for gpu in graphics.gpus if gpu.nvlinks[0]]
    bare = [gpu for gpu in graphics.gpus if not gpu.nvlinks[0]]
    partial = [gpu for gpu in linked if gpu.nvlinks[1]]
    if linked and bare:
        yield warning(
            f"{_named(bare)}: no NVLink, unlike the other GPUs",
            "the slowest link determines the speed of every collective",
            "train on the GPUs with NVLink: CUDA_VISIBLE_DEVICES",
        )
    elif partial:
        active, inactive = partial[0].nvlinks
        yield note(
            f"{_named(partial)}: {active} NVLinks active, {inactive} inactive",
            "some boards connect fewer links than the GPU has; otherwise collectives are slower",
            "nvidia-smi nvlink --status; on HGX and DGX: systemctl status nvidia-fabricmanager",
        )
    elif linked:
        yield ok(f"{linked[0].nvlinks[0]} links active on every GPU")


def peer_to_peer(graphics: Graphics) -> Findings:
    """GPUs access each other's memory; without it NCCL copies through host memory."""
    known = [access for access in graphics.peer_access if access is not None]
    barred = known.count(False)
    if barred and barred < len(known):
        yield warning(
            f"{barred} of {len(graphics.peer_access)} pairs of GPUs have no peer-to-peer access",
            "these pairs communicate through host memory, and the slowest pair determines every collective",
            "train on GPUs with peer-to-peer access: nvidia-smi topo -p2p w",
        )
    elif barred:
        yield note(
            "no GPU has peer-to-peer access",
            "NCCL copies through /dev/shm in host memory, as on GeForce cards and in most virtual machines; ZeRO-3 is "
            "affected most",
        )
    elif known:
        yield ok("peer-to-peer access between all GPUs")
