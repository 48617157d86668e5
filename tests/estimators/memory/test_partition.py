"""Partition sizes: arithmetic against the real engine on 2 and 4 ranks, and what must always hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_advise.estimators.memory.partition import (
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
SECOND_GROUP = (1, 4)
SUB_GROUP_SIZES = (30, 10**9)


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_partitions_are_what_the_engine_allocates(world_size: int, tmp_path: Path) -> None:
    """To the element: under stages 1 and 2 the padded flat group, each rank's fp32 partition and the tensors that it
    touches; under stage 3 every tensor's shard, the fp32 sub-groups and the gradients' buffer."""
    one = flat_groups(NUMELS, (), world_size, 1)
    two = flat_groups(NUMELS, (), world_size, 1, [index in SECOND_GROUP for index in range(len(NUMELS))])
    shards = [shard_numel(numel, world_size) for numel in NUMELS]
    assert [group.numel for group in one] == [flat_group_numel(sum(NUMELS), world_size)]
    # Another local size keeps DeepSpeed from compiling its shared-memory collectives.
    for rank, log in enumerate(run_ranks(SCRIPT, [], world_size, tmp_path, LOCAL_SIZE="1")):
        (line,) = (line for line in log.read_text().splitlines() if line.startswith("SIZES "))
        partitions = {
            name: {
                "flat": [group.numel for group in groups],
                "partition": [group.partition for group in groups],
                "touched": rank_loads(NUMELS, groups)[rank].touched,
            }
            for name, groups in {"stage 1": one, "stage 2": one, "two groups": two}.items()
        }
        assert json.loads(line.removeprefix("SIZES ")) == partitions | {
            f"stage 3, sub-groups of {size}": {
                "shards": shards,
                "sub_groups": [sum(shards[index] for index in each) for each in sub_groups(tuple(shards), size)],
                "gradients": sum(shards),
            }
            for size in SUB_GROUP_SIZES
        }


numels = st.lists(st.integers(1, 10**6), min_size=1, max_size=20)


@given(numels, st.integers(1, 10**7))
def test_buckets_reduce_every_gradient_that_fits(numels: list[int], bucket_size: int) -> None:
    """No bucket holds more than its size; a bucket for everything is reduced once, with all that is in the model."""
    fills = bucket_fills(numels, bucket_size)
    assert max(fills.flushed, fills.pending, fills.final) <= bucket_size
    assert fills.waits == (fills.pending + numels[0] > bucket_size)
    if sum(numels) <= bucket_size:
        assert (fills.flushed, fills.final, fills.waits) == (0, sum(numels), False)
