"""Environment variables that slow training down, break it, or were left behind by something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..facts import MachineFacts
from ..findings import DoctorFinding, FindingStatus, note, ok, problem, warning

_ON = ("1", "true", "on", "yes", "y")
"""What NCCL, torch and CUDA take for yes, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableRule:
    """A variable that is told when it has one of some values.

    values: lower case; empty: any value that is not "". several_gpus: it matters between GPUs only.
    """

    name: str
    status: FindingStatus
    why: str
    fix: str = ""
    values: tuple[str, ...] = ()
    several_gpus: bool = False

    def said_of(self, value: str) -> bool:
        return value.lower() in self.values if self.values else bool(value)


SETTINGS = (
    VariableRule(
        name="NCCL_P2P_DISABLE",
        status="warning",
        values=_ON,
        several_gpus=True,
        why="GPUs talk through host memory, NVLink or not; the slowest of NCCL's switches to leave set",
    ),
    VariableRule(
        name="NCCL_SHM_DISABLE",
        status="warning",
        values=_ON,
        several_gpus=True,
        why="GPUs that cannot reach each other directly talk through the network stack",
    ),
    VariableRule(
        name="NCCL_IB_DISABLE",
        status="warning",
        values=_ON,
        why="nodes talk over TCP although InfiniBand or RoCE may be there; on one node it changes nothing",
    ),
    VariableRule(
        name="NCCL_NET_GDR_LEVEL",
        status="note",
        values=("0", "loc"),
        why="the network adapter does not read from the GPU: every message is copied to host memory first",
    ),
    VariableRule(
        name="NCCL_P2P_LEVEL",
        status="note",
        values=("0", "loc"),
        several_gpus=True,
        why="GPUs do not write to each other",
    ),
    VariableRule(name="NCCL_ALGO", status="note", why="NCCL's own choice by message size is switched off"),
    VariableRule(
        name="NCCL_PROTO",
        status="note",
        why="NCCL's own choice is switched off; some of its choices corrupt data on "
        "hardware that does not support them",
    ),
    VariableRule(name="NCCL_MAX_NCHANNELS", status="note", why="it bounds what NCCL can send at a time"),
    VariableRule(
        name="NCCL_DEBUG",
        status="note",
        values=("info", "trace"),
        why="NCCL writes a lot; leave it to look for a fault",
    ),
    VariableRule(
        name="NCCL_BLOCKING_WAIT",
        status="note",
        values=_ON,
        why="torch reads TORCH_NCCL_BLOCKING_WAIT now; and then the host waits for every collective",
    ),
    VariableRule(
        name="TORCH_NCCL_BLOCKING_WAIT",
        status="warning",
        values=_ON,
        why="the host waits for every collective: nothing overlaps",
    ),
    VariableRule(
        name="TORCH_DISTRIBUTED_DEBUG",
        status="warning",
        values=("detail",),
        why="every collective is checked by another one first",
    ),
    VariableRule(
        name="CUDA_LAUNCH_BLOCKING",
        status="warning",
        values=_ON,
        why="the host waits for every kernel: nothing overlaps, and small models run several times slower",
    ),
    VariableRule(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        status="note",
        values=("1",),
        why="kernels of all streams wait in one queue: meant for Megatron's tensor parallelism, it hinders ZeRO's "
        "overlap",
    ),
    VariableRule(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        status="warning",
        why="every tensor is asked of the driver: steps are many times slower",
    ),
    VariableRule(
        name="TORCH_SHOW_CPP_STACKTRACES",
        status="note",
        values=_ON,
        why="errors are collected slowly and printed at length",
    ),
    VariableRule(
        name="OMP_NUM_THREADS",
        status="warning",
        values=("1",),
        fix="set it to the cores per rank",
        why="CPU Adam runs on one thread per rank (torchrun sets it where nobody else does)",
    ),
    VariableRule(
        name="DS_ACCELERATOR",
        status="warning",
        values=("cpu",),
        why="DeepSpeed takes the CPU and leaves the GPUs alone",
    ),
    VariableRule(
        name="DS_SKIP_CUDA_CHECK",
        status="note",
        values=("1",),
        why="DeepSpeed compiles ops for another CUDA than torch's without a word",
    ),
    VariableRule(
        name="HF_HUB_OFFLINE", status="note", values=_ON, why="models and data that are not in the cache are not found"
    ),
)
"""NCCL's by its user guide ("Environment Variables"), torch's by torch/csrc/distributed/c10d and c10/cuda, DeepSpeed's
by accelerator/real_accelerator.py and ops/op_builder/builder.py of 0.19.8."""


def settings(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Variables whose value alone is telling."""
    several = not facts.graphics or len(facts.graphics.gpus) != 1 or bool(facts.nodes)
    found = [
        setting
        for setting in SETTINGS
        if setting.said_of(facts.environment.get(setting.name, "")) and (several or not setting.several_gpus)
    ]
    for setting in found:
        yield DoctorFinding(
            check="environment",
            status=setting.status,
            what=f"{setting.name}={facts.environment[setting.name][:40]}",
            why=setting.why,
            fix=setting.fix or f"unset {setting.name}",
        )
    if not found:
        yield ok("environment", "no variable that slows NCCL, CUDA or torch down")


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
            "visible-devices",
            f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU",
            "torch finds none",
            "unset CUDA_VISIBLE_DEVICES",
        )
    elif lost:
        yield problem(
            "visible-devices",
            f"CUDA_VISIBLE_DEVICES={value[:40]} names GPU {lost[0]}, but there {'is' if count == 1 else 'are'} {count}",
            "CUDA stops counting at the first that is not there",
            "unset CUDA_VISIBLE_DEVICES, or name those of nvidia-smi -L",
        )
    elif len(named) < count:
        yield note(
            "visible-devices",
            f"CUDA_VISIBLE_DEVICES={value[:40]}: {len(named)} of {count} GPUs",
            "the others are hidden",
        )


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
                "interfaces",
                f"{name}={value[:40]}, which is no interface of this machine",
                "the start of a job fails: no network to meet on",
                f"unset {name}, or name one of {', '.join(facts.host.interfaces[:6])}",
            )
        elif facts.nodes and wanted == ["lo"]:
            yield problem(
                "interfaces", f"{name}=lo", "other nodes are not reached over the loopback interface", f"unset {name}"
            )


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
                "architectures",
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
            "libraries",
            "LD_LIBRARY_PATH has a folder of CUDA stubs",
            'they are for linking and do nothing: "CUDA driver is a stub library"',
            "leave the stubs folder out of LD_LIBRARY_PATH",
        )
    torch = facts.software.torch_cuda if facts.software else ""
    for folder in folders:
        other = re.search(r"cuda-(\d+)(?:\.\d+)?", folder)
        if torch and other and other[1] != torch.partition(".")[0]:
            yield warning(
                "libraries",
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
            "allocator",
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
            "left-behind",
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
            "proxies",
            f"{through} is set, and no_proxy does not name localhost",
            "services on this machine (TensorBoard, a reward model, Ray) are then asked for through the proxy; NCCL "
            "and Gloo use none",
            "export no_proxy=localhost,127.0.0.1",
        )


CHECKS = (settings, visible_devices, interfaces, architectures, libraries, allocator, left_behind, proxies)
