"""Which rank to be when the question names none: the one whose GPU is the fullest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ds_configs.read import autoep_size_in, autotp_size_in
from ...estimators.errors import DsAdviseError
from ...estimators.memory.trainable import shard_tensors, tensor_set
from ...estimators.models import expert_parallel, tensor_parallel
from ...estimators.models.families import shape_from_config
from ...estimators.workload import Workload


def fullest_rank(
    config: Mapping[str, Any], model: Mapping[str, Any] | None, workload: Workload, world_size: int
) -> int:
    """The rank whose peak is the highest of all, by what distinguishes ranks before anything runs.

    Stages 1 and 2 lay the trainable tensors end to end and cut equal pieces, so a tensor's gradient stays whole on
    every rank whose piece touches it: the rank that touches the most elements is the fullest. With the optimizer
    offloaded, gradients leave at once, by way of a buffer of the largest slice of a tensor inside the piece: there the
    rank with the largest slice is. Of equals the later one, whose gradients come earlier in the backward pass, beside
    more activations. Stages 0 and 3 treat all ranks alike, padding apart: rank 0.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`copy_grads_in_partition`,
        `temp_grad_buffer_for_gpu_offload`).
    Where ranks split layers (AutoTP), the first of a group answers for all of it.

    Not covered: `round_robin_gradients`, which deals the tensors out; a model whose tensors only building it shows (a
    module of the user's own, a family unknown to the estimators): rank 0.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") not in (1, 2) or model is None:
        return 0
    try:
        split_by = autotp_size_in(config)
        part = tensor_parallel.of_rank(shape_from_config(model, name="model"), split_by)
        part = expert_parallel.of_rank(part, autoep_size_in(config))
        loads = shard_tensors(tensor_set(part, workload), world_size // split_by).loads
    except DsAdviseError:
        return 0
    offload = zero.get("offload_optimizer")
    offloads = isinstance(offload, Mapping) and offload.get("device", "none") != "none"

    def fullness(rank: int) -> tuple[int, int, int]:
        load = loads[rank]
        return (load.slice, load.touched, rank) if offloads else (load.touched, load.slice, rank)

    return split_by * max(range(len(loads)), key=fullness)
