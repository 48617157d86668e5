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
    """Replaces the rank that DeepSpeed's optimizer of stages 1 and 2 asks for, where no rank is named.

    rank: the rank whose partition is simulated. The first optimizer decides; the others have its rank's partition too.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank or 0
        self._chooses = rank is None
        self._group: Any = None
        self._partition = 0

    def install(self) -> None:
        if not self._chooses:
            return
        module: Any = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
        optimizer_class = module.DeepSpeedZeroOptimizer
        module.dist = _Communication(module.dist, self)
        init = optimizer_class.__init__

        def partition(own: Any, optimizer: Any, *arguments: Any, **options: Any) -> None:
            if self._chooses and not options.get("has_moe_layers"):  # experts have groups of their own
                self._choose([group["params"] for group in optimizer.param_groups], options)
            init(own, optimizer, *arguments, **options)

        optimizer_class.__init__ = partition

    def _choose(self, groups: list[Any], options: dict[str, Any]) -> None:
        offload = options.get("offload_optimizer_config")
        reduces_at_end = not options.get("partition_grads", True) and not options.get("overlap_comm")
        ranks = torch_distributed.get_process_group_ranks(options["dp_process_group"])
        self._chooses, self._group = False, options["dp_process_group"]
        self._partition = fullest_rank(
            groups,
            len(ranks),
            offloads=offload is not None and offload.device != "none",
            bucket_size=int(options["reduce_bucket_size"]) if reduces_at_end else None,
        )
        self.rank = ranks[self._partition]

    def partition_in(self, group: Any) -> int | None:
        """The number of the simulated partition in a group; None for a group that is not partitioned."""
        return self._partition if group is not None and group is self._group else None


class _Communication:
    """DeepSpeed's `dist` with the rank of the fullest partition in the group that has the optimizer's partitions."""

    def __init__(self, communication: Any, fullest: FullestPartition) -> None:
        self._communication = communication
        self._fullest = fullest

    def get_rank(self, group: Any = None) -> int:
        chosen = self._fullest.partition_in(group)
        return int(self._communication.get_rank(group=group)) if chosen is None else chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communication, name)


def fullest_rank(groups: list[Any], world_size: int, *, offloads: bool, bucket_size: int | None = None) -> int:
    """The rank that keeps most gradients of the trainable parameters of each optimizer group; the last of equal ones.

    The tensors of a group are laid end to end and cut into equal pieces. A gradient stays whole on every rank whose
    piece touches it, so the rank that touches the most elements is the fullest. With the optimizer offloaded, gradients
    leave at once, through a buffer of the largest slice of a tensor inside the piece: the rank with the largest slice
    is the fullest.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`copy_grads_in_partition`,
        `temp_grad_buffer_for_gpu_offload`).
    Not covered: `round_robin_gradients`, which deals the tensors out.

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
