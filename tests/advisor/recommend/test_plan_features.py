"""Features of plans in the answer: AutoTP, AutoEP, bf16 states, hpZ, quantized collectives, a part of the optimizer.

Where a feature is faster it is chosen and explained, where it does not help it is left out, and what DeepSpeed
cannot do is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise, estimate
from ds_advise.advisor.answer.advice import build_advice
from ds_advise.advisor.answer.reasons import SENT_IN_FEWER_BITS
from ds_advise.advisor.answer.start import plan_config
from ds_advise.advisor.search.choice import SAME_SPEED
from ds_advise.advisor.text.labels import plan_title
from ds_advise.ds_configs.read import plan_from_ds_config
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

from tests.helpers import printed

PUBLISHED = Path(__file__).parents[3] / "benchmarks/data/models/GPT-6.9B-bf16_master_weight.json"
LLAMA, MIXTURE = "Llama-3.1-8B", "Qwen3-30B-A3B"
SLOW: dict[str, Any] = {"gpus": "4x8xH100", "interconnect": "100Gb/s"}
SLOWER: dict[str, Any] = {"gpus": "8x8xH100", "interconnect": "100Gb/s"}
ONE_SHAPE: dict[str, Any] = {"strategy": "zero3", "micro_batch": 1, "gradient_checkpointing": "on"}
QUANTIZED = {"zero_quantized_weights": True, "zero_quantized_gradients": True}


def ask(model: str = LLAMA, gpus: str = "8xH100", **question: Any) -> Any:
    question = {"loss": "standard", "global_batch": "no-accumulation", **question}
    return advise(model, gpus=gpus, deepspeed_estimate=False, offline=True, **question)


@pytest.mark.parametrize(
    ("model", "question", "feature", "value", "reason"),
    [
        (LLAMA, {"global_batch": 4, "seq_len": 4096}, "autotp_size", 2, "AutoTP"),
        (MIXTURE, {"experts": "autoep"}, "autoep_size", 8, "AutoEP"),
        (LLAMA, SLOW, "zero_hpz_partition_size", 8, "hpZ"),
        (LLAMA, {**SLOWER, "zeropp": True}, "zero_quantized_weights", True, "ZeRO++"),
    ],
)
def test_a_feature_is_chosen_and_explained_where_it_is_faster(
    model: str, question: dict[str, Any], feature: str, value: object, reason: str
) -> None:
    """Plans of the same strategy without it are among the candidates, and not faster; the configuration reads back."""
    answer = ask(model, **question)
    chosen = answer.recommended
    assert getattr(chosen.plan, feature) == value
    assert any(reason in sentence for sentence in answer.reasons)
    without = [each for each in answer.candidates if getattr(each.plan, feature) in (1, False) and each.fit.fits]
    without = [each for each in without if each.strategy == chosen.strategy or feature == "autoep_size"]
    assert without and max(each.tokens_per_s for each in without) < chosen.tokens_per_s * (1 + SAME_SPEED)
    asked = answer.question
    read = plan_from_ds_config(plan_config(answer, answer.recommended), asked.model, asked.cluster, micro_batch_size=1)
    assert getattr(read, feature) == value


@pytest.mark.parametrize(
    ("question", "feature", "value"),
    [
        ({}, "autotp_size", 1),
        ({"global_batch": 4, "sequence_parallel_size": 2}, "autotp_size", 1),
        ({}, "zero_hpz_partition_size", 1),
        ({"gpus": "4x1xH100", "interconnect": "100Gb/s"}, "zero_hpz_partition_size", 1),
        ({"model": MIXTURE}, "autoep_size", 1),
        (SLOWER, "quantizes_collectives", False),
        ({"zeropp": True}, "zero_quantized_gradients", False),
        ({"model": "Qwen2.5-7B", "gpus": "4x24GB"}, "bf16_master_weights_and_grads", False),
    ],
)
def test_a_feature_is_left_out_where_it_does_not_help_or_changes_the_training(
    question: dict[str, Any], feature: str, value: object
) -> None:
    assert {getattr(candidate.plan, feature) for candidate in ask(**question).candidates} == {value}


@pytest.mark.parametrize(
    ("question", "flag", "other"),
    [
        ({"model": MIXTURE}, "--experts autoep", {"model": "Qwen2.5-7B"}),
        ({"model": MIXTURE, "software": "transformers=4.51"}, "--software transformers=5.0", {"model": MIXTURE}),
        ({"model": "Qwen2.5-7B", "gpus": "4x24GB"}, "--optimizer-dtype bf16", {"optimizer_dtype": "bf16"}),
        ({"model": "Llama-3.1-70B", "gpus": "8x8xA100-80GB-SXM", "interconnect": "100Gb/s"}, "--zeropp", {}),
    ],
)
def test_the_gain_of_a_feature_is_among_the_changes(question: dict[str, Any], flag: str, other: dict[str, Any]) -> None:
    """And not where there is nothing to gain."""
    assert [change for change in ask(**question).changes if change.flags == flag]
    assert not [change for change in ask(**other).changes if change.flags == flag]


def test_dropout_on_experts_that_are_modules_is_answered_without_a_change_to_fused_ones() -> None:
    changes = ask(model=MIXTURE, software="transformers=4.51", method="lora", lora_dropout=0.05).changes
    assert not [change for change in changes if change.flags == "--software transformers=5.0"]


@pytest.mark.parametrize(
    ("question", "message", "why"),
    [
        ({"model": "Qwen2.5-7B", "experts": "autoep"}, "AutoEP is not possible here", ""),
        ({"model": MIXTURE, "experts": "autoep", "optimizer_dtype": "bf16"}, "AutoEP is not possible here", ""),
        ({"optimizer_dtype": "bf16", "optimizer": "lion"}, "states in bf16", ""),
        ({"optimizer_dtype": "bf16", "precision": "fp16"}, "states in bf16", ""),
        ({**SLOWER, "zeropp": True, "model": "Qwen2.5-0.5B"}, "is not possible here", "multiple of 8"),
        ({**SLOWER, "zeropp": True, "precision": "fp32"}, "is not possible here", "bf16 or fp16"),
        ({**SLOWER, "zeropp": True, "gpus": "8x8xMI300X"}, "is not possible here", "NVIDIA"),
        ({**SLOWER, "zeropp": True, "optimizer": "muon"}, "is not possible here", "Muon"),
    ],
)
def test_features_that_deepspeed_lacks_are_refused(question: dict[str, Any], message: str, why: str) -> None:
    with pytest.raises(WorkloadError, match=message) as refused:
        ask(**question)
    assert why in str(refused.value)


@pytest.mark.parametrize(("strategy", "size"), [("zero2", 8), ("zero3", 5), ("zero3-nvme", 8)])
def test_second_copies_that_cannot_be_are_refused(strategy: str, size: int) -> None:
    with pytest.raises(WorkloadError, match="cannot run here"):
        estimate(LLAMA, **SLOW, nvme="/tmp:10TB", strategy=strategy, settings={"zero_hpz_partition_size": size})


def test_a_script_of_ones_own_gives_a_group_the_same_samples() -> None:
    text = printed(ask(global_batch=4, seq_len=4096, framework="deepspeed"), width=100, details=True)
    assert "get_world_size() // 2" in text and "get_rank() // 2" in text


def test_autoep_needs_its_transformers_and_has_deepspeeds_block() -> None:
    answer = ask(MIXTURE, experts="autoep")
    chosen, config = answer.recommended, plan_config(answer, answer.recommended)
    assert chosen.plan.zero_stage == 1 and "experts spread over 8" in plan_title(chosen.plan)
    assert any("transformers 5.0 to 5.22" in doubt for doubt in answer.doubts)
    assert config is not None
    assert config["expert_parallel"] == {"enabled": True, "autoep_size": 8, "preset_model": "qwen3_moe"}
    assert "all-to-all of tokens" in chosen.time.components


def test_stage_3_spreads_experts_without_hpz() -> None:
    """DeepSpeed refuses both together."""
    answer = ask("Qwen3-235B-A22B", gpus="16x8xH100", interconnect="400Gb/s", experts="autoep")
    spread = [each for each in answer.candidates if each.plan.zero_stage == 3 and each.plan.autoep_size > 1]
    assert spread and all(each.plan.zero_hpz_partition_size == 1 for each in spread)
    assert (answer.recommended.plan.zero_stage, answer.recommended.plan.autoep_size) == (3, 8)


def test_states_in_bf16_take_half_the_memory_and_round() -> None:
    """Stage 2 keeps 2 bytes for a master and 4 for Adam's states, where fp32 takes 12. Stage 0 and NVMe have none."""
    rounded, exact = (ask("Qwen2.5-7B", "4x24GB", optimizer_dtype=kind) for kind in ("bf16", "fp32"))
    for name in ("master_weights", "optimizer_states"):
        halves = [
            next(step.candidate for step in answer.ladder if step.strategy == "zero2").memory.components[name]
            for answer in (rounded, exact)
        ]
        assert halves[0] == pytest.approx(halves[1] / 2, rel=1e-6)
    assert rounded.recommended.plan.bf16_optimizer_states
    assert any("rounded away" in doubt for doubt in rounded.doubts)
    assert rounded.recommended.tokens_per_s > exact.recommended.tokens_per_s
    assert {step.strategy for step in rounded.ladder if step.candidate is None} == {"ddp", "zero3-nvme"}


@pytest.mark.parametrize(("in_bf16", "peak_gib"), [(False, 31.38), (True, 18.93)])
def test_published_peaks_with_and_without_states_in_bf16_are_met(in_bf16: bool, peak_gib: float) -> None:
    """A GPT of 6.86 B parameters under ZeRO-3 on four H100 (DeepSpeedExamples training/bf16_master_weight@45b4b71,
    DeepSpeed's default sizes): peaks of allocated memory within 1.5 %. A dry run with states in bf16 has 18.72 GiB."""
    sizes = {"sub_group_size": 10**9, "stage3_prefetch_bucket_size": 5 * 10**7, "reduce_bucket_size": 5 * 10**7}
    states = dict.fromkeys(("bf16_master_weights_and_grads", "bf16_optimizer_states"), in_bf16)
    settings = {**sizes, "stage3_param_persistence_threshold": 0, **states}
    found = estimate(str(PUBLISHED), gpus="4xH100-80GB", seq_len=512, attention="eager", settings=settings, **ONE_SHAPE)
    assert found.memory.allocated_bytes_per_gpu / 2**30 == pytest.approx(peak_gib, rel=0.015)


def test_second_copies_take_a_nodes_share_of_the_weights() -> None:
    """At the end of the step every GPU holds w P / h of them; the gathers of the backward pass stay in the node.
    An estimate has them only where its settings say so."""
    copied, once = (estimate(LLAMA, settings={"zero_hpz_partition_size": size}, **ONE_SHAPE, **SLOW) for size in (8, 1))
    ends = [next(phase for phase in each.memory.phases if phase.name == "step") for each in (copied, once)]
    assert ends[0].allocated_bytes - ends[1].allocated_bytes == pytest.approx(2 * 8.03e9 / 8, rel=0.01)
    links = {term.name: term.resource for term in copied.time.terms}
    assert links["weight gathering nearby"] == "gpu links" and links["weight gathering"] == "network"
    assert copied.time.components["weight gathering"] < once.time.components["weight gathering"]
    for settings in ({}, {"reduce_bucket_size": 50_000_000}):
        assert estimate(LLAMA, settings=settings, **ONE_SHAPE, **SLOW).plan.zero_hpz_partition_size == 1


def test_quantized_collectives_are_doubted_and_reduced_in_the_type_that_the_kernel_reads() -> None:
    answer = ask(**SLOWER, zeropp=True, framework="deepspeed")
    config, shown = plan_config(answer, answer.recommended), build_advice(answer).recommended
    assert SENT_IN_FEWER_BITS in answer.doubts
    assert config is not None and config["communication_data_type"] == "fp16"
    assert shown is not None and shown.zero_quantized_weights is shown.zero_quantized_gradients is True


def test_they_send_half_of_the_weights_bytes_and_a_quarter_of_the_gradients() -> None:
    """Between nodes; and scales, 4 bytes for 8000 elements. Two layers' weights arrive in a byte each."""
    exact, quantized = (estimate(LLAMA, settings=settings, **SLOWER, **ONE_SHAPE) for settings in ({}, QUANTIZED))
    inputs = [{term.name: dict(term.inputs) for term in each.time.terms} for each in (exact, quantized)]
    weights = [each["weight gathering"]["weights"] for each in inputs]
    assert weights[1] / weights[0] == pytest.approx(0.5, rel=1e-3)
    assert inputs[1]["gradient reduction"]["sent"] == pytest.approx(8.03e9 / 2, rel=0.01)
    assert quantized.time.components["gradient reduction"] < exact.time.components["gradient reduction"] / 3
    memory = [{phase.name: phase.terms for phase in each.memory.phases} for each in (exact, quantized)]
    gathered = [
        next(term.size_bytes for term in each["layer_backward"] if term.name == "gathered_parameters")
        for each in memory
    ]
    assert gathered[0] - gathered[1] == 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)


@pytest.mark.usefixtures("in_forks")
def test_the_dry_run_takes_shapes_from_deepspeeds_sources_and_meets_the_closed_form() -> None:
    """The engine is real, its kernels allocate what csrc/quantization says."""
    pytest.importorskip("deepspeed")
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 8}
    tiny = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, "vocab_size": 32000}
    shape = shape_from_config(tiny, name="tiny")
    asked = advise(shape, **SLOWER, offline=True, deepspeed_estimate=False, seq_len=512, loss="standard").question
    found = estimate(shape, settings=QUANTIZED, **SLOWER, **ONE_SHAPE, seq_len=512)
    run = Run.from_plan(found.plan, shape, asked.workload, asked.cluster, description=tiny)
    tensors = dry_run(run, rank=1, iterations=3).peak.allocated_bytes_per_gpu
    assert found.memory.allocated_bytes_per_gpu == pytest.approx(tensors, rel=0.08)
