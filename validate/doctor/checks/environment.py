"""Environment variables that slow training down, break it, or were left behind by something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..facts import MachineFacts
from ..findings import DoctorFinding, FindingStatus, note, ok, problem, warning

_ON = ("1", "true", "on", "yes", "y")
"""What NCCL, torch and CUDA take for yes, in lower case."""


@dataclass(frozen=True, slots=True)
class VariableRule:
    """A variable that is named when it has one of some values."""

    name: str
    status: FindingStatus
    why: str
    fix: str = ""
    values: tuple[str, ...] = ()
    """In lower case; without any, every value counts that is not empty."""

    several_gpus: bool = False
    """It matters between GPUs only."""

    def applies_to(self, value: str) -> bool:
        return value.lower() in self.values if self.values else bool(value)


SETTINGS = (
    VariableRule(
        "NCCL_P2P_DISABLE",
        "warning",
        "GPUs talk through host memory even where NVLink joins them; no other switch of NCCL costs as much",
        values=_ON,
        several_gpus=True,
    ),
    VariableRule(
        "NCCL_SHM_DISABLE",
        "warning",
        "GPUs that cannot reach each other directly talk through the network stack",
        values=_ON,
        several_gpus=True,
    ),
    VariableRule(
        "NCCL_IB_DISABLE",
        "warning",
        "nodes talk over TCP although InfiniBand or RoCE may be there; on one node it changes nothing",
        values=_ON,
    ),
    VariableRule(
        "NCCL_NET_GDR_LEVEL",
        "note",
        "the network adapter does not read from the GPU: every message is copied to host memory first",
        values=("0", "loc"),
    ),
    VariableRule("NCCL_P2P_LEVEL", "note", "GPUs do not write to each other", values=("0", "loc"), several_gpus=True),
    VariableRule("NCCL_ALGO", "note", "NCCL's own choice by message size is switched off"),
    VariableRule(
        "NCCL_PROTO",
        "note",
        "NCCL's own choice is switched off; some of its choices corrupt data on hardware that does not support them",
    ),
    VariableRule("NCCL_MAX_NCHANNELS", "note", "it bounds what NCCL can send at a time"),
    VariableRule("NCCL_DEBUG", "note", "NCCL writes a lot; leave it to look for a fault", values=("info", "trace")),
    VariableRule(
        "NCCL_BLOCKING_WAIT",
        "note",
        "torch reads TORCH_NCCL_BLOCKING_WAIT now; and then the host waits without endy collective",
        values=_ON,
    ),
    VariableRule(
        "TORCH_NCCL_BLOCKING_WAIT", "warning", "the host waits without endy collective: nothing overlaps", values=_ON
    ),
    VariableRule(
        "TORCH_DISTRIBUTED_DEBUG", "warning", "every collective is checked by another one first", values=("detail",)
    ),
    VariableRule(
        "CUDA_LAUNCH_BLOCKING",
        "warning",
        "the host waits without endy kernel: nothing overlaps, and small models run several times slower",
        values=_ON,
    ),
    VariableRule(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "note",
        "kernels of all streams wait in one queue: meant for Megatron's tensor parallelism, it hinders ZeRO's overlap",
        values=("1",),
    ),
    VariableRule(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", "warning", "every tensor is asked of the driver: steps are many times slower"
    ),
    VariableRule("TORCH_SHOW_CPP_STACKTRACES", "note", "errors are collected slowly and printed at length", values=_ON),
    VariableRule(
        "OMP_NUM_THREADS",
        "warning",
        "CPU Adam runs on one thread per rank (torchrun sets it where nobody else does)",
        fix="set it to the cores per rank",
        values=("1",),
    ),
    VariableRule("DS_ACCELERATOR", "warning", "DeepSpeed takes the CPU and leaves the GPUs alone", values=("cpu",)),
    VariableRule(
        "DS_SKIP_CUDA_CHECK",
        "note",
        "DeepSpeed compiles ops for another CUDA than torch's without a word",
        values=("1",),
    ),
    VariableRule("HF_HUB_OFFLINE", "note", "models and data that are not in the cache are not found", values=_ON),
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
            fix=setting.fix or f"unset {setting.name}",
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
