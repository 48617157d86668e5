"""Step time: what must always hold."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.ds_configs.presets import layer_units_plan
from ds_advise.estimators.estimate import TimeEstimate
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import AttentionSpeed, Cluster, dram_bytes_per_s
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time import collective_time as collective
from ds_advise.estimators.time import roofline
from ds_advise.estimators.time.compute_time import compute_time
from ds_advise.estimators.time.flops import head_launches, head_product
from ds_advise.estimators.time.memory_bound import COPIED_PASSES, RECAST_FP32_BYTES
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import AttentionKernel, LossKernel, Software, Workload
from hypothesis import given, settings
from hypothesis import strategies as st

MODEL = find("qwen2.5-1.5b")
WORKLOAD = Workload(seq_len=1024)
PAIR, EIGHT = parse_cluster("2xRTX4090"), parse_cluster("8xA100-80GB")
NODES = parse_cluster("4x8xH100", interconnect="8x400Gb/s")


RESOURCES = {"gpu compute", "gpu memory", "launch", "gpu links", "network", "pcie", "cpu", "nvme"}


def seconds(estimate: TimeEstimate, name: str) -> float:
    """All that a component takes, hidden or not."""
    return math.fsum(term.seconds + term.hidden_s for term in estimate.terms if term.name == name)


def plan(**settings_: Any) -> Plan:
    return Plan(**{"zero_stage": 2, "micro_batch_size": 2, **settings_})


PLANS = st.builds(
    lambda stage, micro, accumulation, checkpointing, optimizer, param, overlap, bucket, pinned: Plan(
        zero_stage=stage,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing=checkpointing,
        offload_optimizer=optimizer if stage else "none",
        offload_param=param if stage == 3 else "none",
        overlap_comm=overlap,
        reduce_bucket_size=bucket,
        pin_memory=pinned,
    ),
    st.sampled_from([0, 1, 2, 3]),
    st.integers(1, 64),
    st.integers(1, 32),
    st.booleans(),
    st.sampled_from(["none", "cpu"]),
    st.sampled_from(["none", "cpu", "nvme"]),
    st.booleans(),
    st.integers(10**5, 10**9),
    st.booleans(),
)


@settings(max_examples=60)
@given(
    plan=PLANS,
    cluster=st.sampled_from([PAIR, EIGHT, NODES, parse_cluster("24GB")]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    attention=st.sampled_from(["flash", "sdpa", "eager"]),
    loss=st.sampled_from(["standard", "fused"]),
)
def test_terms_are_finite_add_up_and_carry_their_formula(
    plan: Plan, cluster: Cluster, method: Any, precision: Any, attention: Any, loss: Any
) -> None:
    """Every combination has a time; no term is negative, hidden work included; resources are the known ones."""
    workload = Workload(seq_len=512, method=method, precision=precision, attention=attention, loss=loss)
    estimate = estimate_time(MODEL, workload, cluster, plan)
    assert estimate.step_s == pytest.approx(sum(term.seconds for term in estimate.terms))
    for term in estimate.terms:
        assert 0 <= term.seconds < math.inf and 0 <= term.hidden_s < math.inf, term
        assert term.formula and term.source and term.resource in RESOURCES
    tokens = plan.micro_batch_size * plan.gradient_accumulation_steps * cluster.world_size * 512
    assert estimate.tokens_per_step == tokens
    assert estimate.tokens_per_s == pytest.approx(tokens / estimate.step_s)


def test_stage_3_gathers_more_when_less_may_stay_alive() -> None:
    """Without reuse the weights come twice per micro batch; with a model below the live limit once."""

    def gathering(live: int, reuse: int) -> float:
        settings_ = plan(zero_stage=3, stage3_max_live_parameters=live, stage3_max_reuse_distance=reuse)
        return seconds(estimate_time(find("llama-3.1-8b"), WORKLOAD, EIGHT, settings_), "weight gathering")

    assert gathering(0, 10**9) > 1.7 * gathering(10**11, 10**11)


def test_experts_that_are_modules_are_gathered_one_by_one() -> None:
    """Before transformers 5 the host takes most of a step of Qwen3-30B-A3B under ZeRO-3, less where the mixture is a
    leaf; other families had fused experts before."""
    cluster = parse_cluster("2x8xA800-80GB", interconnect="1600Gb/s")
    chosen = plan(zero_stage=3, micro_batch_size=1, stage3_prefetch_bucket_size=3774873, reduce_bucket_size=4194304)

    def step_s(name: str, **versions: tuple[int, int]) -> float:
        workload = Workload(seq_len=8192, software=Software(**versions))
        return estimate_time(find(name), workload, cluster, chosen).step_s

    modules = step_s("qwen3-30b-a3b", transformers=(4, 51), deepspeed=(0, 16))
    leaf = step_s("qwen3-30b-a3b", transformers=(4, 51))
    assert modules > 1.5 * leaf > 5 * step_s("qwen3-30b-a3b")
    assert step_s("gpt-oss-20b", transformers=(4, 57)) == step_s("gpt-oss-20b")


def test_gptq_is_unpacked_by_torchs_operations_before_transformers_4_49() -> None:
    """More bytes and more launches in each forward pass, nothing in the backward pass: it counts for short samples."""

    def took(seq_len: int, version: tuple[int, int]) -> float:
        software = Software(transformers=version)
        workload = Workload(method="qlora", quantization="gptq", seq_len=seq_len, software=software)
        chosen = plan(zero_stage=0, gradient_checkpointing=True, micro_batch_size=1)
        return estimate_time(find("llama-2-7b"), workload, parse_cluster("A100-80GB"), chosen).step_s

    assert took(256, (4, 48)) > 1.2 * took(256, (4, 49))
    assert took(8192, (4, 48)) < 1.05 * took(8192, (4, 49))


def test_tf32_speeds_up_the_products_of_fp32_numbers_where_the_gpu_has_it() -> None:
    """An A100 multiplies in TF32 at half the rate of bf16, and moves as many bytes as in fp32."""
    tf32 = Software(tf32=True)

    def took(name: str, gpu: str, **settings_: Any) -> float:
        workload = Workload(seq_len=4096, **settings_)
        return seconds(estimate_time(MODEL, workload, parse_cluster(gpu), plan(zero_stage=0)), name)

    products, operations = "matrix products", "elementwise operations"
    fast = took(products, "A100-80GB", precision="fp32", software=tf32)
    assert 6 * fast < took(products, "A100-80GB", precision="fp32")
    assert fast == pytest.approx(2 * took(products, "A100-80GB"), rel=0.15)
    moved = [took(operations, "A100-80GB", precision="fp32", software=each) for each in (tf32, Software())]
    assert moved[0] == moved[1]
    for gpu, precision in (("V100-32GB", "fp32"), ("A100-80GB", "bf16")):
        same = {took(products, gpu, precision=precision, software=each) for each in (tf32, Software())}
        assert len(same) == 1


@pytest.mark.parametrize("stage_3", ["zero", "fsdp"])
def test_adapters_that_are_reduced_at_once_leave_the_gathers_hidden(stage_3: str) -> None:
    """LoRA's gradients fill one bucket, which nothing hides; the backward pass hides the weights that it gathers as
    the forward pass does, and more of them, for it takes longer."""
    workload = dataclasses.replace(WORKLOAD, method="lora", seq_len=4096)
    settings_ = plan(zero_stage=3, micro_batch_size=8)
    if stage_3 == "fsdp":
        settings_ = layer_units_plan(settings_, MODEL)
    terms = estimate_time(MODEL, workload, PAIR, settings_).terms
    gathers = [term for term in terms if term.name == "weight gathering"]
    shown = [term.seconds / (term.seconds + term.hidden_s) for term in gathers]
    assert len(shown) == 2
    assert shown[1] <= shown[0] < 0.8


def test_shared_samples_reduce_gradients_in_fp32() -> None:
    """Stages 1 and 2 cast them there and back; stage 3 reduces them as they are."""

    def copied(stage: Any, ranks: int) -> float:
        return seconds(
            estimate_time(MODEL, WORKLOAD, PAIR, plan(zero_stage=stage, sequence_parallel_size=ranks)),
            "gradient copies",
        )

    assert copied(2, 2) == pytest.approx(copied(2, 1) * (COPIED_PASSES * 2 + RECAST_FP32_BYTES) / (COPIED_PASSES * 2))
    assert copied(3, 2) == copied(3, 1)


@pytest.mark.parametrize(
    "chosen",
    [
        {"zero_stage": 1},
        {"zero_stage": 2, "offload_optimizer": "cpu"},
        {"zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "nvme"},
    ],
)
def test_time_grows_with_batch_and_sequence(chosen: dict[str, Any]) -> None:
    """More tokens never take less time."""
    times = [
        estimate_time(MODEL, Workload(seq_len=seq_len), PAIR, plan(**chosen, micro_batch_size=micro)).step_s
        for seq_len, micro in ((512, 1), (512, 4), (1024, 4), (1024, 32), (4096, 32))
    ]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))
    assert times[-1] > times[0]


def test_the_host_steps_only_its_share_of_the_optimizer() -> None:
    """With half of the sub-groups on the GPU the step on the host takes about half as long; with all, none."""
    offloaded = plan(zero_stage=3, offload_optimizer="cpu", offload_param="cpu", sub_group_size=10**7)

    def host_s(ratio: float) -> float:
        chosen = dataclasses.replace(offloaded, offload_optimizer_ratio=ratio)
        return seconds(estimate_time(MODEL, WORKLOAD, EIGHT, chosen), "optimizer on the host")

    assert host_s(0.5) == pytest.approx(host_s(1) / 2, rel=0.2)
    assert host_s(0) == 0 < host_s(0.9) < host_s(1)


CHECK, TO_HOST, TO_GPU = "overflow check on the host", "gradients to host", "updated weights to GPU"


def offload_s(
    name: str, version: tuple[int, ...], precision: Any = "bf16", cluster: Cluster = PAIR, **more: Any
) -> float:
    workload = dataclasses.replace(WORKLOAD, precision=precision, software=Software(deepspeed=version))
    chosen = plan(**{"zero_stage": 3, "offload_optimizer": "cpu", **more})
    return seconds(estimate_time(MODEL, workload, cluster, chosen), name)


@pytest.mark.parametrize(
    ("version", "precision", "stage", "checks"),
    [
        ((0, 19, 8), "fp16", 3, True),
        ((0, 19, 8), "fp16", 2, False),
        ((0, 19, 8), "bf16", 3, False),
        ((0, 11, 1), "bf16", 3, True),
        ((0, 11, 2), "bf16", 3, False),
        ((0, 9, 3), "fp16", 3, False),
    ],
)
def test_the_host_checks_the_gradients_that_the_version_checks(
    version: tuple[int, ...], precision: Any, stage: int, checks: bool
) -> None:
    """By stage3.py of these versions; a core takes 3 to 5 ns for each gradient of its rank."""
    took = offload_s(CHECK, version, precision, zero_stage=stage)
    assert (took > 0) == checks
    assert not checks or 3e-9 < took / (MODEL.parameters / PAIR.world_size) < 5e-9


def test_what_the_host_copies_and_casts_depends_on_the_version() -> None:
    """Casts on the host in new memory take longer than those on the GPU, and than fp32 over the link."""
    assert offload_s(TO_HOST, (0, 15, 3)) > 1.5 * offload_s(TO_HOST, (0, 15, 4))
    uncast, cast, new = (offload_s(TO_GPU, version, zero_stage=2) for version in ((0, 16), (0, 17), (0, 14, 0)))
    assert uncast == pytest.approx(2 * cast)
    assert new == offload_s(TO_GPU, (0, 19, 8)) > uncast


def test_a_pageable_copy_does_not_get_faster_with_the_link() -> None:
    """A core of the host makes it: PCIe 5 gains nothing over PCIe 4, as it does for pinned memory."""
    old, new = parse_cluster("2xA100-80GB"), parse_cluster("2xH100")
    for pinned, ratio in ((True, 2.0), (False, 1.0)):
        took = [offload_s(TO_HOST, (0, 19, 8), cluster=each, pin_memory=pinned) for each in (old, new)]
        assert took[0] / took[1] == pytest.approx(ratio, rel=0.01)


def test_one_or_two_geforce_cards_are_in_a_desktop() -> None:
    """Whose memory is slower than a server's; more cards, more cores and other cards make it a server."""
    hosts = [parse_cluster(gpus) for gpus in ("2xRTX4090", "4xRTX4090", "2xRTXA6000", "2xA100-80GB")]
    hosts.append(dataclasses.replace(hosts[0], cpu_cores_per_node=64))
    desktop, *servers = (dram_bytes_per_s(each) for each in hosts)
    assert {*servers} == {200e9} and desktop < 200e9 / 3


def test_measured_attention_replaces_what_is_published() -> None:
    """Its time per operation is linear in 1 / keys between two lengths; a kernel that was not measured stays."""
    speeds = [AttentionSpeed("bf16", True, keys, rate) for keys, rate in ((512, 100e12), (2048, 200e12))]
    gpu = find_gpu("H100")
    measured = dataclasses.replace(gpu, attention=tuple(speeds))

    def rate(keys: int, kernel: AttentionKernel = "sdpa", *, backward: bool = True) -> float:
        return roofline.attention_rate(measured, "bf16", kernel, keys, backward=backward) / roofline.SUSTAINED["Hopper"]

    assert [rate(keys) for keys in (512, 2048, 9000)] == pytest.approx([100e12, 200e12, 200e12])
    assert rate(1024) == pytest.approx(1 / (2 / 3 / 200e12 + 1 / 3 / 100e12))
    assert rate(256) < 100e12
    for kernel, backward in (("eager", True), ("triton", True), ("sdpa", False)):
        published = roofline.attention_rate(gpu, "bf16", kernel, 1024, backward=backward)
        assert roofline.attention_rate(measured, "bf16", kernel, 1024, backward=backward) == published


def test_packed_documents_attend_to_themselves_alone() -> None:
    """Attention over documents of a quarter of the sample takes about a quarter of the pairs, everything else as
    before."""
    model, workload = find("llama-2-7b"), Workload(seq_len=16384, attention="flash")
    chosen = plan(zero_stage=3, micro_batch_size=1)
    whole = estimate_time(model, workload, EIGHT, chosen).components
    packed = estimate_time(model, dataclasses.replace(workload, document_len=4096), EIGHT, chosen).components
    assert packed["attention"] == pytest.approx(whole["attention"] / 4, rel=0.15)
    assert packed["matrix products"] == whole["matrix products"]


def test_a_ring_of_more_cards_than_bridges_join_is_one_of_pcie() -> None:
    """A pair in it still uses its bridge, and three MI210 use two of their three links."""
    pair, four = (parse_cluster(f"{count}xA6000", link="nvlink") for count in (2, 4))
    plain = parse_cluster("4xA6000")
    assert collective.ring(four).bytes_per_s == collective.ring(plain).bytes_per_s
    assert collective.neighbour_ring(four, 2).bytes_per_s == collective.ring(pair).bytes_per_s
    assert collective.replica_ring(four, 2).bytes_per_s == collective.ring(plain).bytes_per_s
    mesh = [collective.ring(parse_cluster(f"{count}xMI210", link="infinity-fabric")).bytes_per_s for count in (2, 3, 4)]
    assert mesh == pytest.approx([mesh[0], 2 * mesh[0], 3 * mesh[0]])
    four_of_mesh = parse_cluster("4xMI210", link="infinity-fabric")
    assert collective.replica_ring(four_of_mesh, 2).bytes_per_s == pytest.approx(mesh[0])


def test_a_fused_loss_of_few_tokens_reads_the_head_in_every_chunk() -> None:
    """The chunk of 2,048 tokens has 32 for a vocabulary of 99 times the width: 64 times as many launches, each of which
    takes the time in which the memory delivers the weight or its gradient. Of many tokens the chunks are large, and the
    products take as long as whole ones. The operations of the head are those of the standard loss."""
    gpu, model = PAIR.gpu, MODEL
    few, many = 2, 128

    def products(loss: LossKernel, micro_batch: int) -> float:
        compute = compute_time(model, Workload(seq_len=1024, loss=loss), gpu, micro_batch, gradient_checkpointing=True)
        return compute.forward.products_s + compute.backward.products_s

    moved_s = model.vocab_size * model.hidden_size * 2 / roofline.memory_rate(gpu)
    assert products("fused", few) - products("standard", few) > 64 * 2 * moved_s
    assert products("fused", many) == pytest.approx(products("standard", many), rel=0.05)
    for micro_batch in (1, 3, few):
        workload = Workload(seq_len=1000, loss="fused")
        launches = head_launches(model, workload, micro_batch)
        whole = head_product(model, workload, micro_batch)
        assert whole is not None
        assert sum(number * product.forward_flops for product, number in launches) == whole.forward_flops
