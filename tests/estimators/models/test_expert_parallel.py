"""Experts that ranks keep some of each: what a rank holds, and how ZeRO cuts it."""

from __future__ import annotations

import pytest
from ds_advise.estimators.memory.partition import EXPERT_GROUP_NUMEL
from ds_advise.estimators.memory.trainable import shard_tensors, tensor_set
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.expert_parallel import of_rank, unspreadable
from ds_advise.estimators.workload import Workload


@pytest.mark.parametrize(("name", "ranks"), [("Qwen3-30B-A3B", 8), ("Mixtral-8x7B-v0.1", 4)])
def test_a_rank_keeps_its_experts_and_all_of_the_rest(name: str, ranks: int) -> None:
    whole = find(name)
    part = of_rank(whole, ranks)
    experts = sum(tensor.numel * count for tensor, count in whole.tensor_counts if tensor.role == "expert")
    assert part.parameters == whole.parameters - experts + experts // ranks
    names = {tensor.name.rpartition(".")[2] for tensor, _ in part.tensor_counts if tensor.role == "expert"}
    assert names == {"w1", "w2", "w3"}


def test_each_group_is_cut_for_the_ranks_that_share_it() -> None:
    """16 GPUs, experts over 8: everything else is cut in 16, experts in 2, in groups that are not too large; all parts
    make up what the ranks hold together."""
    whole = find("Mixtral-8x7B-v0.1")
    tensors = tensor_set(of_rank(whole, 8), Workload())
    sharded = shard_tensors(tensors, 16)
    dense, *experts = sharded.groups
    assert dense.ranks == 16 and {group.ranks for group in experts} == {2} and len(experts) == 32
    assert all(len(group.tensors) == 1 or group.numel <= EXPERT_GROUP_NUMEL + 4 for group in experts)
    kept = sum(tensors.trainable[index] for index in dense.tensors)
    assert sum(tensors.trainable) == kept + sum(tensors.trainable[i] for group in experts for i in group.tensors)
    assert sharded.partition == dense.numel // 16 + sum(group.numel for group in experts) // 2
    neighbours = [load.tensors for load in sharded.loads]
    expert = {index for group in experts for index in group.tensors}
    assert [set(touched) & expert for touched in neighbours[:8]] == [set(neighbours[0]) & expert] * 8


@pytest.mark.parametrize(
    ("name", "ranks", "why"),
    [
        ("Qwen2.5-7B", 2, "no experts"),
        ("Qwen3-30B-A3B", 3, "128 experts do not divide over 3"),
        ("gpt-oss-20b", 2, "is not known"),
    ],
)
def test_what_cannot_be_spread_says_why(name: str, ranks: int, why: str) -> None:
    assert why in (unspreadable(find(name), ranks) or "")
