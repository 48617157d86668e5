"""Versions of torch, DeepSpeed, CUDA and the driver, whether torch can be imported, and the GPUs."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from ...estimators.units import gib
from .. import parse_version
from .findings import Findings, note, ok, problem, unknown, warning
from .machine import ExaminedMachine

NO_NVIDIA_GPU = "no NVIDIA GPU"
"""The observation if neither the bus nor the kernel has an NVIDIA GPU."""

_FIRST_DRIVER = {11: "450.80", 12: "525.60", 13: "580.65"}
"""Oldest Linux driver for a major CUDA version (CUDA Toolkit release notes, "minor version compatibility")."""

_IMPORT_LIMIT_S = 15.0
"""Time limit of `import torch`, which takes 2 s, and longer from a slow disk."""

_IDLE_SHARE = 0.05
"""Share of a GPU's memory that the driver may keep: 0.5 to 1 GiB of 80."""


def driver(machine: ExaminedMachine) -> Findings:
    """Check that the NVIDIA driver answers."""
    graphics = machine.graphics
    if graphics is None:
        return
    if graphics.gpus:
        cuda = f", runs CUDA up to {graphics.driver_cuda}" if graphics.driver_cuda else ""
        yield ok(f"NVIDIA driver {graphics.driver}{cuda}")
    elif "mismatch" in graphics.error.lower():
        yield problem(
            "the kernel module of the driver and its library have different versions",
            "the driver was updated while the machine ran, and no program can use CUDA until it is reloaded",
            "reboot, or reload the nvidia kernel modules",
        )
    elif not graphics.pci_gpus:
        yield note(NO_NVIDIA_GPU, "DeepSpeed runs on the CPU; a login node has no GPU")
    else:
        found = f"{graphics.pci_gpus} NVIDIA GPU{'s' * (graphics.pci_gpus > 1)} on the PCI bus"
        yield problem(
            f"{found}, but the driver does not answer: {graphics.error or 'no GPU'}",
            "CUDA cannot be used",
            "install the driver and reboot; in a container docker run --gpus all ..., in a job request GPUs from the "
            "scheduler (--gres=gpu:2, nvidia.com/gpu)",
        )


def torch(machine: ExaminedMachine) -> Findings:
    """Check that torch is installed, in a build for the GPUs."""
    software, graphics = machine.software, machine.graphics
    version = software.packages.get("torch")
    if version is None:
        yield problem(
            f"torch is not installed in this Python ({software.python})",
            "DeepSpeed needs it",
            "pip install torch, or run ds-advise with the Python of the training",
        )
    elif graphics is not None and graphics.pci_gpus and not software.torch_cuda:
        yield problem(
            f"torch {version} is built without CUDA",
            "torch.cuda.is_available() is False",
            "install the CUDA build of torch",
        )
    else:
        builds = {"CUDA": software.torch_cuda, "ROCm": software.torch_hip}
        build = next((f"{name} {release}" for name, release in builds.items() if release), "CPU only")
        yield ok(f"torch {version}, {build}")


def torch_import(machine: ExaminedMachine) -> Findings:
    """Check that torch can be imported, in a process of its own."""
    if "torch" not in machine.software.packages:
        return
    ran = machine.run([sys.executable, "-P", "-c", "import torch"], "", _IMPORT_LIMIT_S)
    if ran.code == 0:
        yield ok("torch can be imported")
    elif ran.code is None:
        yield unknown(f"torch was not imported within {_IMPORT_LIMIT_S:g} seconds" if ran.late else ran.err)
    else:
        lines = ran.err.strip().splitlines()
        yield problem(
            f"torch cannot be imported: {(lines[-1] if lines else f'exit code {ran.code}')[:140]}",
            "every training imports it",
            "pip install --force-reinstall torch, in the build for this machine (pytorch.org)",
        )


def shadowed_packages(machine: ExaminedMachine) -> Findings:
    """Check that no module of the current folder has the name of a package.

    Python searches the folder of a script first. A folder without `__init__.py` hides no installed package.
    """
    here = Path.cwd()
    elsewhere = [place for place in sys.path if place and Path(place).resolve() != here]
    for name in machine.software.packages:
        files = (here / f"{name}.py", here / name / "__init__.py")
        hidden = next((file for file in files if file.exists()), None)
        if hidden is not None and PathFinder.find_spec(name, elsewhere) is not None:
            shown = hidden.name if hidden.parent == here else f"{name}/"
            yield problem(
                f"{shown} in the current folder hides the installed {name}",
                "a script in this folder imports it instead",
                f"rename {shown}, or keep the script in another folder",
            )


def torch_and_driver(machine: ExaminedMachine) -> Findings:
    """Check that the driver supports torch's CUDA version."""
    built = machine.software.torch_cuda
    runs = machine.graphics.driver_cuda if machine.graphics is not None else ""
    if not built or not runs:
        return
    torch_major, driver_major = parse_version(built).major, parse_version(runs).major
    if torch_major > driver_major:
        least = _FIRST_DRIVER.get(torch_major, "")
        target = f" to {least} or newer" if least else ""
        yield problem(
            f"torch is built for CUDA {built}, the driver runs CUDA up to {runs}",
            "torch reports that the driver is too old and finds no GPU",
            f"update the driver{target}, or install torch built for CUDA {driver_major}",
        )
    else:
        yield ok(f"the driver (CUDA {runs}) runs torch's CUDA {built}")


def deepspeed(machine: ExaminedMachine) -> Findings:
    """Check that DeepSpeed is installed, in a version that ds-advise models."""
    software = machine.software
    found = software.packages.get("deepspeed")
    if found is None:
        yield problem(
            f"DeepSpeed is not installed in this Python ({software.python})",
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
        packages = {
            "DeepSpeed": found,
            **{name: software.packages.get(name) for name in ("transformers", "accelerate")},
        }
        yield ok(", ".join(f"{name} {version}" for name, version in packages.items() if version))


def gpus(machine: ExaminedMachine) -> Findings:
    """Check that all GPUs are of one model."""
    found = machine.graphics.gpus if machine.graphics is not None else ()
    models = [(gpu.name, gpu.memory_bytes) for gpu in found]
    listed = ", ".join(f"{models.count(model)} x {model[0]} ({gib(model[1])} GiB)" for model in sorted(set(models)))
    if len(set(models)) > 1:
        yield warning(
            listed,
            "every rank holds the same share of the model and waits for the slowest",
            "select GPUs of one model: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1",
        )
    elif models:
        yield ok(listed)


def gpu_memory(machine: ExaminedMachine) -> Findings:
    """Check that no other process holds GPU memory."""
    found, free = machine.graphics.gpus if machine.graphics is not None else (), True
    for index, gpu in enumerate(found):
        used = gpu.memory_bytes - gpu.free_bytes
        if used > _IDLE_SHARE * gpu.memory_bytes:
            free = False
            by = ", ".join(f"{name} ({gib(size)} GiB)" if size else name for name, size in gpu.processes[:3])
            yield warning(
                f"GPU {index}: {gib(used)} of {gib(gpu.memory_bytes)} GiB in use by {by or 'no visible process'}",
                "training has less memory and shares the GPU's time",
                "end the processes of earlier runs (nvidia-smi lists them), or exclude this GPU with "
                "CUDA_VISIBLE_DEVICES",
            )
    if found and free:
        yield ok("free on all GPUs")
