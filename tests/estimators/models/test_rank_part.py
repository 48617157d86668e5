"""The part of a model that a rank holds: split layers (AutoTP) and spread experts (AutoEP), and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ds_advise.advisor.advise import estimate
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.gathered_parameters import gathered_parameters
from ds_advise.estimators.memory.partition import EXPERT_GROUP_NUMEL, bucket_fills
from ds_advise.estimators.memory.trainable import optimizer_groups, shard_tensors, tensor_set
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.rank_part import split_layers, spread_experts, why_no_expert_parallelism
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.collective_time import reduce_calls
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import Workload

LLAMA = find("Llama-3.1-8B")
QUESTION = {"gpus": "8xH100", "micro_batch": 1, "gradient_checkpointing": "on", "seq_len": 4096}
QUESTION |= {"global_batch": "no-accumulation"}  # one micro batch


def test_the_ranks_parts_add_up_to_the_layers_and_repeat_norms_and_embedding() -> None:
    """Of Llama-3.1-8B two ranks hold one model, and the embedding and 65 norms once more."""
    whole = 128_256 * 4096 + (2 * 32 + 1) * 4096
    assert 2 * split_layers(LLAMA, 2).parameters == LLAMA.parameters + whole
    assert split_layers(LLAMA, 1) == LLAMA


def test_split_layers_are_all_reduced_in_every_pass() -> None:
    """Forward two a layer, recomputed one, backward five, and one for the head; nothing hides them."""
    split = estimate("Llama-3.1-8B", strategy="zero1", settings={"autotp_size": 2}, **QUESTION)
    term = next(term for term in split.time.terms if term.name == "all-reduces of split layers")
    assert dict(term.inputs)["calls"] == 32 * (2 + 1 + 5) + 1
    assert dict(term.inputs)["hidden"] == 2 * 4096 * 4096
    assert not term.hidden_s and split.time.tokens_per_step == 4 * 4096


@pytest.mark.parametrize(
    ("model", "settings", "question", "why"),
    [
        ("Llama-3.1-8B", {"autotp_size": 3}, {}, "8 GPUs of a node"),
        ("Qwen2.5-7B", {"autotp_size": 8}, {}, "28 heads"),
        ("gpt2", {"autotp_size": 2}, {"seq_len": 1024}, "not known"),
        ("Llama-3.1-8B", {"autotp_size": 2}, {"method": "lora"}, "adapters"),
        ("Llama-3.1-8B", {"autotp_size": 2, "sequence_parallel_size": 2}, {}, "Ulysses"),
    ],
)
def test_models_that_cannot_be_split_are_refused(
    model: str, settings: dict[str, int], question: dict[str, object], why: str
) -> None:
    with pytest.raises(WorkloadError) as refused:
        estimate(model, strategy="zero2", settings=settings, **{**QUESTION, **question})
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("Qwen3-30B-A3B", 8),
        ("Mixtral-8x7B-v0.1", 4),
        ("DeepSeek-V2-Lite", 8),
        ("DeepSeek-V3", 16),
        ("Qwen2-57B-A14B", 8),
    ],
)
def test_a_rank_keeps_its_experts_and_all_of_the_rest(name: str, ranks: int) -> None:
    whole = find(name)
    assert why_no_expert_parallelism(whole, ranks) is None
    part = spread_experts(whole, ranks)
    experts = sum(tensor.numel * count for tensor, count in whole.tensor_counts if tensor.role == "expert")
    assert part.parameters == whole.parameters - experts + experts // ranks
    names = {tensor.name.rpartition(".")[2] for tensor, _ in part.tensor_counts if tensor.role == "expert"}
    assert names == {"w1", "w2", "w3"}


def test_each_group_is_cut_for_the_ranks_that_share_it() -> None:
    """16 GPUs, experts over 8: everything else is cut in 16, experts in 2, in groups that are not too large; all parts
    make up what the ranks hold together."""
    whole = find("Mixtral-8x7B-v0.1")
    tensors = tensor_set(spread_experts(whole, 8), Workload())
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


def test_stage_3_cuts_experts_for_the_ranks_that_keep_the_same_ones() -> None:
    """Each tensor alone, and no sub-group of the optimizer has both kinds."""
    tensors = tensor_set(spread_experts(find("Qwen3-30B-A3B"), 8), Workload())
    sharded = shard_tensors(tensors, 16)
    for numel, shard, expert in zip(tensors.trainable, sharded.shards, tensors.experts, strict=True):
        assert shard == -(-numel // (2 if expert else 16))
    groups = optimizer_groups(sharded, 50_000_000)
    assert sorted(index for group in groups for index in group) == list(range(len(tensors.trainable)))
    assert all(len({tensors.experts[index] for index in group}) == 1 for group in groups)


def test_a_bucket_of_stage_3_holds_one_kind_of_tensor() -> None:
    """It is reduced where the other kind begins, though it has room. Buckets of stages 1 and 2 hold both kinds."""
    numels, experts = (4, 1, 6, 6, 2), (False, False, True, True, False)
    together, apart = bucket_fills(numels, 100), bucket_fills(numels, 100, experts)
    assert (together.flushed, together.pending, together.final) == (0, 15, 19)
    assert (apart.flushed, apart.pending, apart.final) == (12, 1, 5)
    tensors = tensor_set(spread_experts(find("Qwen3-30B-A3B"), 8), Workload())
    one, two, three = (
        reduce_calls(tensors, Plan(zero_stage=stage, micro_batch_size=1, autoep_size=8, reduce_bucket_size=10**8))
        for stage in (1, 2, 3)
    )
    assert one == two != three


def test_experts_that_one_rank_alone_has_are_not_gathered() -> None:
    """They are whole where they rest: of a model that is gathered at once only the rest is copied."""
    model = spread_experts(find("Qwen3-30B-A3B"), 64)
    tensors = tensor_set(model, Workload())
    plan = Plan(zero_stage=3, micro_batch_size=1, autoep_size=64, stage3_max_live_parameters=10**11)
    among_two, alone = (gathered_parameters(tensors, plan, ranks) for ranks in (128, 64))
    assert alone.layer == among_two.layer - tensors.spread_numel
    cluster = Cluster(nodes=8, gpus_per_node=8, gpu=find_gpu("H100"), interconnect_bytes_per_s=5e10)
    times = [
        estimate_time(find("Qwen3-30B-A3B"), Workload(), each, plan).components
        for each in (cluster, replace(cluster, nodes=16))
    ]
    assert ["experts gathered" in components for components in times] == [False, True]
    assert ["gradient reduction of experts" in components for components in times] == [False, True]
    assert all("updated experts gathered" not in components for components in times)


@pytest.mark.parametrize(
    ("name", "ranks", "why"),
    [
        ("Qwen2.5-7B", 2, "no experts"),
        ("Qwen3-30B-A3B", 3, "128 experts are not divisible by 3"),
        ("gpt-oss-20b", 2, "is not known"),
    ],
)
def test_models_whose_experts_cannot_be_spread_are_refused(name: str, ranks: int, why: str) -> None:
    assert why in (why_no_expert_parallelism(find(name), ranks) or "")
