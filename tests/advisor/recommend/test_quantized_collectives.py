"""ZeRO++'s quantized collectives: what they win, what they take, and where DeepSpeed cannot run them."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.answer.advice import advice_of
from ds_advise.advisor.answer.reasons import SENT_IN_FEWER_BITS, doubts
from ds_advise.advisor.estimate import estimate
from ds_advise.advisor.render.deliver import recommended_config
from ds_advise.ds_configs.read import plan_from_ds_config
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.time.collective_time import QuantizedReduction, quantized_bytes
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

SLOW: dict[str, Any] = {"gpus": "8x8xH100", "interconnect": "100Gb/s"}
NAMED: dict[str, Any] = {**SLOW, "rung": "zero3", "micro_batch": 1, "gradient_checkpointing": "on"}
BOTH = {"zero_quantized_weights": True, "zero_quantized_gradients": True}


def ask(model: str = "Llama-3.1-8B", **question: Any) -> Any:
    return advise(model, deepspeed_estimate=False, offline=True, **{**SLOW, **question})


def test_they_are_taken_only_when_asked_for_and_the_answer_says_what_they_cost() -> None:
    assert not any(candidate.plan.quantizes_collectives for candidate in ask().candidates)
    answer = ask(zeropp=True)
    chosen = answer.recommended
    assert chosen.plan.zero_quantized_weights and chosen.plan.zero_quantized_gradients
    assert SENT_IN_FEWER_BITS in doubts(answer.question.cluster, answer.ladder, chosen)
    assert any("8 bits and gradients in 4" in reason for reason in answer.reasons)
    shown = to_json(advice_of(answer, all_candidates=False))["recommended"]
    assert shown["zero_quantized_weights"] is shown["zero_quantized_gradients"] is True


def test_where_the_network_is_the_limit_the_answer_names_them() -> None:
    changes = ask("Llama-3.1-70B", gpus="8x8xA100-80GB-SXM").changes
    assert "--zeropp" in [change.flags for change in changes]


def test_the_configuration_reads_back_and_has_gradients_in_the_type_that_the_kernel_reads() -> None:
    answer = ask(zeropp=True, framework="deepspeed")
    config = recommended_config(answer)
    assert config is not None and config["communication_data_type"] == "fp16"
    read = plan_from_ds_config(config, answer.question.model, answer.question.cluster)
    assert read.zero_quantized_weights and read.zero_quantized_gradients


def test_on_one_node_weights_alone_are_quantized() -> None:
    plans = [each.plan for each in ask(gpus="8xH100", zeropp=True).candidates]
    assert any(plan.zero_quantized_weights for plan in plans)
    assert not any(plan.zero_quantized_gradients for plan in plans)


def test_they_send_half_of_the_weights_bytes_and_a_quarter_of_the_gradients() -> None:
    """Between nodes; and scales, 4 bytes for 8000 elements."""
    exact, quantized = (estimate("Llama-3.1-8B", settings=settings, **NAMED) for settings in ({}, BOTH))
    inputs = [{term.name: dict(term.inputs) for term in each.time.terms} for each in (exact, quantized)]
    weights = [each["weight gathering"]["weights"] for each in inputs]
    assert weights[1] / weights[0] == pytest.approx(0.5, rel=1e-3)
    assert inputs[1]["gradient reduction"]["sent"] == pytest.approx(8.03e9 / 2, rel=0.01)
    assert quantized.time.components["gradient reduction"] < exact.time.components["gradient reduction"] / 3


def test_a_quantized_reduction_goes_around_in_two_levels() -> None:
    """Through a GPU's link V (L - 1) / L, through a node's adapters V (M - 1) / M."""
    once = {"calls": 0, "link_bytes_per_s": 1e12, "network_bytes_per_s": 1e9, "call_s": 0.0}
    reduction = QuantizedReduction(size_bytes=quantized_bytes(2e9, 4), local=8, nodes=4, **once)  # type: ignore[arg-type]
    assert reduction.seconds == pytest.approx(1.001 * (3 / 4 + 7 / 8 / 1000), rel=1e-3)


@pytest.mark.parametrize(
    ("model", "question", "why"),
    [
        ("Qwen2.5-0.5B", {}, "multiple of 8"),
        ("Llama-3.1-8B", {"precision": "fp32"}, "bf16 or fp16"),
        ("Llama-3.1-8B", {"gpus": "8x8xMI300X"}, "NVIDIA"),
        ("Llama-3.1-8B", {"optimizer": "muon"}, "Muon"),
    ],
)
def test_what_cannot_be_quantized_is_refused(model: str, question: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkloadError, match="is not possible here") as refused:
        ask(model, zeropp=True, **question)
    assert why in str(refused.value)


TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}


def test_the_dry_run_takes_shapes_from_deepspeeds_sources_and_meets_the_closed_form() -> None:
    """The engine is real, its kernels allocate what csrc/quantization says."""
    shape = shape_from_config(TINY, name="tiny")
    asked = advise(shape, **SLOW, offline=True, deepspeed_estimate=False, seq_len=512).question
    found = estimate(shape, settings=BOTH, **NAMED, seq_len=512)
    run = Run.of_plan(found.plan, shape, asked.workload, asked.cluster, description=TINY)
    result = dry_run(run, rank=1, iterations=3)
    tensors = result.peak.allocated_bytes_per_gpu
    assert found.memory.allocated_bytes_per_gpu == pytest.approx(tensors, rel=0.08)
