"""One rank of a tiny model under `deepspeed.initialize`, stage after stage; prints what the engine allocated as JSON.

The environment tells rank, world size and port, as a launcher would.
"""

from __future__ import annotations

import json
import os
import sys

import deepspeed
import torch

SHAPES = [(7, 11), (13,), (5, 3, 2), (17, 3), (1,), (29,)]
SUB_GROUP_SIZES = (30, 10**9)
SECOND_GROUP = (1, 4)
"""Tensors in a parameter group of their own."""


class Odd(torch.nn.Module):
    """Tensors whose sizes divide by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES])


def engine(stage: int, sub_group_size: int, *, apart: bool = False) -> deepspeed.DeepSpeedEngine:
    """An engine with one parameter group, or with two."""
    model = Odd()
    tensors = list(enumerate(model.parameters()))
    second = [tensor for index, tensor in tensors if apart and index in SECOND_GROUP]
    first = [tensor for index, tensor in tensors if not (apart and index in SECOND_GROUP)]
    return deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW([{"params": group} for group in (first, second) if group]),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage, "sub_group_size": sub_group_size},
        },
    )[0]


def flat_sizes(stage: int, *, apart: bool) -> dict[str, object]:
    optimizer = engine(stage, SUB_GROUP_SIZES[-1], apart=apart).optimizer
    return {
        "flat": [group.numel() for group in optimizer.bit16_groups_flat],
        "partition": [group.numel() for group in optimizer.single_partition_of_fp32_groups],
        "touched": sum(tensor.numel() for group in optimizer.params_in_partition for tensor in group),
    }


def shard_sizes(sub_group_size: int) -> dict[str, object]:
    run = engine(3, sub_group_size)
    return {
        "shards": [tensor.ds_tensor.numel() for tensor in run.module.parameters()],
        "sub_groups": [tensor.numel() for tensor in run.optimizer.fp32_partitioned_groups_flat],
        "gradients": run.optimizer.grad_partitions_flat_buffer.numel(),
    }


def main() -> None:
    deepspeed.init_distributed("gloo")
    answer = {f"stage {stage}": flat_sizes(stage, apart=False) for stage in (1, 2)}
    answer["two groups"] = flat_sizes(2, apart=True)
    answer |= {f"stage 3, sub-groups of {size}": shard_sizes(size) for size in SUB_GROUP_SIZES}
    print("SIZES " + json.dumps(answer), flush=True)
    torch.distributed.barrier()
    # Some gloo builds abort while they tear the group down, after the output.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
