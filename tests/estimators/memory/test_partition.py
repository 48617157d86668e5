"""Partition sizes: arithmetic against the real engine on 2 and 4 ranks, and what must always hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.memory.partition import (
    BucketFills,
    bucket_fills,
    flat_group_numel,
    flat_groups,
    rank_loads,
    shard_numel,
    sub_groups,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.training_scripts.forked_ranks import run_ranks

SCRIPT = Path(__file__).with_name("partition_sizes.py")
NUMELS = [77, 13, 30, 51, 1, 29]
"""Elements of the tensors in the script."""


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def allocated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `deepspeed.initialize` allocated on each rank of 2 and of 4."""
    world_size, folder = request.param, tmp_path_factory.mktemp("ranks")
    # Another local size keeps DeepSpeed from compiling its shared-memory collectives.
    logs = run_ranks(SCRIPT, [], world_size, folder, LOCAL_SIZE="1")
    answers = []
    for log in logs:
        lines = [line for line in log.read_text().splitlines() if line.startswith("SIZES ")]
        assert lines, log.read_text()[-3000:]
        answers.append(json.loads(lines[0].removeprefix("SIZES ")))
    return answers


@pytest.mark.parametrize("stage", [1, 2])
def test_flat_partitions_are_what_stages_1_and_2_allocate(allocated: list[dict[str, Any]], stage: int) -> None:
    """The padded flat group, each rank's fp32 partition and the tensors it touches equal the engine's, to the
    element."""
    world_size = len(allocated)
    (group,) = flat_groups(NUMELS, (), world_size, 1)
    loads = rank_loads(NUMELS, [group])
    for rank, sizes in enumerate(allocated):
        assert sizes[f"stage {stage}"] == {
            "flat": flat_group_numel(sum(NUMELS), world_size),
            "partition": group.partition,
            "touched": loads[rank].touched,
        }


def sub_group_numels(shards: list[int], sub_group_size: int) -> list[int]:
    """Elements of each sub-group on one rank."""
    return [sum(shards[index] for index in group) for group in sub_groups(tuple(shards), sub_group_size)]


@pytest.mark.parametrize("sub_group_size", [10**9, 30])
def test_shards_are_what_stage_3_allocates(allocated: list[dict[str, Any]], sub_group_size: int) -> None:
    """Every tensor's shard, the fp32 sub-groups and the gradients' buffer equal the engine's, to the element."""
    shards = [shard_numel(numel, len(allocated)) for numel in NUMELS]
    for sizes in allocated:
        assert sizes[f"stage 3, sub-groups of {sub_group_size}"] == {
            "shards": shards,
            "sub_groups": sub_group_numels(shards, sub_group_size),
            "gradients": sum(shards),
        }


numels = st.lists(st.integers(1, 10**6), min_size=1, max_size=20)


@given(numels, st.integers(1, 300))
def test_partitions_hold_the_whole_model(numels: list[int], world_size: int) -> None:
    """N flat partitions hold every element and fewer than 2 N more, N shards of a tensor fewer than N more. Every
    tensor is touched by some rank, and no rank owns a piece larger than its partition or its largest tensor."""
    total, (group,) = sum(numels), flat_groups(numels, (), world_size, 1)
    assert total <= group.numel < total + 2 * world_size
    assert all(numel <= world_size * shard_numel(numel, world_size) < numel + world_size for numel in numels)
    loads = rank_loads(numels, [group])
    assert len(loads) == world_size
    assert sum(load.touched for load in loads) >= total
    assert all(load.slice <= min(max(numels), group.partition) for load in loads)


@given(numels, st.integers(1, 10**7))
def test_sub_groups_make_up_the_shards(shards: list[int], sub_group_size: int) -> None:
    """Sub-groups hold all shards, and all but the last reach the size that was asked for."""
    groups = sub_group_numels(shards, sub_group_size)
    assert sum(groups) == sum(shards)
    assert all(group >= min(sub_group_size, sum(shards)) for group in groups[:-1])
    assert len(groups) <= math.ceil(sum(shards) / min(sub_group_size, sum(shards)))


@given(numels, st.integers(1, 10**7))
def test_buckets_reduce_every_gradient_that_fits(numels: list[int], bucket_size: int) -> None:
    """No bucket holds more than its size; a bucket for everything is reduced once, with all that is in the model."""
    fills = bucket_fills(numels, bucket_size)
    assert max(fills.flushed, fills.pending, fills.final) <= bucket_size
    assert fills.waits == (fills.pending + numels[0] > bucket_size)
    if sum(numels) <= bucket_size:
        assert (fills.flushed, fills.final, fills.waits) == (0, sum(numels), False)


def test_buckets_fill_from_the_last_tensor_to_the_first() -> None:
    """5, 7 and 4 do not fit in 12 elements together: 4 and 7 are reduced when 5 comes; 20 never enters the bucket."""
    fills = bucket_fills([5, 7, 20, 3, 4], 12)
    assert (fills.flushed, fills.pending, fills.waits, fills.final) == (7, 7, False, 12)
    assert bucket_fills([5, 7, 4], 12) == BucketFills(flushed=0, unfit=0, pending=11, waits=True, final=5, second=0)
