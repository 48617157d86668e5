"""This machine: the driver's GPUs, and memory and cores within the limits of its control groups.

A group's limit also applies to the groups below it, so all groups from this process's own to the root count. Both
versions of the interface are read (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from ..estimators.errors import ClusterError, NoGpuError
from ..estimators.gpu_catalogue import UNMEASURED_MEMORY_SHARE, find_gpu, gpu_of_memory
from ..estimators.hardware import Gpu


def read_text(file: Path) -> str:
    """The stripped text of a file; "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_number(*files: Path) -> int | None:
    """The integer in the first of these files that contains one."""
    return next((int(text) for text in map(read_text, files) if text.isdecimal()), None)


def read_pairs(file: Path, separator: str = ":") -> dict[str, str]:
    """The `name: value` lines of a file; the first line of each name counts."""
    pairs: dict[str, str] = {}
    for line in read_text(file).splitlines():
        name, found, value = line.partition(separator)
        if found:
            pairs.setdefault(name.strip(), value.strip())
    return pairs


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The memory controller of one control group; each property reads its file."""

    folder: Path

    @property
    def limit_bytes(self) -> int | None:
        """The limit; None without one. Version 1 writes "no limit" as a huge number."""
        return read_number(self.folder / "memory.max", self.folder / "memory.limit_in_bytes")

    @property
    def used_bytes(self) -> int | None:
        """Memory of the group's processes, including the page cache."""
        return read_number(self.folder / "memory.current", self.folder / "memory.usage_in_bytes")

    @property
    def events_file(self) -> Path:
        """The file with the number of processes that the kernel killed for lack of memory."""
        file = self.folder / "memory.events"
        return file if file.exists() else self.folder / "memory.oom_control"

    @property
    def killed(self) -> int | None:
        count = read_pairs(self.events_file, " ").get("oom_kill", "")
        return int(count) if count.isdecimal() else None

    def counters(self) -> dict[str, int]:
        """Bytes by kind of memory (memory.stat)."""
        pairs = read_pairs(self.folder / "memory.stat", " ")
        return {name: int(value) for name, value in pairs.items() if value.isdecimal()}


def memory_groups(root: Path = Path("/")) -> list[MemoryGroup]:
    """The control groups whose memory limits apply to this process, starting with its own."""
    return [MemoryGroup(folder) for folder in _groups(root, "memory")]


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processor seconds per second that this process's control groups allow; None without a limit."""
    quotas = []
    for folder in _groups(root, "cpu"):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        quota = quota or read_text(folder / "cpu.cfs_quota_us")
        period = period or read_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's groups in the tree of version 2 and in the controller's tree of version 1.

    The roots of both are included: inside a container they are the container's group, regardless of the
    path in /proc/self/cgroup.
    """
    trees = {"": root / "sys/fs/cgroup", controller: root / "sys/fs/cgroup" / controller}
    folders = []
    for entry in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = entry.partition(":")
        controllers, _, own = rest.partition(":")
        tree = trees.get(controller if controller in controllers.split(",") else controllers)
        if tree is not None:
            folder = tree / own.strip("/")
            folders += [place for place in (folder, *folder.parents) if place.is_relative_to(tree)]
    return list(dict.fromkeys([*folders, *trees.values()]))


_T = TypeVar("_T")

_CPUINFO = Path("/proc/cpuinfo")
_GIB = 2**30

_SAME_CARD = 0.1
"""Maximum relative difference in memory to the card of the same name in the data file (modified cards have twice the
memory)."""

_OTHER_FIX = "describe the machine instead, such as --gpus 2x24GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The resources of a process on this machine, within the container's limits."""

    gpus: tuple[str, ...]
    """Names of the GPUs that CUDA sees, in its order."""
    gpu_memory_bytes: tuple[int, ...]
    driver: str
    """Version of the NVIDIA driver; "" without one; not part of `key`."""
    cpu: str
    """The processor's model."""
    cpu_cores: int
    ram_bytes: int

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits, equal for machines of the same kind. Updates of the driver or kernel, which change
        the RAM by some MiB, do not change it."""
        gpu_gib = [round(size / _GIB) for size in self.gpu_memory_bytes]
        identity = [self.gpus, gpu_gib, self.cpu, self.cpu_cores, round(self.ram_bytes / _GIB)]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]


def this_machine() -> Machine:
    try:
        gpus = visible_gpus()
    except ClusterError:
        gpus = []
    return Machine(
        gpus=tuple(gpu.name for gpu in gpus),
        gpu_memory_bytes=tuple(gpu.memory_bytes for gpu in gpus),
        driver=query_nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()), "") if gpus else "",
        cpu=cpu_model(),
        cpu_cores=cpu_cores(),
        ram_bytes=host_memory_bytes(),
    )


def cpu_model() -> str:
    """The processor's name (`AMD EPYC 7742 64-Core Processor`), or its architecture if Linux gives no name (ARM)."""
    return " ".join(read_pairs(_CPUINFO).get("model name", "").split()) or platform.machine()


def cpu_has_fp16() -> bool:
    """Whether the CPU may support products in fp16, from its flags (x86, ARM)."""
    pairs = read_pairs(_CPUINFO)
    flags = (pairs.get("flags") or pairs.get("Features") or "").split()
    return not {"avx512_fp16", "amx_fp16", "avx_ne_convert", "fphp"}.isdisjoint(flags)


def query_nvml(query: Callable[[Any], _T], otherwise: _T) -> _T:
    """The result of an NVML query; `otherwise` without a driver or a result."""
    import pynvml

    try:
        return _query(query)
    except pynvml.NVMLError:
        return otherwise


def _query(query: Callable[[Any], _T]) -> _T:
    import pynvml

    pynvml.nvmlInit()
    try:
        return query(pynvml)
    finally:
        pynvml.nvmlShutdown()


def visible_gpus() -> list[Gpu]:
    """The GPUs of the driver (NVML) within CUDA_VISIBLE_DEVICES, with their actual memory.

    Raises NoGpuError without a driver or a GPU, and ClusterError if CUDA_VISIBLE_DEVICES names an absent one.
    """
    import pynvml

    try:
        gpus = _query(lambda nvml: [_gpu(nvml, handle) for handle in visible_handles(nvml)])
    except pynvml.NVMLError as error:
        raise NoGpuError(
            f"no NVIDIA driver answers on this machine ({error})",
            why="without --gpus, the driver's list of GPUs is used",
            fix=_OTHER_FIX,
        ) from None
    if not gpus:
        raise NoGpuError(
            "no GPU is visible",
            why="--gpus auto takes the GPUs that CUDA uses",
            fix=f"check CUDA_VISIBLE_DEVICES, or {_OTHER_FIX}",
        )
    return gpus


def check_gpus(count: int) -> None:
    """Raises ClusterError if this machine has fewer GPUs than `count`. Torch is queried if NVML finds none: ROCm has
    GPUs without NVML."""
    found = query_nvml(lambda nvml: len(visible_handles(nvml)), 0)
    if not found:
        import torch

        found = torch.cuda.device_count()
    if found >= count:
        return
    raise ClusterError(
        f"this machine has only {found} of these GPUs" if found else "this machine has no GPU",
        why=f"{count} are needed, one for each rank" if found else "every rank needs one",
        fix="pass --device cpu, or use ds-advise dry-run, which simulates GPUs",
    )


def visible_handles(pynvml: Any) -> list[Any]:
    """NVML's handles of the GPUs that CUDA uses, in its order. To be called between nvmlInit and nvmlShutdown. Raises
    NVMLError."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    devices = [part.strip() for part in chosen.split(",") if part.strip()]
    return [
        pynvml.nvmlDeviceGetHandleByIndex(int(device)) if device.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(device)
        for device in takewhile(lambda device: device != "-1", devices)  # CUDA ignores all after the first absent one
    ]


def _gpu(pynvml: Any, handle: Any) -> Gpu:
    name = pynvml.nvmlDeviceGetName(handle)
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    usable = int(total * UNMEASURED_MEMORY_SHARE)
    known = None
    for spec in (f"{name} {round(total / 2**30)}GB", name):  # a card may be sold with several sizes of memory
        with suppress(ClusterError):
            known = known or find_gpu(spec)
    if known is None:
        return replace(gpu_of_memory(total / 2**30), name=name, memory_bytes=usable, same_size=0)
    if abs(total - known.memory_bytes) > _SAME_CARD * known.memory_bytes:
        return replace(known, memory_bytes=usable, nominal_gb=round(total / 2**30))
    return known


def gpu_links() -> str:
    """The links of the visible GPUs as `--link` takes them: PCIe as far as GPU and system support it, and NVLink if
    every GPU has an active link. "" where the driver does not tell, as in some virtual machines."""

    def links(nvml: Any) -> str:
        handles = visible_handles(nvml)
        generation = min(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) for handle in handles)
        lanes = min(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle) for handle in handles)
        if not 3 <= generation <= 6 or lanes not in (4, 8, 16):
            return ""
        bridged = all(_has_nvlink(nvml, handle) for handle in handles)
        return f"pcie{generation}x{lanes}{',nvlink' if bridged else ''}"

    return query_nvml(links, "")


def _has_nvlink(pynvml: Any, handle: Any) -> bool:
    with suppress(pynvml.NVMLError):
        return any(pynvml.nvmlDeviceGetNvLinkState(handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS))
    return False


def host_memory_bytes(root: Path = Path("/")) -> int:
    """RAM for a process here: the lesser of the machine's and the container's limit (cgroup v2 or v1).

    A job beyond the container's limit is killed without a message, however much RAM the machine has.
    """
    import psutil

    limits = (group.limit_bytes for group in memory_groups(root))
    return min([int(psutil.virtual_memory().total), *filter(None, limits)])


def cpu_cores(root: Path = Path("/")) -> int:
    """Cores for a process here: the lesser of its affinity and the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return cores if quota is None else min(cores, max(1, int(quota)))


def busy() -> str:
    """Why a measurement shows less than the machine can do, as a sentence: more processes have run in the last minute
    than there are cores; "" if there is no such reason."""
    cores, load = cpu_cores(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores:
        return ""
    return f"Other processes use this machine (load {load:.1f} on {cores} cores): an idle one is faster."


def chosen_threads() -> int | None:
    """Threads per rank from OMP_NUM_THREADS; None if it is not set."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) else None


ON_CPU: Mapping[str, str] = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
"""Environment variables of a training on the CPU, which must not use a GPU."""


def rank_threads(ranks: int) -> int:
    """Threads per rank: OMP_NUM_THREADS, or an equal part of the cores.

    By default every process takes all cores. The threads of an operation, which wait for each other at its end, then
    also wait for a core: the operation is several times slower, and its time is not reproducible.
    """
    return chosen_threads() or cores_per_rank(ranks)


def most_cpu_ranks() -> int:
    """Most ranks on the CPU whose speeds are measured: one per core, and the two that a collective needs."""
    return max(2, cpu_cores())


def cores_per_rank(ranks: int) -> int:
    return max(1, cpu_cores() // ranks)


def can_bind_cores(ranks: int) -> bool:
    """Whether the deepspeed launcher's `--bind_cores_to_rank` works here: it needs numactl and all cores, because it
    assigns the machine's cores in order (deepspeed 0.19.8 utils/numa.py)."""
    import psutil

    physical = psutil.cpu_count(logical=False) or 0
    whole = hasattr(os, "sched_getaffinity") and cpu_cores() == (psutil.cpu_count() or 0)
    return physical >= ranks and whole and "KMP_AFFINITY" not in os.environ and shutil.which("numactl") is not None


def mount_point(path: str | Path) -> str:
    """The mount point of a path's file system."""
    folder = Path(path).expanduser().resolve()
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return str(folder)


def search_path(python: Path | None = None) -> str:
    """$PATH with the folder of an interpreter first, by default of this one, as in its activated virtual environment.

    `.venv/bin/ds-advise` may be called by its path. Its processes would then compile DeepSpeed's extensions with the
    system's ninja, or without one. Two versions of ninja reject each other's logs, so they and a training in the
    activated environment would alternately recompile everything.
    """
    return os.pathsep.join(filter(None, (str((python or Path(sys.executable)).parent), os.environ.get("PATH"))))
