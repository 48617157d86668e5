"""Versions of torch, DeepSpeed, CUDA and the driver, read from files (importing torch alone takes seconds), and
environment variables that slow training down or break it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from ...estimators.phrase import phrase
from ...probes.machine import installed_version
from .. import parse_version
from .findings import Findings, counted, note, ok, problem, warning
from .gpus import Graphics
from .nodes import HostfileNode

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "ninja")

NO_NVIDIA_GPU = "no NVIDIA GPU"
"""The observation if neither the bus nor the kernel has an NVIDIA GPU."""

_FIRST_DRIVER = {11: "450.80", 12: "525.60", 13: "580.65"}
"""Oldest Linux driver for a major CUDA version (CUDA Toolkit release notes, "minor version compatibility")."""

_ON = ("1", "true", "on", "yes", "y")
"""Values in lower case that NCCL, torch and CUDA accept as true."""


class VariableRule(NamedTuple):
    """Values of an environment variable that are reported."""

    values: tuple[str, ...]
    """The values in lower case; empty for any non-empty value."""
    why: str
    fix: str = ""
    """"" for the default fix, `unset NAME`."""


RULES = {
    "NCCL_P2P_DISABLE": VariableRule(
        _ON,
        "GPUs communicate through host memory instead of NVLink; it cures hangs of cards whose peer access does not "
        "work, such as the RTX 4090",
        "unset NCCL_P2P_DISABLE, unless collectives hang without it",
    ),
    "NCCL_SHM_DISABLE": VariableRule(_ON, "GPUs without peer access communicate over TCP"),
    "NCCL_IB_DISABLE": VariableRule(
        _ON, "nodes communicate over TCP although InfiniBand or RoCE may exist; on one node it changes nothing"
    ),
    "TORCH_NCCL_BLOCKING_WAIT": VariableRule(_ON, "the host waits for every collective: nothing overlaps"),
    "TORCH_DISTRIBUTED_DEBUG": VariableRule(("detail",), "every collective is checked by another one first"),
    "CUDA_LAUNCH_BLOCKING": VariableRule(_ON, "the host waits for every kernel: nothing overlaps"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": VariableRule((), "the driver allocates every tensor: very slow steps"),
    "OMP_NUM_THREADS": VariableRule(
        ("1",),
        "CPU Adam runs on one thread per rank (torchrun sets it by default)",
        "set it to the cores per rank",
    ),
    "DS_ACCELERATOR": VariableRule(("cpu",), "DeepSpeed uses the CPU instead of the GPUs"),
}
"""Sources: NCCL's user guide ("Environment Variables"); torch/csrc/distributed/c10d and c10/cuda; DeepSpeed 0.19.8
accelerator/real_accelerator.py and ops/op_builder/builder.py. Peer access of the RTX 4090: DeepSpeed issue 4433,
NVIDIA/nccl-tests issue 117."""

_BETWEEN_GPUS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSoftware:
    """Python packages; none is imported."""

    python: str
    packages: Mapping[str, str]
    """Name -> version of the installed packages among `PACKAGES`."""
    torch_cuda: str = ""
    """CUDA version of the torch build ("12.8"); "" for a build without CUDA. `torch_hip` is the same for ROCm."""
    torch_hip: str = ""


def read_software() -> InstalledSoftware:
    """Read package metadata, and torch's file with its build versions."""
    built: dict[str, str] = {}
    with suppress(PackageNotFoundError, OSError):
        text = Path(str(distribution("torch").locate_file("torch/version.py"))).read_text(encoding="utf-8")
        built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([\d.]+)", text, re.MULTILINE))
    return InstalledSoftware(
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := installed_version(name))},
        torch_cuda=built.get("cuda", ""),
        torch_hip=built.get("hip", ""),
    )


def driver(graphics: Graphics) -> Findings:
    """Check that the NVIDIA driver answers, or identify its missing part."""
    if graphics.gpus:
        seen = phrase("NVIDIA driver {version}", version=graphics.driver)
        runs = phrase("{driver}, runs CUDA up to {cuda}", driver=seen, cuda=graphics.driver_cuda)
        yield ok(runs if graphics.driver_cuda else seen)
        return
    seen = phrase("{cards} on the PCI bus", cards=counted(graphics.on_the_bus, "NVIDIA GPU"))
    if "mismatch" in graphics.error.lower():
        yield problem(
            "the kernel module of the driver and its library have different versions",
            "the driver was updated while the machine ran, and no program can use CUDA until it is reloaded",
            "reboot, or reload the nvidia kernel modules",
        )
    elif not graphics.on_the_bus and not graphics.module_loaded and graphics.other_vendor:
        yield note(
            phrase("{other_vendor} accelerators", other_vendor=graphics.other_vendor),
            "only NVIDIA GPUs are examined; the checks of memory, processor and storage are valid",
        )
    elif not graphics.on_the_bus and not graphics.module_loaded:
        yield note(NO_NVIDIA_GPU, "DeepSpeed runs on the CPU; a login node has no GPU")
    elif not graphics.module_loaded:
        yield problem(
            phrase("{seen}, but no NVIDIA driver is loaded", seen=seen),
            "CUDA cannot be used",
            "install the driver and reboot, or `sudo modprobe nvidia`; with Secure Boot its module must be signed",
        )
    elif not graphics.device_files:
        yield problem(
            phrase("{seen} and the driver is loaded, but the device files are missing", seen=seen),
            "the container or the job was started without GPUs",
            "docker run --gpus all ..., or request GPUs from the scheduler (--gres=gpu:2, nvidia.com/gpu)",
        )
    else:
        yield problem(
            phrase("the driver does not answer: {error}", error=graphics.error or phrase("it lists no GPU")),
            "CUDA cannot be used",
            "in a container mount the driver's libraries (NVIDIA Container Toolkit); otherwise reinstall the driver",
        )


def torch(software: InstalledSoftware, graphics: Graphics | None = None) -> Findings:
    """Check that torch is installed, in a build for the GPUs."""
    version = software.packages.get("torch")
    if version is None:
        yield problem(
            phrase("torch is not installed in this Python ({python})", python=software.python),
            "DeepSpeed needs it",
            "pip install torch, or run ds-advise with the Python of the training",
        )
    elif graphics is not None and graphics.on_the_bus and not software.torch_cuda:
        yield problem(
            phrase("torch {version} is built without CUDA", version=version),
            "torch.cuda.is_available() is False",
            "install the CUDA build of torch",
        )
    else:
        rocm = f"ROCm {software.torch_hip}" if software.torch_hip else phrase("CPU only")
        build = f"CUDA {software.torch_cuda}" if software.torch_cuda else rocm
        yield ok(phrase("torch {version}, {build}", version=version, build=build))


def torch_and_driver(software: InstalledSoftware, graphics: Graphics) -> Findings:
    """Check that the driver supports torch's CUDA version."""
    built = software.torch_cuda
    runs = graphics.driver_cuda
    if not built or not runs:
        return
    of_torch = parse_version(built)
    of_driver = parse_version(runs)
    if of_torch.major > of_driver.major:
        least = _FIRST_DRIVER.get(of_torch.major, "")
        yield problem(
            phrase("torch is built for CUDA {built}, the driver runs CUDA up to {runs}", built=built, runs=runs),
            "torch reports that the driver is too old and finds no GPU",
            phrase(
                "{update}, or install torch built for CUDA {major}",
                update=phrase("update the driver to {least} or newer", least=least)
                if least
                else phrase("update the driver"),
                major=of_driver.major,
            ),
        )
    else:
        yield ok(phrase("the driver (CUDA {runs}) runs torch's CUDA {built}", runs=runs, built=built))


def deepspeed(software: InstalledSoftware) -> Findings:
    """Check that DeepSpeed is installed, in a version that ds-advise models."""
    found = software.packages.get("deepspeed")
    if found is None:
        yield problem(
            phrase("DeepSpeed is not installed in this Python ({python})", python=software.python),
            "it runs the training",
            "pip install deepspeed, or run ds-advise with the Python of the training",
        )
    elif parse_version(found) < parse_version("0.18"):
        yield note(
            f"DeepSpeed {found}",
            "ds-advise models 0.18 and newer; older versions may hold gigabytes more",
            "pip install --upgrade deepspeed",
        )
    else:
        names = [name for name in ("transformers", "accelerate") if name in software.packages]
        yield ok(", ".join([f"DeepSpeed {found}", *(f"{name} {software.packages[name]}" for name in names)]))


def environment(
    environment: Mapping[str, str], nodes: Sequence[HostfileNode], graphics: Graphics | None = None
) -> Findings:
    """Check for environment variables with harmful values."""
    several = not graphics or len(graphics.gpus) != 1 or bool(nodes)
    is_sound = True
    for name, rule in RULES.items():
        value = environment.get(name, "")
        is_harmful = value.lower() in rule.values if rule.values else bool(value)
        if is_harmful and (several or name not in _BETWEEN_GPUS):
            is_sound = False
            yield warning(f"{name}={value[:40]}", rule.why, rule.fix or f"unset {name}")
    if is_sound:
        yield ok("no variable slows down NCCL, CUDA or torch")
