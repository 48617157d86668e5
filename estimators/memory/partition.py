"""How ZeRO cuts parameters: sizes in elements, exactly as the engine allocates them.

Stages 1 and 2 lay the trainable tensors of a parameter group end to end, pad the end and cut N equal pieces, wherever a
tensor may lie. Stage 3 cuts every tensor by itself. `tests/estimators/memory/test_partition.py` compares each function
here with `deepspeed.initialize` on 2 and 4 ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NCCL_START_ALIGNMENT = 2
"""Elements: a partition starts on a 4-byte boundary in fp16 (stage_1_and_2.py `nccl_start_alignment_factor`)."""


SWAP_MIN_BYTES = 1 << 20
"""A smaller tensor is not swapped to NVMe (deepspeed 0.19.8 swap_tensor/constants.py MIN_AIO_BYTES, aio block_size)."""


def align_up(size: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple


def flat_group_numel(numel: int, world_size: int) -> int:
    """Elements of a parameter group's flat buffer in stages 1 and 2: ceil(numel / 2N) 2N.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `flatten_dense_tensors_aligned`.
    """
    return align_up(numel, NCCL_START_ALIGNMENT * world_size)


def flat_partition_numel(numel: int, world_size: int) -> int:
    """Elements of one rank's partition of a group in stages 1 and 2 (padding included, equal on all ranks)."""
    return flat_group_numel(numel, world_size) // world_size


def shard_numel(numel: int, world_size: int) -> int:
    """Elements of one rank's shard of one tensor in stage 3: ceil(numel / N).

    Source: deepspeed 0.19.8 runtime/zero/partition_parameters.py `_partition_param`.
    """
    return -(-numel // world_size)


def sub_groups(shards: tuple[int, ...], sub_group_size: int) -> tuple[range, ...]:
    """Stage 3's sub-groups, which the optimizer steps one after the other, as ranges of tensors.

    A sub-group closes with the tensor that reaches `sub_group_size`, so it may exceed it by one shard.
    Source: deepspeed 0.19.8 runtime/zero/stage3.py `_create_fp16_sub_groups`.
    """
    if sub_group_size >= sum(shards):
        return (range(len(shards)),)
    groups, first, filled = [], 0, 0
    for index, shard in enumerate(shards):
        filled += shard
        if filled >= sub_group_size or index == len(shards) - 1:
            groups.append(range(first, index + 1))
            first, filled = index + 1, 0
    return tuple(groups)


def sub_group_numels(shards: tuple[int, ...], sub_group_size: int) -> tuple[int, ...]:
    """Elements of each sub-group on one rank."""
    return tuple(sum(shards[index] for index in group) for group in sub_groups(shards, sub_group_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFills:
    """How gradients, last tensor first, fill the bucket in which they are reduced; elements."""

    flushed: int
    """The largest content of a bucket that was reduced before the first tensor's gradient came, 0 for none."""
    pending: int
    """The bucket's content when that gradient comes."""
    waits: bool
    """That gradient does not fit any more, so the bucket is reduced while it waits."""
    final: int
    """The content of the last bucket."""


def bucket_fills(numels: Sequence[int], bucket_size: int) -> BucketFills:
    """A tensor larger than the bucket is reduced alone, in place.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py and stage3.py
        `reduce_independent_p_g_buckets_and_remove_grads`.
    """
    flushed = pending = 0
    for numel in reversed(numels[1:]):
        if pending + numel > bucket_size:
            flushed, pending = max(flushed, pending), 0
        pending += numel if numel <= bucket_size else 0
    first = numels[0] if numels[0] <= bucket_size else 0
    waits = pending + numels[0] > bucket_size
    return BucketFills(flushed=flushed, pending=pending, waits=waits, final=first if waits else pending + first)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """What one rank's flat partition (stages 1 and 2) meets of the tensors, in elements."""

    touched: int
    """Whole sizes of the tensors that lie at least partly in the partition; their full gradients stay on this rank."""
    slice: int
    """The largest piece of one tensor inside the partition."""


def rank_loads(numels: Sequence[int], world_size: int) -> tuple[RankLoad, ...]:
    """The load of each rank for tensors laid end to end in this order.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `get_partition_info`, `copy_grads_in_partition`.
    """
    partition = flat_partition_numel(sum(numels), world_size)
    touched, largest = [0] * world_size, [0] * world_size
    start = 0
    for numel in numels:
        end = start + numel
        for rank in range(start // partition, -(-end // partition)):
            piece = min(end, (rank + 1) * partition) - max(start, rank * partition)
            touched[rank] += numel
            largest[rank] = max(largest[rank], piece)
        start = end
    return tuple(RankLoad(touched=whole, slice=piece) for whole, piece in zip(touched, largest, strict=True))
