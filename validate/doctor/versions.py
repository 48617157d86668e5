"""Driver, CUDA, torch and DeepSpeed against each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.unmodeled_features import FIRST_WITHOUT_AUTOEP
from ..versions import parse_version
from .facts import NO_PYNVML, MachineFacts
from .findings import DoctorFinding, note, ok, problem, unknown, warning

_FIRST_DRIVER = {11: "450.80", 12: "525.60", 13: "580.65"}
"""Oldest Linux driver for a major CUDA version (CUDA Toolkit release notes, "minor version compatibility")."""

_FIRST_CUDA = {
    (8, 0): "11.0",
    (8, 6): "11.1",
    (8, 9): "11.8",
    (9, 0): "11.8",
    (10, 0): "12.8",
    (10, 3): "12.9",
    (12, 0): "12.8",
    (12, 1): "12.9",
}
"""Compute capability -> first CUDA that compiles for it (CUDA Toolkit release notes of those versions)."""

_OLDEST_OF_13 = (7, 5)
"""CUDA 13 compiles for Turing and newer only (CUDA 13.0 release notes, "deprecated architectures")."""


def driver(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The NVIDIA driver answers, or it is told which of its parts is missing."""
    if (graphics := facts.graphics) is None:
        return
    if graphics.gpus:
        runs = f", runs CUDA up to {graphics.driver_cuda}" if graphics.driver_cuda else ""
        yield ok(f"NVIDIA driver {graphics.driver}{runs}")
        return
    seen = f"{graphics.on_the_bus} NVIDIA GPU{'s' * (graphics.on_the_bus > 1)} on the PCI bus"
    if "mismatch" in graphics.error.lower():
        yield problem(
            "the driver in the kernel and its library are of different versions",
            "the driver was updated while the machine ran, and no program can use CUDA until it is loaded anew",
            "reboot, or unload and load the nvidia kernel modules",
        )
    elif not graphics.on_the_bus and not graphics.module_loaded:
        if graphics.other_vendor:
            yield note(
                f"{graphics.other_vendor} accelerators",
                "only NVIDIA's are looked at; the checks of memory, processor and storage hold all the same",
            )
        else:
            yield note(
                "there is no NVIDIA GPU here", "DeepSpeed takes the CPU; on a login node this is as it should be"
            )
    elif graphics.error == NO_PYNVML:
        yield unknown(f"{seen}, but {NO_PYNVML}", "nothing is known of the GPUs without it", "pip install nvidia-ml-py")
    elif not graphics.module_loaded:
        yield problem(
            f"{seen}, but the kernel has no NVIDIA driver loaded",
            "CUDA cannot be used",
            "install the driver and reboot, or `sudo modprobe nvidia`; with Secure Boot its module must be signed",
        )
    elif not graphics.device_files:
        yield problem(
            f"{seen} and the driver is loaded, but their device files are not here",
            "the container or the job was started without GPUs",
            "docker run --gpus all ..., or ask the scheduler for GPUs (--gres=gpu:2, nvidia.com/gpu)",
        )
    else:
        yield problem(
            f"the driver does not answer: {graphics.error or 'it shows no GPU'}",
            "CUDA cannot be used",
            "in a container mount the driver's libraries (NVIDIA Container Toolkit); else install the driver anew",
        )


def torch(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """torch is there, and of a build that can use what is."""
    if (software := facts.software) is None:
        return
    version = software.packages.get("torch")
    gpus = bool(facts.graphics and facts.graphics.on_the_bus)
    if version is None:
        yield problem(
            f"torch is not installed in this Python ({software.python})",
            "DeepSpeed needs it",
            "pip install torch, or run ds-advise with the Python that trains",
        )
    elif gpus and not software.torch_cuda:
        yield problem(
            f"torch {version} is built without CUDA",
            "torch.cuda.is_available() is False on it",
            "install torch's build for CUDA in its place",
        )
    else:
        build = (
            f"CUDA {software.torch_cuda}"
            if software.torch_cuda
            else (f"ROCm {software.torch_hip}" if software.torch_hip else "CPU only")
        )
        yield ok(f"torch {version}, {build}")


def torch_and_driver(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The driver runs the CUDA that torch was built for."""
    if facts.software is None or facts.graphics is None:
        return
    built, runs = facts.software.torch_cuda, facts.graphics.driver_cuda
    if not built or not runs:
        return
    torchs, drivers = parse_version(built), parse_version(runs)
    if torchs.major > drivers.major:
        least = _FIRST_DRIVER.get(torchs.major, "")
        yield problem(
            f"torch is built for CUDA {built}, the driver runs CUDA up to {runs}",
            "torch says that the driver is too old and finds no GPU",
            f"update the driver{f' to {least} or newer' if least else ''}, or install torch built for CUDA "
            f"{drivers.major}",
        )
    elif torchs > drivers:
        yield note(
            f"torch is built for CUDA {built}, the driver for {runs}",
            "compiled kernels run (same major version), but PTX that is translated at run time may be refused",
            "update the driver when kernels compiled by Triton or at run time fail",
        )
    else:
        yield ok(f"the driver (CUDA {runs}) runs torch's CUDA {built}")


def gpu_architecture(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """torch's CUDA has kernels for these GPUs."""
    if facts.software is None or facts.graphics is None or not facts.software.torch_cuda:
        return
    for gpu in facts.graphics.gpus:
        if gpu.capability is not None and (wanted := lacks_architecture(facts.software.torch_cuda, gpu.capability)):
            major, minor = gpu.capability
            yield problem(
                f"{gpu.name} (sm_{major}{minor}) and torch for CUDA {facts.software.torch_cuda}",
                'the first kernel ends with "no kernel image is available for execution on the device"',
                f"install torch built for {wanted}",
            )
            return


def lacks_architecture(cuda: str, capability: tuple[int, int]) -> str:
    """The CUDA that compiles for a compute capability where this one does not ("CUDA 12.8 or newer"), else ""."""
    known, first = parse_version(cuda), _FIRST_CUDA.get(capability)
    if first is not None and known < parse_version(first):
        return f"CUDA {first} or newer"
    return "CUDA 12" if known.major >= 13 and capability < _OLDEST_OF_13 else ""


def torch_libraries(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """NVIDIA's packages are the versions that torch was built with."""
    wrong = facts.software.wrong_libraries if facts.software else ()
    if wrong:
        name, wanted, found = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield warning(
            f"torch wants {name} {wanted}, {found or 'none'} is installed{more}",
            "symbols that are missing, or NCCL and cuDNN that nobody tested with this torch",
            "pip install " + " ".join(f"{name}=={wanted}" for name, wanted, _ in wrong[:3]),
        )


def deepspeed(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """DeepSpeed is there, and recent enough for what ds-advise says of it."""
    if (software := facts.software) is None:
        return
    found = software.packages.get("deepspeed")
    if found is None:
        yield problem(
            f"DeepSpeed is not installed in this Python ({software.python})",
            "nothing can be trained with it",
            "pip install deepspeed, or run ds-advise with the Python that trains",
        )
    elif parse_version(found) < parse_version("0.18"):
        yield note(
            f"DeepSpeed {found}",
            "the figures of ds-advise follow 0.18 and newer; older ones may hold gigabytes more",
            "pip install --upgrade deepspeed",
        )
    else:
        others = ", ".join(
            f"{name} {software.packages[name]}" for name in ("transformers", "accelerate") if name in software.packages
        )
        yield ok(f"DeepSpeed {found}{f', {others}' if others else ''}")


def trainer(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The Trainer hands its model to DeepSpeed through accelerate."""
    if facts.software and "transformers" in facts.software.packages and "accelerate" not in facts.software.packages:
        yield problem(
            "accelerate is not installed beside transformers",
            "Trainer stops when it is given a DeepSpeed configuration",
            "pip install accelerate",
        )


def experts(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """DeepSpeed's expert parallelism works on the inner parts of this transformers."""
    packages = facts.software.packages if facts.software else {}
    found = packages.get("transformers")
    if "deepspeed" in packages and found and parse_version(found).release >= FIRST_WITHOUT_AUTOEP:
        yield note(
            f"transformers {found} and AutoEP",
            "`expert_parallel` stops at deepspeed.initialize with a TypeError of _CanRecordRegistry.get()",
            "pip install transformers==5.8.0 where experts are to be spread over ranks",
        )


def ops_built_ahead(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Ops that were compiled when DeepSpeed was installed were compiled for this torch."""
    software = facts.software
    if software is None or not software.built_ahead or "torch" not in software.packages:
        return
    torch_version = parse_version(software.packages["torch"])
    own = f"{torch_version.major}.{torch_version.minor}"
    names = ", ".join(software.built_ahead[:4])
    if software.built_with_torch not in ("", "0.0", own):  # DeepSpeed writes 0.0 where it did not know
        yield problem(
            f"{names} were compiled for torch {software.built_with_torch}; torch is {own}",
            'DeepSpeed stops with "PyTorch version mismatch" where one of them is loaded',
            "pip install --force-reinstall --no-deps --no-cache-dir deepspeed",
        )
    else:
        yield ok(f"compiled when DeepSpeed was installed: {names}")


CHECKS = (
    driver,
    torch,
    torch_and_driver,
    gpu_architecture,
    torch_libraries,
    deepspeed,
    trainer,
    experts,
    ops_built_ahead,
)
