"""This process as one rank of a simulated cluster: torch, DeepSpeed and transformers patched for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from ...estimators.hardware import Cluster
from ..recording.allocation_classifier import AllocationClassifier
from ..recording.ledger import Ledger
from ..recording.phases import PhaseRecorder
from ..recording.schedule import ScheduleRecorder
from . import attention, collectives, kernels, patches
from .device import DEVICE_TYPE, register

_HOPPER = 9.0
"""Compute capability assumed for a GPU without one (AMD's, the CPU)."""


def simulated_recorder(on_phase: Callable[[str], object]) -> PhaseRecorder:
    """Register the simulated GPU with torch, and a recorder of what happens on it."""
    register()
    classifier = AllocationClassifier()
    ledger = Ledger(DEVICE_TYPE, classifier.classify)
    schedule = ScheduleRecorder(lambda: ledger.stream, ledger.is_pinned)
    return PhaseRecorder(ledger, classifier, schedule, on_phase)


def simulate(cluster: Cluster, rank: int, ledger: Ledger, schedule: ScheduleRecorder) -> Any:
    """Patch the process. Returns the simulated accelerator. Nothing can be undone: the process ends with its answer."""
    patches.before_deepspeed()
    # Before DeepSpeed: its `init_distributed` takes over a process group that exists.
    collectives.join(rank, cluster.world_size, cluster.gpus_per_node)
    os.environ["DS_ACCELERATOR"] = "cpu"  # until the simulated one is set: no search for vendors' libraries
    from deepspeed.accelerator import set_accelerator

    from .accelerator import SimulatedAccelerator

    accelerator = SimulatedAccelerator(
        ledger, schedule, device_count=cluster.gpus_per_node, memory_bytes=cluster.gpu.memory_bytes
    )
    set_accelerator(accelerator)
    import deepspeed

    patches.after_deepspeed()
    if cluster.gpu.is_cpu:
        patches.count_written_buckets()
    kernels.install(ledger, schedule)
    deepspeed.init_distributed(dist_backend="fake")
    attention.install(round((cluster.gpu.compute_capability or _HOPPER) * 10))
    attention.register_with_transformers()
    patches.patch_torch(ledger)
    patches.patch_transformers()
    collectives.silence_comparisons()
    collectives.record(schedule, cluster.gpus_per_node)
    # Before the engine registers these methods as hooks.
    patches.record_hooks(schedule)
    # Dispatch modes do not apply to the backward thread of a device.
    torch.autograd.set_multithreading_enabled(False)
    return accelerator
