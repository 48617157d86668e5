"""What this machine has: its GPUs by the driver, its memory and cores by the container's limits first."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..estimators.errors import ClusterError
from ..estimators.hardware.cluster import Gpu
from ..estimators.hardware.gpus import UNMEASURED_MEMORY_SHARE, find_gpu, gpu_of_memory
from .cgroup import cpu_quota, memory_groups

_SAME_CARD = 0.1
"""Relative difference in memory up to which the data file's row of that name is this card (modified: twice)."""

_ELSEWHERE = "describe the machine instead, such as --gpus 2x24GB"


def visible_gpus() -> list[Gpu]:
    """The GPUs that the driver (NVML) shows and CUDA_VISIBLE_DEVICES leaves, with the memory that they have here.

    Raises ClusterError without a driver, without a GPU, or when CUDA_VISIBLE_DEVICES names one that is not there.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ClusterError(
            f"the GPUs of this machine cannot be listed: {error}",
            why="--gpus auto asks the NVIDIA driver",
            fix=_ELSEWHERE,
        ) from None
    try:
        gpus = [_gpu(pynvml, handle) for handle in visible_handles(pynvml)]
    except pynvml.NVMLError as error:
        raise ClusterError(
            f"the driver does not describe the GPUs: {error}",
            why="--gpus auto reads their names and memory from it",
            fix=_ELSEWHERE,
        ) from None
    finally:
        pynvml.nvmlShutdown()
    if not gpus:
        raise ClusterError(
            "no GPU is visible",
            why="--gpus auto takes the GPUs that CUDA would use",
            fix=f"look at CUDA_VISIBLE_DEVICES, or {_ELSEWHERE}",
        )
    return gpus


def check_gpus(count: int) -> None:
    """Raises ClusterError where processes on this machine could not have so many GPUs, one each: they would fail one
    after the other, in words that do not say so.

    NVML is asked first, and torch where there is none, because ROCm has GPUs without it.
    """
    found = _gpus_of_the_driver() or _gpus_of_torch()
    if found >= count:
        return
    raise ClusterError(
        f"this machine has {f'only {found}' if found else 'no'} GPU{'s' * (found > 1)}",
        why=f"{count} are asked for, one for each rank" if found else "every rank needs one",
        fix="pass --device cpu, or ask ds-advise dry-run, which simulates GPUs",
    )


def _gpus_of_the_driver() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return len(visible_handles(pynvml))
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()


def _gpus_of_torch() -> int:
    import torch

    return torch.cuda.device_count()


def visible_handles(pynvml: Any) -> list[Any]:
    """NVML's handles of the GPUs that CUDA would use, in its order; between nvmlInit and nvmlShutdown. Raises
    NVMLError."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    handles = []
    for device in filter(None, (part.strip() for part in chosen.split(","))):
        if device == "-1":
            break  # CUDA stops at the first device that is not there
        by_index = device.isdigit()
        handles.append(
            pynvml.nvmlDeviceGetHandleByIndex(int(device)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(device)
        )
    return handles


def _gpu(pynvml: Any, handle: Any) -> Gpu:
    name = pynvml.nvmlDeviceGetName(handle)
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    usable = int(total * UNMEASURED_MEMORY_SHARE)
    try:
        known = _known_card(name, total)
    except ClusterError:
        return replace(gpu_of_memory(total / 2**30), name=name, memory_bytes=usable)
    if abs(total - known.memory_bytes) > _SAME_CARD * known.memory_bytes:
        return replace(known, memory_bytes=usable, nominal_gb=round(total / 2**30))
    return known


def _known_card(name: str, total_bytes: int) -> Gpu:
    """The data file's card; where several of one name differ in memory, that of this memory. Raises ClusterError."""
    try:
        return find_gpu(f"{name} {round(total_bytes / 2**30)}GB")
    except ClusterError:
        return find_gpu(name)


def host_memory_bytes(root: Path = Path("/")) -> int:
    """RAM that a process here may use: the machine's, or the container's limit (cgroup v2 or v1) where that is less.

    A job that passes the container's limit is killed without a message, however much RAM the machine has.
    """
    import psutil

    limits = (group.limit_bytes for group in memory_groups(root))
    return min([int(psutil.virtual_memory().total), *filter(None, limits)])


def cpu_cores(root: Path = Path("/")) -> int:
    """Cores that a process here may use: its affinity, or the container's quota where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return cores if quota is None else min(cores, max(1, int(quota)))


def chosen_threads() -> int | None:
    """Threads of each rank that the user chose by OMP_NUM_THREADS, None where nothing is chosen."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) else None


def threads_of_a_rank(ranks: int) -> int:
    """Threads of each of `ranks` processes that share the cores: the user's choice, or an equal part of the cores.

    Left alone, every process takes all cores, and threads that wait for each other at the end of every operation then
    wait for their turn on a core as well: several times slower, and never twice the same.
    """
    return chosen_threads() or cores_per_rank(ranks)


def cores_per_rank(ranks: int) -> int:
    """An equal part of this machine's cores for each rank."""
    return max(1, cpu_cores() // ranks)


def can_bind_cores(ranks: int) -> bool:
    """Whether the deepspeed launcher's `--bind_cores_to_rank` works here: numactl is there, and this process may use
    every core, since that option counts the machine's and hands them out in order (deepspeed 0.19.8 utils/numa.py)."""
    import psutil

    physical = psutil.cpu_count(logical=False) or 0
    whole = hasattr(os, "sched_getaffinity") and cpu_cores() == (psutil.cpu_count() or 0)
    return physical >= ranks and whole and "KMP_AFFINITY" not in os.environ and shutil.which("numactl") is not None


def mount_point(path: str | Path) -> str:
    """The folder at which the file system of a path begins."""
    folder = Path(path).expanduser().resolve()
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return str(folder)
