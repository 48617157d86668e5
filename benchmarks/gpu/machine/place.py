"""Where measurements are made: what a measuring process knows about its machine and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.estimators.hardware import Cluster, Gpu
from ds_advise.probes.machine import visible_gpus

GPUS_PER_NODE = 8
"""Of the jobs that run with one rank."""


class NotPossibleError(Exception):
    """What is to be measured does not exist on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One machine, and what is known of it before a measurement."""

    device: Literal["cuda", "cpu"]
    limit_s: float
    """How long the measurement may take in all."""
    ram_bytes: int | None
    """Host memory that may be used; None: what the machine says."""
    nvme_folder: str
    """A folder on the drive that is measured and swapped to."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """DeepSpeed's extensions that did not compile here, with the reason."""

    def cluster(self, world_size: int = 1) -> Cluster:
        """`world_size` devices like this machine's, `GPUS_PER_NODE` in a node."""
        if self.device == "cpu":
            return replace(cpu_cluster(world_size, None), nvme_path=self.nvme_folder, nvme_bytes_per_node=10**10)
        return replace(
            cluster_of(visible_gpus()[0], world_size),
            host_memory_bytes_per_node=self.ram_bytes,
            nvme_path=self.nvme_folder,
            nvme_bytes_per_node=10**12,
        )


def cluster_of(gpu: Gpu, world_size: int) -> Cluster:
    """A job's machines, made of GPUs of one kind."""
    per_node = min(world_size, GPUS_PER_NODE)
    return Cluster(nodes=world_size // per_node, gpus_per_node=per_node, gpu=gpu)
