"""Environment variables that slow training down, break it, or were left behind by something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .facts import MachineFacts
from .findings import DoctorFinding, FindingStatus, note, ok, problem, warning

_ON = ("1", "true", "on", "yes", "y")
"""What NCCL, torch and CUDA take for yes, in lower case."""


@dataclass(frozen=True, slots=True)
class VariableRule:
    """A variable that is named when it has one of some values."""

    name: str
    status: FindingStatus
    why: str
    fix: str
    values: tuple[str, ...]
    """In lower case; without any, every value counts that is not empty."""
    several_gpus: bool
    """It matters between GPUs only."""

    def applies_to(self, value: str) -> bool:
        return value.lower() in self.values if self.values else bool(value)


def _rules(
    status: FindingStatus, values: tuple[str, ...], *, several_gpus: bool = False, fix: str = "", **whys: str
) -> Iterator[VariableRule]:
    """One rule for each variable, which is named with the reason why it matters."""
    for name, why in whys.items():
        yield VariableRule(name, status, why, fix or f"unset {name}", values, several_gpus)


SETTINGS = (
    *_rules(
        "warning",
        _ON,
        NCCL_P2P_DISABLE="GPUs talk through host memory even where NVLink joins them, which costs most of all",
        NCCL_SHM_DISABLE="GPUs that cannot reach each other directly talk through the network stack",
        several_gpus=True,
    ),
    *_rules(
        "warning",
        _ON,
        NCCL_IB_DISABLE="nodes talk over TCP although InfiniBand or RoCE may be there; on one node it changes nothing",
        TORCH_NCCL_BLOCKING_WAIT="the host waits for every collective: nothing overlaps",
        CUDA_LAUNCH_BLOCKING="the host waits for every kernel: nothing overlaps, small models run several times slower",
    ),
    *_rules(
        "note",
        ("0", "loc"),
        NCCL_NET_GDR_LEVEL="the network adapter cannot read from the GPU, so messages go through host memory",
    ),
    *_rules("note", ("0", "loc"), NCCL_P2P_LEVEL="GPUs do not write to each other", several_gpus=True),
    *_rules(
        "note",
        (),
        NCCL_ALGO="NCCL's own choice by message size is switched off",
        NCCL_PROTO="NCCL's own choice is switched off; a wrong one corrupts data on some hardware",
        NCCL_MAX_NCHANNELS="it bounds how much NCCL can send at a time",
    ),
    *_rules("note", ("info", "trace"), NCCL_DEBUG="NCCL writes a lot; leave it to look for a fault"),
    *_rules(
        "note",
        _ON,
        NCCL_BLOCKING_WAIT="torch now reads TORCH_NCCL_BLOCKING_WAIT, with which the host waits for collectives",
        TORCH_SHOW_CPP_STACKTRACES="errors are collected slowly and printed at length",
        HF_HUB_OFFLINE="models and data that are not in the cache are not found",
    ),
    *_rules("warning", ("detail",), TORCH_DISTRIBUTED_DEBUG="every collective is checked by another one first"),
    *_rules(
        "note",
        ("1",),
        CUDA_DEVICE_MAX_CONNECTIONS="all streams wait in one queue, which helps Megatron and hinders ZeRO's overlap",
        DS_SKIP_CUDA_CHECK="DeepSpeed compiles ops for another CUDA than torch's without a word",
    ),
    *_rules(
        "warning", (), PYTORCH_NO_CUDA_MEMORY_CACHING="every tensor is asked of the driver: steps are many times slower"
    ),
    *_rules(
        "warning",
        ("1",),
        OMP_NUM_THREADS="CPU Adam runs on one thread per rank (torchrun sets it where nobody else does)",
        fix="set it to the cores per rank",
    ),
    *_rules("warning", ("cpu",), DS_ACCELERATOR="DeepSpeed takes the CPU and leaves the GPUs alone"),
)
"""NCCL's by its user guide ("Environment Variables"), torch's by torch/csrc/distributed/c10d and c10/cuda, DeepSpeed's
by accelerator/real_accelerator.py and ops/op_builder/builder.py of 0.19.8."""


def environment(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Variables whose value alone is telling."""
    several = not facts.graphics or len(facts.graphics.gpus) != 1 or bool(facts.nodes)
    found = [
        setting
        for setting in SETTINGS
        if setting.applies_to(facts.environment.get(setting.name, "")) and (several or not setting.several_gpus)
    ]
    for setting in found:
        yield DoctorFinding(
            status=setting.status,
            what=f"{setting.name}={facts.environment[setting.name][:40]}",
            why=setting.why,
            fix=setting.fix,
        )
    if not found:
        yield ok("no variable that slows NCCL, CUDA or torch down")


def visible_devices(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """CUDA_VISIBLE_DEVICES names GPUs that are there."""
    value, graphics = facts.environment.get("CUDA_VISIBLE_DEVICES"), facts.graphics
    if value is None or graphics is None or not graphics.gpus:
        return
    named = [part.strip() for part in value.split(",")]
    count = len(graphics.gpus)
    lost = [part for part in named if part.isdigit() and int(part) >= count]
    if not value.strip() or named[0] == "-1":
        yield problem(
            f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU", "torch finds none", "unset CUDA_VISIBLE_DEVICES"
        )
    elif lost:
        yield problem(
            f"CUDA_VISIBLE_DEVICES={value[:40]} names GPU {lost[0]}, but there {'is' if count == 1 else 'are'} {count}",
            "CUDA stops counting at the first that is not there",
            "unset CUDA_VISIBLE_DEVICES, or name those of nvidia-smi -L",
        )
    elif len(named) < count:
        yield note(f"CUDA_VISIBLE_DEVICES={value[:40]}: {len(named)} of {count} GPUs", "the others are hidden")


def interfaces(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The network interfaces that NCCL and Gloo are told to take are there."""
    if facts.host is None or not facts.host.interfaces:
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = facts.environment.get(name, "")
        wanted = [part.lstrip("=") for part in value.split(",") if part]
        # NCCL takes prefixes, and with ^ what is not to be taken; Gloo takes whole names.
        there = any(
            own.startswith(part) if name.startswith("NCCL") else own == part
            for part in wanted
            for own in facts.host.interfaces
        )
        if value and not value.startswith("^") and not there:
            yield problem(
                f"{name}={value[:40]}, which is no interface of this machine",
                "the start of a job fails: no network to meet on",
                f"unset {name}, or name one of {', '.join(facts.host.interfaces[:6])}",
            )
        elif facts.nodes and wanted == ["lo"]:
            yield problem(f"{name}=lo", "other nodes are not reached over the loopback interface", f"unset {name}")


def architectures(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """TORCH_CUDA_ARCH_LIST, for which ops are compiled, has these GPUs in it."""
    listed = facts.environment.get("TORCH_CUDA_ARCH_LIST", "")
    if not listed or facts.graphics is None:
        return
    numbers = re.findall(r"(\d+)\.(\d)(\+PTX)?", listed)
    for gpu in facts.graphics.gpus:
        if gpu.capability is None or not numbers:
            continue
        major, minor = gpu.capability
        # Code for an earlier minor version of the same major runs; PTX of any earlier version is translated.
        runs = any(
            (int(first) == major and int(second) <= minor) or (ptx and (int(first), int(second)) <= (major, minor))
            for first, second, ptx in numbers
        )
        if not runs:
            yield problem(
                f"TORCH_CUDA_ARCH_LIST={listed[:60]} leaves out the {gpu.name} ({major}.{minor})",
                'ops are compiled, and end with "no kernel image is available"',
                "unset TORCH_CUDA_ARCH_LIST",
            )
            return


def libraries(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The loader finds the real CUDA libraries first."""
    folders = [folder for folder in facts.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(folder.rstrip("/").endswith("/stubs") for folder in folders):
        yield problem(
            "LD_LIBRARY_PATH has a folder of CUDA stubs",
            'they are for linking and do nothing: "CUDA driver is a stub library"',
            "leave the stubs folder out of LD_LIBRARY_PATH",
        )
    torch = facts.software.torch_cuda if facts.software else ""
    for folder in folders:
        other = re.search(r"cuda-(\d+)(?:\.\d+)?", folder)
        if torch and other and other[1] != torch.partition(".")[0]:
            yield warning(
                f"LD_LIBRARY_PATH has CUDA {other[1]}, torch is built for {torch}",
                "torch may load that version's libraries in place of its own",
                "leave that folder out",
            )
            return


def allocator(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The caching allocator may grow its segments."""
    value = facts.environment.get("PYTORCH_ALLOC_CONF") or facts.environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if facts.graphics and facts.graphics.gpus and "expandable_segments:True" not in value:
        yield note(
            "expandable segments are off",
            "fragmentation can take a quarter more memory",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )


def left_behind(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """No rank's variables stand where jobs are started by hand."""
    world = facts.environment.get("WORLD_SIZE", "")
    if world.isdigit() and int(world) > 1:
        rank = facts.environment.get("RANK", "?")
        yield note(
            f"this shell says that it is rank {rank} of {world}",
            "`python train.py` then waits for the others; the scheduler sets these, or an earlier job left them",
            "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT",
        )


def proxies(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """What goes to this machine goes around a proxy."""
    known = {name.lower(): value for name, value in facts.environment.items()}
    through = next((name for name in ("https_proxy", "http_proxy", "all_proxy") if known.get(name)), "")
    direct = known.get("no_proxy", "")
    if through and direct != "*" and not {"localhost", "127.0.0.1"} <= {part.strip() for part in direct.split(",")}:
        yield note(
            f"{through} is set, and no_proxy does not name localhost",
            "services on this machine (TensorBoard, a reward model, Ray) are then asked for through the proxy; NCCL "
            "and Gloo use none",
            "export no_proxy=localhost,127.0.0.1",
        )


CHECKS = (environment, visible_devices, interfaces, architectures, libraries, allocator, left_behind, proxies)
