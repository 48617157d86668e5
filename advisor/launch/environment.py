"""The environment variables that a plan needs, and those of the user's that cost speed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...ds_configs.launch_commands import ALLOCATOR_SETTING
from ...probes.real_run.job import Device
from ...probes.this_machine import cpu_cores

_NCCL_SWITCHES = {
    "NCCL_P2P_DISABLE": "GPUs of a node then exchange everything through host memory: 28 % fewer samples per second "
    "where it "
    "was measured (StarCoder, ZeRO-3, 2 nodes of 8 A800)",
    "NCCL_SHM_DISABLE": "without P2P as well even a node's own GPUs talk over the network: 36 % fewer samples per "
    "second in "
    "the same measurement, and nothing lost where P2P works",
    "NCCL_IB_DISABLE": "nodes then talk over TCP even where there is InfiniBand or RoCE",
}
"""Variable -> what its 1 does."""

_OFF = ("", "0", "false", "no")


def plan_environment(
    *, device: Device, offloads_optimizer: bool, ranks_per_node: int, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables to set for the ranks; what the user has set already is left alone.

    PYTORCH_CUDA_ALLOC_CONF: the setting that the memory figures rest on (torch >= 2.9 also reads PYTORCH_ALLOC_CONF).
    OMP_NUM_THREADS: an equal part of the cores for each rank where the CPU computes, that is on the CPU and for CPU
                     Adam. torchrun would set 1, with which CPU Adam takes as many times longer as there are idle cores.
    DS_ACCELERATOR, CUDA_VISIBLE_DEVICES: training on the CPU does not touch a GPU.
    """
    there = os.environ if environment is None else environment
    wanted: dict[str, str] = {}
    if device == "cpu":
        wanted |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    elif "PYTORCH_ALLOC_CONF" not in there:
        name, _, value = ALLOCATOR_SETTING.partition("=")
        wanted[name] = value
    if device == "cpu" or offloads_optimizer:
        wanted["OMP_NUM_THREADS"] = str(max(1, cpu_cores() // ranks_per_node))
    forced = ("DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in wanted.items() if name not in there or name in forced}


def costly_switches(environment: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each of NCCL's switches that is set and makes communication slower."""
    there = os.environ if environment is None else environment
    return [
        f"{name}={there[name]} is set: {what}; unset it unless NCCL fails without"
        for name, what in _NCCL_SWITCHES.items()
        if there.get(name, "").lower() not in _OFF
    ]
