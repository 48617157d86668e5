"""Long sequences: GPUs that share samples, and layers' inputs that wait in host RAM."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.advise import answer, estimate, strategy_candidate
from ds_advise.advisor.advise import build_question as question_of
from ds_advise.advisor.answer.advice import build_advice
from ds_advise.advisor.answer.facts import memory_facts, speed_fact
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.answer.start import plan_config
from ds_advise.advisor.search.candidate import LEAST, LIKELY, Fit
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

from tests.helpers import printed

LONG: dict[str, Any] = {"gpus": "8xH100", "seq_len": 131_072}


def build_question(model: str, **question: Any) -> Recommendation:
    return advise(model, **question, offline=True, deepspeed_estimate=False)


def test_gpus_share_samples_that_no_gpu_can_hold() -> None:
    """And the answer says what a whole sample would need."""
    answer = build_question("Llama-3.1-8B", **LONG)
    chosen = answer.recommended
    assert chosen is not None and chosen.plan.sequence_parallel_size == 8
    assert to_json(build_advice(answer, all_candidates=False))["recommended"]["sequence_parallel_size"] == 8
    assert any("(Ulysses)" in reason for reason in answer.reasons)
    whole = [each.fit.probability for each in answer.candidates if each.plan.sequence_parallel_size == 1]
    assert whole and max(whole) < 0.5


def test_a_plan_that_lacks_nothing_but_nvme_shares_samples_too() -> None:
    """What it needs is shown as it would be with a drive."""
    without, given = (
        next(step for step in build_question("Llama-3.1-8B", **LONG, **named).ladder if step.strategy == "zero3-nvme")
        for named in ({}, {"nvme": "/nvme:2TB"})
    )
    assert given.fits and without.reason == "needs --nvme"
    assert without.candidate is not None and given.candidate is not None
    assert without.candidate.plan == given.candidate.plan


def test_samples_stay_whole_where_they_fit() -> None:
    answer = build_question("Llama-3.1-8B", gpus="8xH100", seq_len=8192)
    assert {each.plan.sequence_parallel_size for each in answer.candidates if each.fit.fits} == {1}
    assert not any(each.plan.cpu_checkpointing for each in answer.candidates)


def test_tokens_and_samples_are_those_of_the_groups() -> None:
    """Of 8 GPUs four groups of two take a sample each."""
    answer = build_question("Llama-3.1-8B", gpus="8xH100", seq_len=8192, sequence_parallel_size=2, global_batch=4)
    chosen = answer.recommended
    assert chosen is not None and chosen.time.tokens_per_step == 4 * 8192
    answer = build_question("Llama-3.1-8B", **LONG, global_batch=1, framework="deepspeed")
    assert answer.recommended is not None
    config = plan_config(answer, answer.recommended)
    assert (config["train_batch_size"], config["sequence_parallel_size"]) == (1, 8)


def test_layers_inputs_go_to_the_host_where_nothing_else_fits() -> None:
    long = {"gpus": "1xH100", "loss": "fused", "kernels": "liger", "ram": "1900GB"}
    answer = build_question("Llama-3.1-8B", **long, seq_len=200_000)
    chosen = answer.recommended
    assert chosen is not None and chosen.plan.cpu_checkpointing
    assert any("layer inputs in host RAM" in reason for reason in answer.reasons)
    kept = build_question("Llama-3.1-8B", **long, seq_len=200_000, gradient_checkpointing="on")
    assert kept.recommended is None


@pytest.mark.parametrize(
    ("model", "question", "why"),
    [
        ("gpt2", {}, "gpt2"),
        ("Llama-3.1-8B", {"sequence_parallel_size": 3}, "32 heads"),
        ("Llama-3.1-8B", {"seq_len": 2049}, "2049 tokens"),
        ("Llama-3.1-8B", {"attention": "eager"}, "eager"),
        ("mistral-7b-v0.1", {}, "sliding window"),
    ],
)
def test_models_that_cannot_share_samples_are_refused(model: str, question: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkloadError, match="cannot share a sample") as refused:
        build_question(model, gpus="8xH100", **{"seq_len": 1024, "sequence_parallel_size": 8, **question})
    assert why in str(refused.value)


PUBLISHED = [
    ("Llama-3.1-8B", 32_000, {"loss": "standard", "kernels": "torch"}),
    ("Llama-3.1-8B", 160_000, {}),
    ("Llama-3.1-8B", 1_100_000, {"sequence_parallel_size": 8}),
    ("Llama-3.1-8B", 2_400_000, {"sequence_parallel_size": 8, "gradient_checkpointing": "offload"}),
    ("Llama-3.1-70B", 200_000, {"sequence_parallel_size": 8, "mlp": "tiled"}),
]
"""Longest sequences on eight H100 with the optimizer on the host, FlashAttention-2 and, but for the
first, Liger (ALST, arXiv:2506.13996 table 1; of those with a tiled feed-forward one)."""


@pytest.mark.parametrize(("model", "seq_len", "settings"), PUBLISHED)
def test_published_longest_sequences_fit_and_twice_those_do_not(
    model: str, seq_len: int, settings: dict[str, Any]
) -> None:
    settings = {"gradient_checkpointing": "on", "sequence_parallel_size": 1, **settings}
    """The second of them, which needs 94 % of the GPUs, likely."""
    assert published(model, "8xH100", seq_len, **settings).probability >= LEAST["balanced"]
    assert published(model, "8xH100", 2 * seq_len, **settings).probability < LIKELY


def published(model: str, gpus: str, seq_len: int, **settings: Any) -> Fit:
    """Whether a run of ALST's fits; parameters are on the host where there is one GPU."""
    usual: dict[str, Any] = {"ram": "1900GB", "attention": "flash", "micro_batch": 1, "global_batch": "no-accumulation"}
    asked = question_of(model, gpus=gpus, seq_len=seq_len, **{"loss": "fused", "kernels": "liger", **usual, **settings})
    return strategy_candidate(asked, "zero3-offload", f"offload_param={'cpu' if gpus == '1xH100' else 'none'}").fit


TILED = [
    ("Llama-3.1-8B", "1xH100", 1, 500_000),
    ("Llama-3.1-8B", "8xH100", 8, 3_700_000),
    ("Llama-3.1-70B", "4x8xH100", 32, 4_000_000),
    ("Llama-3.1-70B", "2x8xH100", 16, 1_200_000),
    ("Qwen3-32B", "8x8xH100", 64, 15_000_000),
    ("Llama-3.1-70B", "8x8xH100", 64, 10_000_000),
]
"""Longest sequences with a tiled feed-forward, Liger, the optimizer and the layers' inputs on the host (ArcticTraining
projects/sequence-parallelism, recipes at b28638e)."""
HOST_DECIDES = TILED[3:]
"""Those that do not fit here for the host's memory alone: transformers pins the layers' inputs, and a pinned block is
the next power of two; ArcticTraining's own offload leaves them pageable, as `--software pinned-inputs=no` does."""


@pytest.mark.parametrize("run", TILED, ids=str)
def test_published_longest_sequences_with_tiles(run: tuple[str, str, int, int]) -> None:
    model, gpus, ranks, seq_len = run
    settings = {"gradient_checkpointing": "offload", "sequence_parallel_size": ranks, "mlp": "tiled"}
    fit = published(model, gpus, seq_len, **settings)
    assert fit.fits if run not in HOST_DECIDES else fit.limit == "host"
    assert not published(model, gpus, 2 * seq_len, **settings).fits
    pageable = settings | {"software": "pinned-inputs=no"}
    assert published(model, gpus, seq_len, **pageable).probability >= LEAST["balanced"]
    assert not published(model, gpus, 2 * seq_len, **pageable).fits


def test_inputs_that_page_locking_keeps_off_the_host_are_left_pageable() -> None:
    """With the lines of the script that see to it, which replace what transformers calls."""
    long: dict[str, Any] = {"gpus": "8x8xH100", "ram": "1900GB", "seq_len": 15_000_000}
    long |= {"attention": "flash", "kernels": "liger"}
    long |= {"loss": "fused", "mlp": "tiled", "sequence_parallel_size": 64, "micro_batch": 1}
    long |= {"gradient_checkpointing": "offload"}
    answer = build_question("Qwen3-32B", **long)
    assert answer.recommended is None
    answer = build_question("Qwen3-32B", **long, software="pinned-inputs=no")
    assert answer.recommended is not None
    shown = printed(answer, width=120, details=True)
    assert '{"pin_memory": False}' in shown
    assert "ds-advise launch ds_config.json --hostfile hostfile -- train.py" in " ".join(shown.split())


def test_tiles_are_named_where_nothing_else_fits_and_how_they_are_switched_on() -> None:
    long = {"gpus": "1xH100", "ram": "1900GB", "seq_len": 400_000, "attention": "flash"}
    standard = build_question("Llama-3.1-8B", **long, loss="standard")
    assert "--loss tiled --mlp tiled" in [change.flags for change in standard.changes]
    assert "--mlp tiled" in [
        change.flags for change in build_question("Llama-3.1-8B", **long).changes
    ]  # with the fused loss
    answer = build_question("Llama-3.1-8B", **long, loss="tiled", mlp="tiled")
    assert "tile_feed_forward(trainer.model, tiles=98)" in printed(answer, width=120, details=True)


@pytest.mark.parametrize(
    ("model", "question", "why"),
    [
        ("gpt2", {"mlp": "tiled"}, "gpt2"),
        ("Qwen2.5-0.5B", {"loss": "tiled"}, "tied to the embedding"),
        ("Llama-3.1-8B", {"mlp": "tiled", "method": "lora", "lora_dropout": 0.1}, "dropout"),
    ],
)
def test_models_that_cannot_be_tiled_are_refused(model: str, question: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkloadError, match="tiles are not possible") as refused:
        build_question(model, gpus="1x24GB", seq_len=1024, **question)
    assert why in str(refused.value)


SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
SMALL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, "vocab_size": 32000}


@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize("pinned", [True, False])
def test_offloaded_layer_inputs_take_the_host_bytes_of_transformers(pinned: bool) -> None:
    """To the byte, in a dry run of its own offload: blocks of a power of two, or exactly what is held."""
    pytest.importorskip("torch")
    shape = shape_from_config(SMALL, name="small")
    question: dict[str, Any] = {"gpus": "2xH100", "seq_len": 3000, "offline": True, "loss": "standard"}
    question |= {} if pinned else {"software": "pinned-inputs=no"}
    asked = advise(shape, **question, deepspeed_estimate=False).question
    found = estimate(shape, strategy="zero2", micro_batch=1, gradient_checkpointing="offload", **question)
    run = Run.from_plan(found.plan, shape, asked.workload, asked.cluster, description=SMALL)
    steps = dry_run(run, rank=0, iterations=2).phases
    held = max(step.host_held_peak_bytes for step in steps if step.phase == "backward")
    terms = found.memory.host_pinned_terms if pinned else found.memory.host_pageable_terms
    assert held * 2 == next(term.size_bytes for term in terms if term.name == "layer_inputs")


def test_gpus_share_samples_that_are_too_long_for_one_on_each() -> None:
    """Otherwise the default step of the longest sequence would have 32 x 7.5 M tokens. A step of hours is named."""
    question = question_of("llama3.1-8b", gpus="4x8xH100", seq_len=2**23)
    assert question.workload.global_batch_size == 1
    assert {plan.plan.sequence_parallel_size for plan in answer(question).candidates} == {32}
    assert question_of("llama3.1-8b", gpus="4x8xH100", seq_len=2**20).workload.global_batch_size == 4
    assert question_of("llama3.1-8b", gpus="4x8xH100", seq_len=2**17).workload.global_batch_size == 32
    found = answer(question)
    assert found.shown is not None
    assert "a step takes" in speed_fact(question, found.shown).words


def test_the_first_node_reads_the_checkpoint() -> None:
    found = answer(question_of("Qwen2.5-72B", gpus="4x8xH100", method="lora", ram="1TB"))
    plan = next(each for each in found.candidates if each.plan.zero_stage == 3)
    words = {fact.title: fact.words for fact in memory_facts(found.question, plan)}["host RAM"]
    others = plan.memory.host_bytes_of_other_nodes
    assert others < plan.memory.host_bytes_per_node - 100 * 2**30
    assert f" on the first node, {others / 2**30:.1f} GiB on the others" in words
