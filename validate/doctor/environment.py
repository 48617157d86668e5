"""Environment variables that slow training down or break it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...estimators.phrase import phrase
from .findings import DoctorFinding, Findings, FindingStatus, ok, problem
from .gpus import Graphics
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
    """It applies where NVLink is seen, or where none is; None for both."""

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
    VariableRule(
        "NCCL_IB_DISABLE",
        "warning",
        _ON,
        "nodes communicate over TCP although InfiniBand or RoCE may exist; on one node it changes nothing",
    ),
    VariableRule("TORCH_NCCL_BLOCKING_WAIT", "warning", _ON, "the host waits for every collective: nothing overlaps"),
    VariableRule("TORCH_DISTRIBUTED_DEBUG", "warning", ("detail",), "every collective is checked by another one first"),
    VariableRule("CUDA_LAUNCH_BLOCKING", "warning", _ON, "the host waits for every kernel: nothing overlaps"),
    VariableRule("PYTORCH_NO_CUDA_MEMORY_CACHING", "warning", (), "the driver allocates every tensor: very slow steps"),
    VariableRule(
        "OMP_NUM_THREADS",
        "warning",
        ("1",),
        "CPU Adam runs on one thread per rank (torchrun sets it by default)",
        fix="set it to the cores per rank",
    ),
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
    has_nvlink = graphics is not None and any(gpu.nvlinks for gpu in graphics.gpus)
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
    absent = [part for part in value.split(",") if part.strip().isdigit() and int(part) >= count]
    if not value.strip() or value.strip().startswith("-1"):
        yield problem(
            phrase("CUDA_VISIBLE_DEVICES={value} hides every GPU", value=f"{value!r}"), "torch finds none", "unset it"
        )
    elif absent:
        yield problem(
            phrase(
                "CUDA_VISIBLE_DEVICES={value} names GPU {absent}, which does not exist ({count} do)",
                value=value[:40],
                absent=absent[0],
                count=count,
            ),
            "CUDA ignores all GPUs from the first absent one on",
            "unset CUDA_VISIBLE_DEVICES, or use the numbers of nvidia-smi -L",
        )
