"""The machine that a figure was measured on, as far as it decides the figure: no name, no serial number, no address."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..estimators.errors import ClusterError
from .this_machine import cpu_cores, host_memory_bytes, visible_gpus

_CPUINFO = Path("/proc/cpuinfo")
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a process here may use; the container's limits count first."""

    gpus: tuple[str, ...]
    """Names of the GPUs that CUDA would see, in its order."""
    gpu_memory_bytes: tuple[int, ...]
    driver: str
    """The NVIDIA driver's version, "" without one; it does not make another machine."""
    cpu: str
    """The processor's model."""
    cpu_cores: int
    ram_bytes: int

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits, equal for machines of the same kind: a kernel update, which changes the RAM by
        some MiB, or another driver does not change them."""
        gpu_gib = [round(size / _GIB) for size in self.gpu_memory_bytes]
        identity = [self.gpus, gpu_gib, self.cpu, self.cpu_cores, round(self.ram_bytes / _GIB)]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def machine_from_json(values: Mapping[str, Any]) -> Machine:
    """The machine that `to_json` wrote."""
    return Machine(**{**values, "gpus": tuple(values["gpus"]), "gpu_memory_bytes": tuple(values["gpu_memory_bytes"])})


def this_machine() -> Machine:
    """The machine that this process runs on."""
    try:
        gpus = visible_gpus()
    except ClusterError:
        gpus = []
    return Machine(
        gpus=tuple(gpu.name for gpu in gpus),
        gpu_memory_bytes=tuple(gpu.memory_bytes for gpu in gpus),
        driver=_driver() if gpus else "",
        cpu=cpu_model(),
        cpu_cores=cpu_cores(),
        ram_bytes=host_memory_bytes(),
    )


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """The processor's name (`AMD EPYC 7742 64-Core Processor`), or its architecture where Linux does not tell one
    (ARM)."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return " ".join(value.split())
    except OSError:
        pass
    return platform.machine()


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ""
