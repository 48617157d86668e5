"""The partition of the rank with the fullest GPU, in the process of rank 0.

The script runs as rank 0, which logs, evaluates and saves. Under ZeRO stages 1 and 2 another rank may keep more
gradients: DeepSpeed's optimizer is then given that rank's partition.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed as torch_distributed

from ...estimators.memory.partition import FlatGroup, flat_group_numel, rank_loads, reductions_after_backward


class FullestPartition:
    """Replaces the rank that DeepSpeed's optimizer of stages 1 and 2 asks for.

    rank: the rank whose partition is simulated; None before the fullest is known.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self._chooses = rank is None

    def install(self) -> None:
        module: Any = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
        optimizer_class = module.DeepSpeedZeroOptimizer
        module.dist = _Communication(module.dist, self)
        init = optimizer_class.__init__

        def partition(own: Any, optimizer: Any, *arguments: Any, **options: Any) -> None:
            if self._chooses and _partitions_over_all(options):
                groups = [group["params"] for group in optimizer.param_groups]
                offload = options.get("offload_optimizer_config")
                offloads = offload is not None and offload.device != "none"
                reduces_at_end = not options.get("partition_grads", True) and not options.get("overlap_comm")
                bucket_size = int(options["reduce_bucket_size"]) if reduces_at_end else None
                ranks = torch_distributed.get_world_size()
                self.rank = fullest_rank(groups, ranks, offloads=offloads, bucket_size=bucket_size)
            init(own, optimizer, *arguments, **options)

        optimizer_class.__init__ = partition


class _Communication:
    """DeepSpeed's `dist` with the rank of the fullest partition in groups of all ranks."""

    def __init__(self, communication: Any, fullest: FullestPartition) -> None:
        self._communication = communication
        self._fullest = fullest

    def get_rank(self, group: Any = None) -> int:
        whole = torch_distributed.get_world_size()
        if self._fullest.rank is not None and self._communication.get_world_size(group=group) == whole:
            return self._fullest.rank
        return int(self._communication.get_rank(group=group))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communication, name)


def _partitions_over_all(options: dict[str, Any]) -> bool:
    """Whether every rank has one partition: without pipeline stages and experts."""
    ranks = torch_distributed.get_world_size(options.get("dp_process_group"))
    return ranks == torch_distributed.get_world_size() and not options.get("has_moe_layers")


def fullest_rank(groups: list[Any], world_size: int, *, offloads: bool, bucket_size: int | None = None) -> int:
    """The rank that keeps most gradients of the trainable parameters of each optimizer group; the last of equal ones.

    A gradient stays whole on every rank whose partition touches it, so the rank that touches the most elements is the
    fullest; with the optimizer offloaded, the one with the largest slice of a tensor (see `dry_run.run.fullest_rank`).

    bucket_size: of stage 1 without overlap_comm, where the fullest is the rank that keeps its gradients while most
        others are alive; otherwise None.
    """
    numels: list[int] = []
    flat: list[FlatGroup] = []
    for group in groups:
        sizes = [parameter.numel() for parameter in group if parameter.requires_grad]
        if sizes:
            tensors = range(len(numels), len(numels) + len(sizes))
            flat.append(FlatGroup(tensors=tensors, numel=flat_group_numel(sum(sizes), world_size), ranks=world_size))
            numels += sizes
    loads = rank_loads(numels, flat) if flat else ()

    def fullness(number: int) -> tuple[int, int, int, int]:
        load, most = loads[number], 0
        if bucket_size is not None and not offloads:
            most = max(after for _, _, after in reductions_after_backward(numels, flat, load, bucket_size))
        by_load = (load.slice, load.touched) if offloads else (load.touched, load.slice)
        return (most, *by_load, number)

    return max(range(len(loads)), key=fullness, default=0)
