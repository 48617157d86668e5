"""Environment variables that slow training down or break it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .findings import DoctorFinding, Findings, FindingStatus, note, ok, problem
from .gpus import Graphics
from .host import Host
from .nodes import HostfileNode

_ON = ("1", "true", "on", "yes", "y")
"""Values that NCCL, torch and CUDA accept for yes, in lower case."""


@dataclass(frozen=True, slots=True)
class VariableRule:
    """A variable that is reported when it has one of some values."""

    name: str
    status: FindingStatus
    values: tuple[str, ...]
    """In lower case; without any, every value counts that is not empty."""
    why: str
    several_gpus: bool = False
    """It matters between GPUs only."""
    fix: str = ""
    """"" for `unset NAME`."""
    has_nvlink: bool | None = None
    """It applies with NVLink only, or without it only; None for both, and where the links are unknown."""

    def applies_to(self, value: str) -> bool:
        return value.lower() in self.values if self.values else bool(value)


RULES = (
    VariableRule(
        "NCCL_P2P_DISABLE",
        "warning",
        _ON,
        "GPUs communicate through host memory instead of NVLink",
        True,
        has_nvlink=True,
    ),
    VariableRule(
        "NCCL_P2P_DISABLE",
        "note",
        _ON,
        "GPUs communicate through host memory; without NVLink that is often as fast, and it cures hangs of cards whose "
        "peer access does not work, such as the RTX 4090",
        True,
        fix="keep it if collectives hang without it",
        has_nvlink=False,
    ),
    VariableRule("NCCL_SHM_DISABLE", "warning", _ON, "GPUs without peer access communicate over TCP", True),
    VariableRule("NCCL_P2P_LEVEL", "note", ("0", "loc"), "GPUs do not write to each other's memory", True),
    VariableRule(
        "NCCL_IB_DISABLE",
        "warning",
        _ON,
        "nodes communicate over TCP although InfiniBand or RoCE may exist; on one node it changes nothing",
    ),
    VariableRule("NCCL_NET_GDR_LEVEL", "note", ("0", "loc"), "messages between nodes are copied through host memory"),
    VariableRule("NCCL_ALGO", "note", (), "NCCL's own choice by message size is disabled"),
    VariableRule("NCCL_PROTO", "note", (), "NCCL's own choice is disabled; a wrong one corrupts data on some hardware"),
    VariableRule("NCCL_DEBUG", "note", ("info", "trace"), "NCCL writes long logs; use it to find a fault only"),
    VariableRule("TORCH_NCCL_BLOCKING_WAIT", "warning", _ON, "the host waits for every collective: nothing overlaps"),
    VariableRule("TORCH_DISTRIBUTED_DEBUG", "warning", ("detail",), "every collective is checked by another one first"),
    VariableRule("CUDA_LAUNCH_BLOCKING", "warning", _ON, "the host waits for every kernel: nothing overlaps"),
    VariableRule(
        "CUDA_DEVICE_MAX_CONNECTIONS", "note", ("1",), "all streams share one queue, which hinders ZeRO's overlap"
    ),
    VariableRule("PYTORCH_NO_CUDA_MEMORY_CACHING", "warning", (), "the driver allocates every tensor: very slow steps"),
    VariableRule(
        "OMP_NUM_THREADS",
        "warning",
        ("1",),
        "CPU Adam runs on one thread per rank (torchrun sets it by default)",
        fix="set it to the cores per rank",
    ),
    VariableRule("DS_SKIP_CUDA_CHECK", "note", ("1",), "DeepSpeed compiles ops for another CUDA version than torch's"),
    VariableRule("DS_ACCELERATOR", "warning", ("cpu",), "DeepSpeed uses the CPU instead of the GPUs"),
)
"""NCCL's by its user guide ("Environment Variables"), torch's by torch/csrc/distributed/c10d and c10/cuda, DeepSpeed's
by accelerator/real_accelerator.py and ops/op_builder/builder.py of 0.19.8. Peer access of the RTX 4090: DeepSpeed issue
4433, NVIDIA/nccl-tests issue 117."""


def environment(
    environment: Mapping[str, str], nodes: Sequence[HostfileNode], graphics: Graphics | None = None
) -> Findings:
    """Variables with a harmful value."""
    several = not graphics or len(graphics.gpus) != 1 or bool(nodes)
    has_nvlink = not graphics or not graphics.gpus or any(gpu.nvlinks for gpu in graphics.gpus)
    found = [
        rule
        for rule in RULES
        if rule.applies_to(environment.get(rule.name, ""))
        and (several or not rule.several_gpus)
        and rule.has_nvlink in (None, has_nvlink)
    ]
    for rule in found:
        yield DoctorFinding(
            rule.status, f"{rule.name}={environment[rule.name][:40]}", rule.why, rule.fix or f"unset {rule.name}"
        )
    if not found:
        yield ok("no variable slows down NCCL, CUDA or torch")


def visible_devices(environment: Mapping[str, str], graphics: Graphics) -> Findings:
    """CUDA_VISIBLE_DEVICES names existing GPUs."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    count = len(graphics.gpus)
    if value is None or not count:
        return
    named = [part.strip() for part in value.split(",")]
    absent = [part for part in named if part.isdigit() and int(part) >= count]
    if not value.strip() or named[0] == "-1":
        yield problem(f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU", "torch finds none", "unset it")
    elif absent:
        yield problem(
            f"CUDA_VISIBLE_DEVICES={value[:40]} names GPU {absent[0]}, which does not exist ({count} do)",
            "CUDA ignores all GPUs from the first absent one on",
            "unset CUDA_VISIBLE_DEVICES, or use the numbers of nvidia-smi -L",
        )
    elif len(named) < count:
        yield note(f"CUDA_VISIBLE_DEVICES={value[:40]}: {len(named)} of {count} GPUs", "the others are hidden")


def interfaces(environment: Mapping[str, str], host: Host, nodes: Sequence[HostfileNode]) -> Findings:
    """The network interfaces that NCCL and Gloo must use exist. NCCL accepts prefixes, and exclusions after ^."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if host.interfaces else ():
        value = environment.get(name, "")
        chosen = [part.lstrip("=") for part in value.split(",") if part]
        exists = any(
            own.startswith(part) if name.startswith("NCCL") else own == part
            for part in chosen
            for own in host.interfaces
        )
        if value and not value.startswith("^") and not exists:
            yield problem(
                f"{name}={value[:40]} is no interface of this machine",
                "the start of a job fails",
                f"unset {name}, or name one of {', '.join(host.interfaces[:6])}",
            )
        elif nodes and chosen == ["lo"]:
            yield problem(f"{name}=lo", "the loopback interface does not reach other nodes", f"unset {name}")


def architectures(environment: Mapping[str, str], graphics: Graphics) -> Findings:
    """TORCH_CUDA_ARCH_LIST, for which ops are compiled, includes the GPUs."""
    listed = environment.get("TORCH_CUDA_ARCH_LIST", "")
    numbers = re.findall(r"(\d+)\.(\d)(\+PTX)?", listed)
    for gpu in graphics.gpus if numbers else ():
        if gpu.capability is None:
            continue
        major, minor = gpu.capability
        # Code of an earlier minor version of the same major version runs; PTX of any earlier version is translated.
        runs = any(
            (int(first) == major and int(second) <= minor) or (ptx and (int(first), int(second)) <= (major, minor))
            for first, second, ptx in numbers
        )
        if not runs:
            yield problem(
                f"TORCH_CUDA_ARCH_LIST={listed[:60]} leaves out the {gpu.name} ({major}.{minor})",
                'compiled ops end with "no kernel image is available"',
                "unset TORCH_CUDA_ARCH_LIST",
            )
            return


def allocator(environment: Mapping[str, str], graphics: Graphics) -> Findings:
    """The caching allocator uses expandable segments."""
    value = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if graphics.gpus and "expandable_segments:True" not in value:
        yield note(
            "expandable segments are off",
            "fragmentation can cost a quarter more memory",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
