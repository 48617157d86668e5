"""The environment variables that a plan needs, and those of the user's that cost speed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...ds_configs.launch_commands import ALLOCATOR_SETTING
from ...probes.this_machine import cores_per_rank
from .request import LaunchRequest

_NCCL_SWITCHES = {
    "NCCL_P2P_DISABLE": "GPUs of a node then exchange everything through host memory: 28 % fewer samples per second "
    "where it was measured (StarCoder, ZeRO-3, 2 nodes of 8 A800)",
    "NCCL_SHM_DISABLE": "without P2P as well even a node's own GPUs talk over the network: 36 % fewer samples per "
    "second in the same measurement, and nothing lost where P2P works",
    "NCCL_IB_DISABLE": "nodes then talk over TCP even where there is InfiniBand or RoCE",
}
"""Variable -> what its 1 does."""

_OFF = ("", "0", "false", "no")


def environment_of(request: LaunchRequest, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that are set for the ranks; what the user's `environment` has already is left alone.

    DS_ACCELERATOR, CUDA_VISIBLE_DEVICES: training on the CPU does not touch a GPU, whatever the user has set.
    """
    forced = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""} if request.device == "cpu" else {}
    wanted = _wanted(request)
    if "PYTORCH_ALLOC_CONF" in environment:  # torch >= 2.9 reads it too
        wanted.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    return forced | {name: value for name, value in wanted.items() if name not in environment}


def kept_settings(request: LaunchRequest, environment: Mapping[str, str] = os.environ) -> list[str]:
    """A phrase for each variable of the user's that stays although the plan wants another value."""
    return [
        f"{name}={environment[name]} (instead of {value})"
        for name, value in _wanted(request).items()
        if environment.get(name, value) != value
    ]


def _wanted(request: LaunchRequest) -> dict[str, str]:
    """What the plan needs.

    PYTORCH_CUDA_ALLOC_CONF: the setting that the memory figures rest on.
    OMP_NUM_THREADS: an equal part of the cores for each rank where the CPU computes, that is on the CPU and for CPU
    Adam. torchrun would set 1, with which CPU Adam takes as many times longer as there are idle cores.
    """
    zero = request.run.config.get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
    offloads_optimizer = isinstance(offload, dict) and offload.get("device", "none") != "none"
    on_cpu = request.device == "cpu"
    wanted = {} if on_cpu else dict([ALLOCATOR_SETTING.split("=")])
    if on_cpu or offloads_optimizer:
        wanted["OMP_NUM_THREADS"] = str(cores_per_rank(request.run.cluster.gpus_per_node))
    return wanted


def costly_switches(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A sentence for each of NCCL's switches that is set and makes communication slower."""
    return [
        f"{name}={environment[name]} is set: {effect}; unset it unless NCCL fails without"
        for name, effect in _NCCL_SWITCHES.items()
        if environment.get(name, "").lower() not in _OFF
    ]
