"""Environment variables that slow training down or break it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .findings import Findings, ok, warning
from .gpus import Graphics
from .nodes import HostfileNode

_ON = ("1", "true", "on", "yes", "y")
"""Values that NCCL, torch and CUDA accept for yes, in lower case."""


class VariableRule(NamedTuple):
    """Values of a variable that are reported."""

    values: tuple[str, ...]
    """In lower case; without any, every value counts that is not empty."""
    why: str
    fix: str = ""
    """"" for `unset NAME`."""


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
"""NCCL's by its user guide ("Environment Variables"), torch's by torch/csrc/distributed/c10d and c10/cuda, DeepSpeed's
by accelerator/real_accelerator.py and ops/op_builder/builder.py of 0.19.8. Peer access of the RTX 4090: DeepSpeed issue
4433, NVIDIA/nccl-tests issue 117."""

_BETWEEN_GPUS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def environment(
    environment: Mapping[str, str], nodes: Sequence[HostfileNode], graphics: Graphics | None = None
) -> Findings:
    """Variables with a harmful value."""
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
