"""Long sequences: GPUs that share samples, and layers' inputs that wait in host RAM."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.ask import ask as question_of
from ds_advise.advisor.estimate import plan_of
from ds_advise.advisor.recommend.deliver import recommended_config
from ds_advise.advisor.recommend.recommendation import Recommendation
from ds_advise.advisor.recommend.to_json import json_form
from ds_advise.estimators.errors import WorkloadError

LONG: dict[str, Any] = {"gpus": "8xH100", "seq_len": 131_072}


def ask(model: str, **question: Any) -> Recommendation:
    return advise(model, **question, offline=True, deepspeed_estimate=False)


def test_gpus_share_samples_that_no_gpu_can_hold() -> None:
    """And the answer says what a whole sample would need."""
    answer = ask("Llama-3.1-8B", **LONG)
    chosen = answer.recommended
    assert chosen is not None and chosen.plan.sequence_parallel_size == 8
    assert json_form(answer, all_candidates=False)["recommended"]["sequence_parallel_size"] == 8
    assert any("share each sample" in reason for reason in answer.reasons)
    whole = [each.fit.probability for each in answer.candidates if each.plan.sequence_parallel_size == 1]
    assert whole and max(whole) < 0.5


def test_samples_stay_whole_where_they_fit() -> None:
    answer = ask("Llama-3.1-8B", gpus="8xH100", seq_len=8192)
    assert {each.plan.sequence_parallel_size for each in answer.candidates if each.fit.fits} == {1}
    assert not any(each.plan.cpu_checkpointing for each in answer.candidates)


def test_tokens_and_samples_are_those_of_the_groups() -> None:
    """Of 8 GPUs four groups of two take a sample each."""
    answer = ask("Llama-3.1-8B", gpus="8xH100", seq_len=8192, sequence_parallel_size=2, micro_batch=1)
    chosen = answer.recommended
    assert chosen is not None and chosen.time.tokens_per_step == 4 * 8192
    config = recommended_config(ask("Llama-3.1-8B", **LONG, framework="deepspeed"))
    assert config is not None
    assert (config["train_batch_size"], config["sequence_parallel_size"]) == (1, 8)


def test_a_global_batch_below_the_gpus_lets_them_share() -> None:
    answer = ask("Llama-3.1-8B", gpus="8xH100", seq_len=8192, global_batch=4)
    assert {each.plan.sequence_parallel_size for each in answer.candidates} >= {2}
    assert all(each.time.tokens_per_step == 4 * 8192 for each in answer.candidates)


def test_layers_inputs_go_to_the_host_where_nothing_else_fits() -> None:
    long = {"gpus": "1xH100", "loss": "fused", "kernels": "liger", "ram": "1900GB"}
    answer = ask("Llama-3.1-8B", **long, seq_len=200_000)
    chosen = answer.recommended
    assert chosen is not None and chosen.plan.cpu_checkpointing
    assert any("wait in host RAM" in reason for reason in answer.reasons)
    kept = ask("Llama-3.1-8B", **long, seq_len=200_000, gradient_checkpointing="on")
    assert kept.recommended is None


@pytest.mark.parametrize(
    ("model", "question", "why"),
    [
        ("gpt2", {}, "gpt2"),
        ("Llama-3.1-8B", {"sequence_parallel_size": 3}, "32 heads"),
        ("Llama-3.1-8B", {"seq_len": 2049}, "2049 tokens"),
        ("Llama-3.1-8B", {"attention": "eager"}, "eager"),
        ("mistral-7b-v0.1", {}, "sliding window"),
        ("Llama-3.1-8B", {"sequence_parallel_size": 16}, "groups of 16"),
    ],
)
def test_what_cannot_share_samples_is_told(model: str, question: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkloadError, match="cannot share a sample") as refused:
        ask(model, gpus="8xH100", **{"seq_len": 1024, "sequence_parallel_size": 8, **question})
    assert why in str(refused.value)


PUBLISHED = [
    (32_000, {"loss": "standard", "kernels": "torch"}),
    (160_000, {}),
    (1_100_000, {"sequence_parallel_size": 8}),
    (2_400_000, {"sequence_parallel_size": 8, "gradient_checkpointing": "offload"}),
]
"""Longest sequences of Llama-3.1-8B on eight H100 with the optimizer on the host, FlashAttention-2 and, but for the
first, Liger (ALST, arXiv:2506.13996 table 1; those with a tiled feed-forward left out)."""


@pytest.mark.parametrize(("seq_len", "settings"), PUBLISHED)
def test_published_longest_sequences_fit_and_twice_those_do_not(seq_len: int, settings: dict[str, Any]) -> None:
    def fits(length: int) -> bool:
        question = {"gradient_checkpointing": "on", "loss": "fused", "kernels": "liger", "sequence_parallel_size": 1}
        asked = question_of(
            "Llama-3.1-8B",
            gpus="8xH100",
            ram="1900GB",
            attention="flash",
            micro_batch=1,
            seq_len=length,
            **{**question, **settings},
        )
        return plan_of(asked, "zero3-offload", "offload_param=none").fit.fits

    assert fits(seq_len) and not fits(2 * seq_len)


@pytest.mark.parametrize(
    ("model", "gpus"), [("Llama-3.1-8B", "8xH100"), ("Qwen2.5-0.5B", "1x24GB"), ("gpt2-xl", "1x24GB")]
)
def test_the_longest_sequence_fits_and_a_longer_one_does_not(model: str, gpus: str) -> None:
    """Unless the model has no more positions."""
    longest = ask(model, gpus=gpus, seq_len="max")
    length = longest.question.workload.seq_len
    assert longest.recommended is not None
    if length == longest.question.model.max_positions and longest.question.model.has_learned_positions:
        return
    longer = length + max(1024, -(-length // 16 // 1024) * 1024)
    assert ask(model, gpus=gpus, seq_len=longer).recommended is None
