"""Partitioning of parameters by ZeRO: sizes in elements, exactly as the engine allocates them.

Stages 1 and 2 concatenate the trainable tensors of a parameter group, pad the end and cut the result into N equal
pieces, regardless of tensor boundaries. Stage 3 cuts every tensor by itself.
`tests/estimators/memory/test_partition.py` compares each function here with `deepspeed.initialize` on 2 and 4 ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

NCCL_START_ALIGNMENT = 2
"""Alignment of partitions, in elements: 4 bytes in fp16 (stage_1_and_2.py `nccl_start_alignment_factor`)."""

SWAP_MIN_BYTES = 1 << 20
"""Minimum size of swapped tensors (deepspeed 0.19.8 swap_tensor/constants.py MIN_AIO_BYTES, aio block_size)."""


def align_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def flat_group_numel(numel: int, world_size: int) -> int:
    """Return the size of a parameter group's flat buffer in stages 1 and 2: ceil(numel / 2N) 2N elements. Source:
    deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `flatten_dense_tensors_aligned`."""
    return align_up(numel, NCCL_START_ALIGNMENT * world_size)


def shard_numel(numel: int, world_size: int) -> int:
    """Return the size of one rank's shard of one tensor in stage 3: ceil(numel / N) elements. Source: deepspeed 0.19.8
    runtime/zero/partition_parameters.py `_partition_param`."""
    return -(-numel // world_size)


def sub_groups(shards: tuple[int, ...], sub_group_size: int) -> tuple[range, ...]:
    """Return stage 3's sub-groups, as ranges of tensors. A sub-group closes with the tensor that reaches
    `sub_group_size`, so it may exceed it by one shard. Source: deepspeed 0.19.8 runtime/zero/stage3.py
    `_create_fp16_sub_groups`."""
    # The usual case: the default of 1e9 is larger than a rank's shards, and a model has thousands of tensors.
    if sub_group_size >= sum(shards):
        return (range(len(shards)),)
    groups, first, filled = [], 0, 0
    for index, shard in enumerate(shards):
        filled += shard
        if filled >= sub_group_size or index == len(shards) - 1:
            groups.append(range(first, index + 1))
            first, filled = index + 1, 0
    return tuple(groups)


class BucketFills(NamedTuple):
    """Contents of the gradient bucket during the backward pass (last tensor first), in elements."""

    flushed: int
    """Content of a bucket that is reduced before the first tensor's gradient is made: the bucket with the largest sum
    of `flushed` and `unfit`; 0 if there is none."""
    unfit: int
    """The gradient that does not fit into the bucket of `flushed` and causes its reduction."""
    pending: int
    """Content of the bucket when the first tensor's gradient is made."""
    waits: bool
    """Whether the first tensor's gradient does not fit, so that the bucket is reduced while it waits."""
    final: int
    """Content of the last bucket."""
    second: int
    """Elements with gradients when the second bucket is reduced; 0 if the first tensor's is in it."""


def bucket_fills(numels: Sequence[int], bucket_size: int, is_expert: Sequence[bool] = ()) -> BucketFills:
    """Return the bucket's contents. A tensor larger than the bucket is reduced alone, in place.

    apart: for each tensor, whether it is shared by a different set of ranks (experts). At stage 3 a bucket holds one
    kind only. If empty, all tensors are of one kind.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, stage3.py `reduce_independent_p_g_buckets_and_remove_grads`.
    """
    flushed = unfit = pending = count = reached = second = 0
    kinds, kind = reversed(is_expert[1:]) if is_expert else repeat(False), False
    for numel, other in zip(reversed(numels[1:]), kinds, strict=False):
        changes, kind = pending > 0 and other != kind, other
        if pending + numel > bucket_size or changes:
            if pending + numel > flushed + unfit:
                flushed, unfit = pending, numel
            pending, count = 0, count + 1
            second = reached if count == 2 else second
        # A larger tensor never enters the bucket: the engine reduces it in place (`extra_large_param_to_reduce`).
        pending += numel if numel <= bucket_size else 0
        reached += numel
    first = numels[0] if numels[0] <= bucket_size else 0
    waits = pending + numels[0] > bucket_size or kind
    final = first if waits else pending + first
    return BucketFills(flushed=flushed, unfit=unfit, pending=pending, waits=waits, final=final, second=second)


EXPERT_GROUP_NUMEL = 178_956_971
"""Maximum size of a parameter group of experts, in elements (deepspeed 0.19.8 moe/utils.py
`split_params_into_different_moe_groups_for_optimizer`). A larger tensor is a group of its own."""


class FlatGroup(NamedTuple):
    """A parameter group of stages 1 and 2, flattened and partitioned separately."""

    tensors: Sequence[int]
    """Indices among the trainable tensors."""
    numel: int
    ranks: int
    """Number of ranks that share the group: all, or those with the same experts."""

    @property
    def partition(self) -> int:
        """Elements of one rank's partition."""
        return self.numel // self.ranks


def flat_groups(
    numels: Sequence[int],
    experts: Sequence[bool],
    world_size: int,
    autoep_size: int,
    without_decay: Sequence[bool] = (),
) -> tuple[FlatGroup, ...]:
    """Return one group of all tensors, or two: first those with weight decay. Under AutoEP experts have groups of their
    own, after the others. Source: deepspeed 0.19.8 runtime/engine.py `_configure_zero_optimizer`, moe/utils.py
    `configure_moe_param_groups`.

    without_decay: for each tensor, whether it is in the second group (`parameter_groups`); empty for one group.
    """
    if autoep_size == 1:
        groups: list[tuple[Sequence[int], int]] = [(range(len(numels)), world_size)]
        if any(without_decay):
            kinds = (tuple(i for i, each in enumerate(without_decay) if each == kind) for kind in (False, True))
            groups = [(tensors, world_size) for tensors in kinds if tensors]
        return _flattened(numels, groups)
    dense = tuple(index for index, expert in enumerate(experts) if not expert)
    expert_groups, ranks = list[list[int]](), world_size // autoep_size
    # Forces a group of its own for the first expert.
    filled = EXPERT_GROUP_NUMEL + 1
    for index in (index for index, expert in enumerate(experts) if expert):
        if filled + numels[index] > EXPERT_GROUP_NUMEL:
            expert_groups.append([])
            filled = 0
        expert_groups[-1].append(index)
        filled += numels[index]
    return _flattened(numels, [(dense, world_size), *((tuple(tensors), ranks) for tensors in expert_groups)])


def _flattened(numels: Sequence[int], groups: Iterable[tuple[Sequence[int], int]]) -> tuple[FlatGroup, ...]:
    return tuple(
        FlatGroup(tensors=tensors, numel=flat_group_numel(sum(numels[i] for i in tensors), ranks), ranks=ranks)
        for tensors, ranks in groups
    )


class RankLoad(NamedTuple):
    """Tensors in one rank's flat partition (stages 1 and 2), in elements."""

    touched: int
    """Total elements of tensors at least partly in the partition; their full gradients stay on this rank."""
    slice: int
    """Largest piece of one tensor inside the partition."""
    tensors: tuple[int, ...]
    """Indices among the trainable tensors."""


def rank_loads(numels: Sequence[int], groups: Sequence[FlatGroup]) -> tuple[RankLoad, ...]:
    """Return the load of each rank for tensors laid end to end, group by group. A group of fewer ranks exists once for
    each such set of ranks; neighbouring ranks have the same place in theirs. Source: deepspeed 0.19.8
    runtime/zero/stage_1_and_2.py `get_partition_info`, `copy_grads_in_partition`; utils/groups.py
    `_get_expert_parallel_ranks`."""
    ranks = groups[0].ranks
    touched, largest, tensors = [0] * ranks, [0] * ranks, [list[int]() for _ in range(ranks)]
    for group in groups:
        partition, neighbours, start = group.partition, ranks // group.ranks, 0
        for index in group.tensors:
            end = start + numels[index]
            # A tensor may lie in several partitions, and each of their ranks keeps its whole gradient.
            for part in range(start // partition, -(-end // partition)):
                piece = min(end, (part + 1) * partition) - max(start, part * partition)
                for rank in range(part * neighbours, (part + 1) * neighbours):
                    touched[rank] += numels[index]
                    largest[rank] = max(largest[rank], piece)
                    tensors[rank].append(index)
            start = end
    return tuple(
        RankLoad(touched=whole, slice=piece, tensors=tuple(indices))
        for whole, piece, indices in zip(touched, largest, tensors, strict=True)
    )


def reductions_after_backward(
    numels: Sequence[int], groups: Sequence[FlatGroup], load: RankLoad, bucket_size: int, *, idle: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Yield, for each reduction of stage 1 without overlap_comm on one rank, the elements of gradients outside the
    bucket while it is reduced, those that are reduced, and those outside the bucket after it.

    All gradients are alive after the backward pass. They are reduced group by group, from the first tensor on. Each
    moves into the bucket, unless it is larger, and the rank's own ones from there into a buffer of all of them. The
    first `idle` tensors have no gradients.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `reduce_gradients`,
    `reduce_independent_p_g_buckets_and_remove_grads`, `copy_grads_in_partition`.
    """
    buckets, filled = [list[int]()], 0
    for index in (index for group in groups for index in group.tensors if index >= idle):
        if filled + numels[index] > bucket_size:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += numels[index]
    own, alive, owned = set(load.tensors), sum(numels[idle:]), 0
    for bucket in filter(None, buckets):
        reduced, has_own = sum(numels[index] for index in bucket), not own.isdisjoint(bucket)
        is_larger = reduced > bucket_size
        alive -= 0 if is_larger else reduced
        before, owned = owned, load.touched if has_own else owned
        yield alive + before, reduced, alive + owned
        alive -= reduced if is_larger and has_own else 0
