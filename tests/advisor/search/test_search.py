"""The search finds the recommended plan also without the whole ladder, and computes no more than the choice needs."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import pytest
from ds_advise.advisor.advise import build_question, predicted
from ds_advise.advisor.search.batch_sweep import RESOLVED
from ds_advise.advisor.search.candidate import predict
from ds_advise.advisor.search.choice import SAME_SPEED, drop_dominated, fastest_that_fits
from ds_advise.advisor.search.search import fastest, predict_all
from ds_advise.advisor.search.search_space import search_stages
from ds_advise.estimators.plan import Plan
from ds_advise.probes.gc_pause import gc_paused

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("Llama-3.1-8B", {"gpus": "8xH100"}),
    ("Llama-3.1-8B", {"gpus": "4xA100-80GB", "seq_len": 65536}),
    ("Qwen2.5-7B", {"gpus": "1xRTX4090", "ram": "128GB"}),
    ("Qwen2.5-7B", {"gpus": "4x24GB", "method": "lora"}),
    ("Qwen2.5-7B", {"gpus": "4xL4", "risk": "bold", "nvme": "/nvme:2TB"}),
    ("Qwen3-30B-A3B", {"gpus": "8xA100-80GB", "method": "lora"}),
    ("Llama-3.1-70B", {"gpus": "2x8xH100"}),
    ("gpt2", {"gpus": "1xT4"}),
    ("Mistral-7B-v0.1", {"gpus": "2x8xA100-80GB", "micro_batch": 2, "gradient_checkpointing": "on"}),
    ("Qwen2.5-7B", {"gpus": "8xL40S", "global_batch": 4, "seq_len": 8192}),
    ("Qwen2.5-32B", {"gpus": "2xH100", "ram": "2TB"}),
    ("phi-4", {"gpus": "4x8xL40S"}),
]


@pytest.mark.parametrize(("model", "options"), QUESTIONS, ids=str)
def test_the_quick_search_finds_the_plan_of_the_ladder(model: str, options: dict[str, Any]) -> None:
    question = build_question(model, **options)
    quick, whole = fastest(question), fastest_that_fits(predict_all(question)[0])
    assert (quick and (quick.plan, quick.fit, quick.tokens_per_s)) == (
        whole and (whole.plan, whole.fit, whole.tokens_per_s)
    )


@pytest.mark.parametrize(("model", "options"), QUESTIONS[::4], ids=str)
def test_a_search_for_more_speed_than_there_is_ends_without_a_plan(model: str, options: dict[str, Any]) -> None:
    question = build_question(model, **options)
    best = fastest(question)
    assert best is not None and fastest(question, enough=10 * best.tokens_per_s) is None
    enough = fastest(question, enough=0.99 * best.tokens_per_s)
    assert enough is not None and enough.plan == best.plan


def test_a_plan_that_needs_enough_ram_is_faster_than_the_others() -> None:
    """ZeRO-2 is as fast as ZeRO-3 here, and its ranks load more than the RAM that is usual."""
    ladder = predict_all(build_question("phi-4", gpus="4x8xL40S"))[0]
    plans = {step.strategy: step.candidate for step in ladder if step.candidate is not None}
    assert plans["zero2"].fit.assumed_host_bytes and not plans["zero3"].fit.assumed_host_bytes
    chosen = fastest_that_fits(ladder)
    assert chosen is not None and chosen.strategy == "zero3"


def test_no_micro_batch_that_surely_fits_is_faster() -> None:
    question = build_question("Qwen2.5-32B", gpus="2xH100", ram="2TB", global_batch="no-accumulation")
    best = fastest(question)
    assert best is not None
    sizes = range(1, 4 * best.plan.micro_batch_size)
    every = [
        predict(question.model, question.workload, question.cluster, replace(best.plan, micro_batch_size=size))
        for size in sizes
    ]
    assert best.tokens_per_s >= (1 - SAME_SPEED - RESOLVED) * max(each.tokens_per_s for each in every if each.fit.fits)
    assert best.plan.micro_batch_size & (best.plan.micro_batch_size - 1)  # not a power of two


def test_without_accumulation_more_samples_at_a_time_may_need_less() -> None:
    question = build_question("Qwen2.5-7B", gpus="4x48GB", global_batch=8, seq_len=512, risk="bold")
    gib = 2**30
    larger = replace(
        question, cluster=replace(question.cluster, gpu=replace(question.cluster.gpu, memory_bytes=52 * gib))
    )
    sweep = search_stages("zero1", larger)[0].sweeps()[0]
    by_shape = {shape: sweep.candidate(shape).fit.probability for shape in sweep.shapes}
    assert by_shape[1, 2] < by_shape[2, 1]
    assert sweep.rising_candidates()[-1].plan.gradient_accumulation_steps == 1


class Timed(NamedTuple):
    plan: Plan
    tokens_per_s: float


def test_a_costly_feature_must_gain_a_tenth_over_plans_without_it() -> None:
    plan = Plan(zero_stage=0, micro_batch_size=1, gradient_accumulation_steps=1)
    replicated, sharded, gathered, offloaded = (
        Timed(plan, 94),
        Timed(replace(plan, zero_stage=2), 100),
        Timed(replace(plan, zero_stage=3), 105),
        Timed(replace(plan, zero_stage=3, offload_optimizer="cpu"), 112),
    )
    assert drop_dominated([replicated, sharded, gathered, offloaded]) == [replicated, sharded, offloaded]
    fast = gathered._replace(tokens_per_s=112)
    assert drop_dominated([sharded, fast]) == [sharded, fast]
    # A plan that offloads, without stage 3 too, does more than one that gathers over the links of the GPUs.
    offloaded = Timed(replace(plan, zero_stage=2, offload_optimizer="cpu"), 110)
    assert drop_dominated([offloaded, gathered]) == [gathered]
    stored = Timed(replace(plan, zero_stage=1, gradient_checkpointing=True, cpu_checkpointing=True), 107)
    assert drop_dominated([stored, gathered]) == [gathered]
    # A plan that shares samples needs changes to the script: every plan without is simpler.
    shared = Timed(replace(plan, zero_stage=1, sequence_parallel_size=4), 109)
    for simple in (sharded, gathered, offloaded._replace(tokens_per_s=100)):
        assert drop_dominated([shared, simple]) == [simple]
    fast = shared._replace(tokens_per_s=120)
    assert drop_dominated([fast, gathered]) == [fast, gathered]
    both = Timed(replace(shared.plan, zero_stage=3), 115)
    assert drop_dominated([shared, both]) == [shared]


@pytest.mark.parametrize(
    ("model", "gpus", "options", "loss"),
    [
        ("Llama-3.1-8B", "8xH100", {"seq_len": 32_768}, "fused"),
        ("Qwen2.5-7B", "8xA100-80GB", {"seq_len": 32_768}, "fused"),
        ("Qwen2.5-32B", "8xA100-40GB", {"seq_len": 8192, "method": "qlora"}, "standard"),
    ],
)
def test_samples_are_not_shared_where_a_plan_of_equal_speed_does_without(
    model: str, gpus: str, options: dict[str, Any], loss: str
) -> None:
    """Another loss, or stage 3, makes the sharing needless."""
    answer = predicted(build_question(model, gpus=gpus, offline=True, **options))
    assert answer.recommended is not None and answer.recommended.plan.ranks_per_sample == 1
    assert answer.question.workload.loss == loss


@pytest.mark.parametrize(
    ("model", "options", "strategy"),
    [
        # zero1 is equally fast with the layers' inputs in host RAM
        ("Qwen2.5-7B", {"gpus": "8xH100", "seq_len": 262_144}, "zero2"),
        # zero2-offload is equally fast, with another loss or the same one, and needs a condition on the host's RAM
        ("Qwen2.5-1.5B", {"gpus": "1xV100-32GB"}, "zero3"),
        (
            "Qwen2.5-7B",
            {"gpus": "4x16GB", "method": "qlora", "modules_to_save": "embed_tokens,lm_head"},
            "zero3",
        ),
    ],
)
def test_a_plan_that_offloads_is_not_chosen_over_one_of_equal_speed_that_does_not(
    model: str, options: dict[str, Any], strategy: str
) -> None:
    chosen = predicted(build_question(model, offline=True, **options)).recommended
    assert chosen is not None
    assert (chosen.strategy, chosen.plan.offloads, chosen.plan.cpu_checkpointing) == (strategy, False, False)
    assert not chosen.fit.assumed_host_bytes


def test_the_time_of_a_plan_that_does_not_fit_is_worked_out_when_it_is_asked_for() -> None:
    question = build_question("Llama-3.1-8B", gpus="8xH100", seq_len=131_072, ram="2TB", offline=True)
    _, candidates = predict_all(question)
    failing = [each for each in candidates if each.fit.limit == "gpu" and not each.fit.gpu_likely_suffices]
    timed = [each for each in failing if "estimate" in vars(each)]
    assert len(failing) > 40 and len(timed) < len(failing) / 4
    assert all(each.tokens_per_s > 0 for each in failing)


def test_a_search_leaves_the_collector_as_it_was() -> None:
    question = build_question("Qwen2.5-0.5B", gpus="1xH100", offline=True)
    predict_all(question)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), gc_paused():
        assert not gc.isenabled()
        1 / 0  # noqa: B018
    assert gc.isenabled()
    gc.disable()
    try:
        predict_all(question)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_would_change_the_answer_is_searched_for_as_it_is_read() -> None:
    """A short answer reads four changes; the rest would take most of its time."""
    found = predicted(build_question("Qwen2.5-14B", gpus="2x32GB", offline=True))
    few = list(islice(found.changes, 4))
    assert not found.changes.are_all_tried
    every = list(found.changes)
    assert every[:4] == few and len(every) > 4 and found.changes.are_all_tried and list(found.changes) == every


def test_inputs_of_layers_stay_on_the_gpu_where_the_answer_cannot_move_them() -> None:
    """As in a user's command: no strategy has such a plan, in any stage of its search."""
    question = build_question("Qwen2.5-7B", gpus="4xA100-40GB", ram="1000GB", seq_len=65536, offline=True)
    for offloads in (True, False):
        candidates = predicted(replace(question, offloads_checkpoints=offloads)).candidates
        assert any(each.plan.cpu_checkpointing for each in candidates) is offloads
