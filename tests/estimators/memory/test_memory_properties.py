"""What holds of every memory estimate, whatever the model, workload, cluster and plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from ds_advise.estimators.estimate import MemoryEstimate, MemoryTerm
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.memory.trainable import optimizer_group_numels, shard_tensors, tensor_set
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.lora import int8_bytes, nf4_bytes
from ds_advise.estimators.models.model_shape import ModelShape, Tensor
from ds_advise.estimators.optimizers import OPTIMIZERS
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.unsupported import unsupported
from ds_advise.estimators.workload import Workload
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.estimators.small_models import sizes, small

GPU = find_gpu("A100-80GB")


def llama(*, hidden: int = 512, layers: int = 4, tied: bool = False, vocab: int = 4000) -> ModelShape:
    base = sizes(hidden, 3 * hidden, layers, 8, 4, vocab, max_position_embeddings=8192)
    config = small("llama", base, architectures=["LlamaForCausalLM"], tie_word_embeddings=tied)
    return shape_from_config(config, name="small")


def cluster(nodes: int = 1, gpus: int = 1) -> Cluster:
    return Cluster(nodes=nodes, gpus_per_node=gpus, gpu=GPU)


models = st.builds(
    llama,
    hidden=st.sampled_from([256, 512, 1000]),
    layers=st.integers(1, 6),
    tied=st.booleans(),
    vocab=st.integers(100, 5000),
)
workloads = st.builds(
    Workload,
    method=st.sampled_from(["full", "lora", "qlora"]),
    seq_len=st.integers(16, 4096),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    eval_batch=st.sampled_from([None, None, 8]),
)
clusters = st.builds(cluster, nodes=st.integers(1, 4), gpus=st.integers(1, 8))
plans = st.builds(
    Plan,
    zero_stage=st.integers(0, 3),
    micro_batch_size=st.integers(1, 16),
    gradient_accumulation_steps=st.integers(1, 4),
    gradient_checkpointing=st.booleans(),
    overlap_comm=st.booleans(),
    pin_memory=st.booleans(),
    offload_optimizer=st.sampled_from(["none", "cpu", "nvme"]),
    offload_optimizer_ratio=st.sampled_from([1.0, 1.0, 0.3]),
    offload_param=st.sampled_from(["none", "cpu", "nvme"]),
    reduce_bucket_size=st.sampled_from([10_000, 5_000_000, 500_000_000]),
    sub_group_size=st.sampled_from([10_000, 10**9]),
    stage3_max_live_parameters=st.sampled_from([0, 10**6, 10**9]),
    stage3_max_reuse_distance=st.sampled_from([0, 10**6, 10**9]),
    stage3_prefetch_bucket_size=st.sampled_from([0, 10**5, 5 * 10**7]),
)
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def runnable(model: ModelShape, workload: Workload, plan: Plan, machines: Cluster) -> MemoryEstimate:
    assume(unsupported(model, workload, plan, machines) is None)
    return estimate_memory(model, workload, machines, plan)


def states(estimate: MemoryEstimate) -> int:
    """Weights, masters and optimizer states on one GPU."""
    names = {"parameters", "persistent_parameters", "master_weights", "optimizer_states"}
    return total(term for term in estimate.phases[-1].terms if term.name in names)


def total(terms: Iterable[MemoryTerm]) -> int:
    return sum(term.size_bytes for term in terms)


def every_term(estimate: MemoryEstimate) -> list[MemoryTerm]:
    return [
        *(term for phase in estimate.phases for term in phase.terms),
        *estimate.reserved_terms,
        *estimate.device_terms,
        *estimate.host_pinned_terms,
        *estimate.host_pageable_terms,
        *estimate.nvme_terms,
    ]


@quick
@given(models, workloads, clusters, plans)
def test_terms_are_whole_bytes_and_add_up_to_the_totals(
    model: ModelShape, workload: Workload, machines: Cluster, plan: Plan
) -> None:
    """Every term is a positive int with formula and source; the GPU's terms add up to what the device shows."""
    estimate = runnable(model, workload, plan, machines)
    for term in every_term(estimate):
        assert isinstance(term.size_bytes, int) and term.size_bytes > 0
        assert term.formula and term.source
    assert total(estimate.gpu_terms) == estimate.device_bytes_per_gpu
    assert estimate.allocated_bytes_per_gpu <= estimate.reserved_bytes_per_gpu <= estimate.device_bytes_per_gpu
    assert estimate.allocated_bytes_per_gpu == max(total(phase.terms) for phase in estimate.phases)
    assert estimate.host_loading_bytes_per_node > 0


@quick
@given(models, workloads, clusters, plans, st.integers(1, 8), st.integers(1, 2048))
def test_memory_never_falls_with_batch_and_sequence(
    model: ModelShape, workload: Workload, machines: Cluster, plan: Plan, more_batch: int, more_tokens: int
) -> None:
    """A larger micro batch or a longer sequence needs at least as much memory on the GPU, and the same on the host."""
    estimate = runnable(model, workload, plan, machines)
    more_samples = replace(plan, micro_batch_size=plan.micro_batch_size + more_batch)
    longer = replace(workload, seq_len=workload.seq_len + more_tokens)
    for work, each in ((workload, more_samples), (longer, plan)):
        larger = estimate_memory(model, work, machines, each)
        assert larger.allocated_bytes_per_gpu >= estimate.allocated_bytes_per_gpu
        assert larger.host_training_bytes_per_node == estimate.host_training_bytes_per_node


@quick
@given(models, workloads, clusters)
def test_model_states_shrink_with_stage_and_ranks(model: ModelShape, workload: Workload, machines: Cluster) -> None:
    """Weights, masters and states: stage 1 needs no more than 0, stage 3 no more than 2, and more ranks no more than
    fewer.

    Padding apart: an element per tensor at stage 3, 2 N elements at stages 1 and 2.
    """
    assume(OPTIMIZERS[workload.optimizer].partitions and workload.method != "qlora")
    # Muon stages a second momentum under ZeRO 1 and 2, and fp32 has no master weights at stage 0.
    assume(workload.optimizer != "muon" and workload.precision != "fp32")

    def at(stage: int, gpus: Cluster = machines) -> int:
        plan = Plan(zero_stage=stage, micro_batch_size=1, stage3_param_persistence_threshold=0)
        return states(estimate_memory(model, workload, gpus, plan))

    tensors = tensor_set(model, workload)
    padding = 32 * (2 * machines.world_size + len(tensors.trainable) + len(tensors.frozen))
    held = [at(stage) for stage in range(4)]
    assert held[2] == held[1] <= held[0] + padding
    assert held[3] <= held[2] + padding
    for stage in (1, 2, 3):
        assert at(stage, replace(machines, nodes=2 * machines.nodes)) <= held[stage] + padding


@quick
@given(models, st.sampled_from(["full", "lora"]), clusters, st.integers(1, 3))
def test_offload_moves_states_and_destroys_none(model: ModelShape, method: str, machines: Cluster, stage: int) -> None:
    """Masters and states that leave the GPUs of a node arrive in its host memory; shards of weights likewise."""

    def at(**settings: Any) -> MemoryEstimate:
        plan = Plan(zero_stage=stage, micro_batch_size=1, pin_memory=False, **settings)  # type: ignore[arg-type]
        return estimate_memory(model, Workload(method=method), machines, plan)

    kept, moved = at(), at(offload_optimizer="cpu")
    names = {"master_weights", "optimizer_states"}
    left = total(term for term in kept.phases[-1].terms if term.name in names)
    arrived = total(term for term in moved.host_pageable_terms if term.name in names)
    assert left * machines.gpus_per_node == arrived
    assert not names & {term.name for phase in moved.phases for term in phase.terms}
    if stage == 3:
        names = {"parameters", "frozen_parameters"}
        left = total(term for term in kept.phases[-1].terms if term.name == "parameters")
        arrived = total(term for term in at(offload_param="cpu").host_pageable_terms if term.name in names)
        assert left * machines.gpus_per_node == arrived


@quick
@given(models, clusters)
def test_nvme_takes_what_cpu_offload_kept(model: ModelShape, machines: Cluster) -> None:
    """Masters and states of sub-groups that reach 1 MiB are on the disk, the others where CPU offload keeps them."""
    plan = Plan(zero_stage=3, micro_batch_size=1, offload_optimizer="cpu", pin_memory=False)
    host = estimate_memory(model, Workload(), machines, plan)
    disk = estimate_memory(model, Workload(), machines, replace(plan, offload_optimizer="nvme"))
    for name in ("master_weights", "optimizer_states"):
        moved = total(term for term in (*disk.nvme_terms, *disk.host_pageable_terms) if term.name == name)
        assert moved == total(term for term in host.host_pageable_terms if term.name == name)


def test_quantized_weights_take_their_bits_and_scales() -> None:
    """NF4: 0.5 + 1/64 + 4/(64 x 256) bytes a weight, and two tables per tensor. int8: a byte, and a scale a row."""
    numel = 4096 * 4096
    assert nf4_bytes(numel) == numel // 2 + numel // 64 + 4 * numel // (64 * 256) + 1088
    tensor = Tensor(name="x.weight", shape=(4096, 1024), role="attention", linear=True)
    assert int8_bytes(tensor) == 4096 * 1024 + 4 * 4096


HALF = {"offload_optimizer": "cpu", "offload_optimizer_ratio": 0.5}


@pytest.mark.parametrize(
    ("workload", "settings", "reason"),
    [
        ({"optimizer": "adamw_8bit"}, {"zero_stage": 2, "offload_optimizer": "cpu"}, "on the host"),
        ({"optimizer": "lamb"}, {"zero_stage": 1}, "whole layers"),
        ({"method": "qlora", "quantization": "int8"}, {"zero_stage": 3}, "int8"),
        ({"method": "qlora"}, {"zero_stage": 3, "offload_param": "cpu"}, "NF4"),
        ({}, {"zero_stage": 2, "offload_optimizer": "nvme"}, "stage 3"),
        ({}, {"zero_stage": 0, "offload_optimizer": "cpu"}, "stage 1"),
        ({}, {"zero_stage": 2, **HALF}, "stage 3"),
        ({"optimizer": "adagrad"}, {"zero_stage": 3, **HALF}, "only AdamW"),
        ({}, {"zero_stage": 3, "offload_param": "nvme", "param_buffer_size": 1000}, "buffer_size"),
        ({}, {"zero_stage": 3, "offload_optimizer": "nvme", "optimizer_buffer_count": 3}, "buffer_count"),
    ],
)
def test_impossible_plans_say_why(workload: dict[str, Any], settings: dict[str, Any], reason: str) -> None:
    """A plan that DeepSpeed would refuse has a reason; the same workload on plain data parallelism has none."""
    plan, asked = Plan(micro_batch_size=1, **settings), Workload(**workload)
    assert reason in (unsupported(llama(), asked, plan, cluster(gpus=2)) or "")
    assert unsupported(llama(), asked, Plan(zero_stage=0, micro_batch_size=1), cluster(gpus=2)) is None


def test_qlora_under_zero3_loads_whole_then_holds_shards_of_packed_weights() -> None:
    """As two ranks of the engine with bitsandbytes 0.50 hold it: four 4-bit weights in an element of bf16, cut in two;
    scales whole on both. peft documents 36.6 GB a GPU for the 70B run, which is its load."""
    workload, plan = Workload(method="qlora", lora_rank=8), Plan(zero_stage=3, micro_batch_size=1)
    tensors = tensor_set(llama(), workload)
    assert tensors.frozen[:3] == (512 * 4000, 512 * 512 // 4, 512 * 256 // 4)
    memory = estimate_memory(llama(), workload, cluster(gpus=2), plan)
    load, step = memory.phases[0], next(phase for phase in memory.phases if phase.name == "step")
    assert (load.name, load.allocated_bytes) == ("load", tensors.frozen_bytes + 2 * 512 * 4000)
    packed, scales, _ = (term.size_bytes for term in step.terms[:3])
    assert packed >= sum(tensors.frozen) and scales == tensors.frozen_bytes - 2 * sum(tensors.frozen)
    peft = replace(workload, seq_len=2048, attention="flash", lora_dropout=0.1)
    documented = replace(plan, micro_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True)
    config = small("llama", sizes(8192, 28672, 80, 64, 8, 32000), architectures=["LlamaForCausalLM"])
    predicted = estimate_memory(shape_from_config(config, name="Llama-2-70B"), peft, cluster(gpus=2), documented)
    assert predicted.peak.name == "load" and predicted.device_bytes_per_gpu == pytest.approx(36.6 * 2**30, rel=0.01)


def test_optimizer_parts_on_the_gpu_leave_the_host() -> None:
    """Of an offloaded optimizer half of the sub-groups, rounded down, is on the GPU with masters, states and gradients;
    the host has so much less."""
    plan = Plan(zero_stage=3, micro_batch_size=1, offload_optimizer="cpu", sub_group_size=10_000, pin_memory=False)
    workload, machines = Workload(), cluster(gpus=2)
    whole, half = (
        estimate_memory(llama(), workload, machines, replace(plan, offload_optimizer_ratio=ratio)) for ratio in (1, 0.5)
    )
    groups = optimizer_group_numels(shard_tensors(tensor_set(llama(), workload), 2), 10_000)
    kept = 16 * sum(groups[: len(groups) // 2])
    assert 0 < kept == total(half.phases[0].terms) - total(whole.phases[0].terms)
    assert 2 * kept == total(whole.host_pageable_terms) - total(half.host_pageable_terms)


@pytest.mark.parametrize(("batches", "copies"), [(None, 0), (1, 9), (2, 2 * 2 * 8), (5, 2 * 5 * 8)])
def test_evaluations_keep_the_logits_of_all_ranks_for_metrics(batches: int | None, copies: int) -> None:
    """Of one batch a rank's own and those of all eight; of k batches two tensors of them while they are put
    together. A plan whose evaluation does not fit needs more than the GPU has."""
    model = llama(vocab=128_000)
    workload = Workload(eval_batch=8, eval_logits=batches)
    plan = Plan(zero_stage=2, micro_batch_size=1)
    evaluated = estimate_memory(model, workload, cluster(gpus=8), plan)
    batch = 2 * 8 * workload.seq_len * model.vocab_size
    kept = total(term for term in evaluated.peak.terms if term.name == "logits of all ranks")
    assert evaluated.peak.name == "evaluation"
    assert kept == copies * batch
    trained = estimate_memory(model, Workload(), cluster(gpus=8), plan)
    assert trained.device_bytes_per_gpu < evaluated.device_bytes_per_gpu
    assert (evaluated.device_bytes_per_gpu > GPU.memory_bytes) == (batches is not None and batches > 1)


@pytest.mark.parametrize(("batches", "samples", "copies"), [(None, 500, 0), (1, 500, 8), (2, 128, 6), (2, None, 6)])
def test_logits_for_metrics_end_in_host_ram_on_every_rank(
    batches: int | None, samples: int | None, copies: int
) -> None:
    """In fp32, and while they are joined twice; those of one transfer beside their bf16 copy. Measured with
    transformers' container on a CPU: 1,043 MiB for 64 samples of 8 MiB each in fp32, and 788 MiB in one transfer."""
    model, plan = llama(vocab=128_000), Plan(zero_stage=2, micro_batch_size=1)
    workload = Workload(eval_batch=8, eval_logits=batches, eval_samples=samples)
    memory = estimate_memory(model, workload, cluster(gpus=8), plan)
    kept = 8 * copies * (samples or 2 * 8 * 8) * workload.seq_len * model.vocab_size
    assert total(term for term in memory.host_pageable_terms if term.name == "evaluated_logits") == kept
    assert memory.host_bytes_per_node >= kept


def test_bf16_needs_a_gpu_that_has_it() -> None:
    volta, plan = replace(cluster(), gpu=replace(GPU, bf16_flops_per_s=None)), Plan(zero_stage=0, micro_batch_size=1)
    assert "bf16" in (unsupported(llama(), Workload(), plan, volta) or "")
    assert unsupported(llama(), Workload(precision="fp16"), plan, volta) is None
