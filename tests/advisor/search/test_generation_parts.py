"""Completions generated in parts, and a smaller batch, where a step's completions do not fit at once."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.advisor.advise import answer, build_question
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.question.file_question import record
from ds_advise.advisor.question.question import Question
from ds_advise.advisor.question.rollouts import generation_choices, rollout_choices
from ds_advise.advisor.search.search import any_fits, fastest
from ds_advise.ds_configs.training_script import script_arguments
from ds_advise.estimators.rollouts import BATCH_SIZE, Rollouts

CROWDED: dict[str, dict[str, Any]] = {
    "one card": {"model": "Qwen2.5-3B", "gpus": "1xRTX4090", "objective": "grpo", "method": "lora"},
    "eight cards": {
        "model": "Qwen2.5-32B",
        "gpus": "8xH100",
        "objective": "grpo",
        "method": "lora",
        "rollout": "generate",
        "max_completion_length": 2048,
    },
    "pairs": {"model": "Qwen2.5-0.5B", "gpus": "1x8GB", "objective": "rloo"},
    "ppo": {"model": "Qwen2.5-1.5B", "gpus": "1xRTX4090", "objective": "ppo"},
}


def ask(model: str, **options: Any) -> Question:
    return build_question(model, **options)


def arguments(found: Recommendation) -> dict[str, Any]:
    assert found.recommended is not None
    return script_arguments(found.question.workload, found.recommended.plan, found.question.cluster, "ds_config.json")


def rollouts(question: Question) -> Rollouts:
    assert question.workload.rollouts is not None
    return question.workload.rollouts


@pytest.mark.parametrize("options", CROWDED.values(), ids=CROWDED)
def test_the_parts_are_the_fastest_of_all_and_the_batch_is_kept(options: dict[str, Any]) -> None:
    """They were searched without a bound here. Generating all at once does not fit the recommended strategy."""
    found, whole = answer(ask(**options)), rollout_choices(ask(**options))
    chosen, parts = found.recommended, [part for choice in whole for part in generation_choices(choice)]
    assert chosen is not None
    speeds = [best.tokens_per_s for part in parts if (best := fastest(part)) is not None]
    assert chosen.tokens_per_s >= 0.97 * max(speeds)
    assert found.question.workload.global_batch_size in {each.workload.global_batch_size for each in whole}
    assert all(best is None or best.tokens_per_s < chosen.tokens_per_s for best in map(fastest, whole))


@pytest.mark.parametrize("name", ["one card", "eight cards", "pairs"])
def test_the_script_generates_whole_groups_for_whole_parts_of_a_step(name: str) -> None:
    """TRL refuses other generations, and scores completions that outlive a step (`GRPOConfig.__post_init__`,
    `_generate_and_score_completions`)."""
    found = answer(ask(**CROWDED[name]))
    printed, ranks = arguments(found), found.question.cluster.world_size
    micro, steps = printed["per_device_train_batch_size"], printed["gradient_accumulation_steps"]
    generated = printed["steps_per_generation"]
    assert 0 < generated < steps and steps % generated == 0
    assert micro * ranks * generated % printed["num_generations"] == 0
    assert rollouts(found.question).policy_passes(steps) == (name == "pairs")  # RLOO always scores
    assert found.recommended is not None
    (recorded,) = record(found.question, found.recommended.plan, {}).values()  # what other commands on the file read
    assert recorded["options"]["steps_per_generation"] == generated


def test_what_the_user_sets_is_kept() -> None:
    given = answer(ask(**CROWDED["one card"], global_batch=512))
    assert given.question.workload.global_batch_size == 512 and arguments(given)["steps_per_generation"] < 512
    at_once = answer(ask(**CROWDED["one card"], global_batch=1024, steps_per_generation=1024))
    assert at_once.recommended is None and rollouts(at_once.question).steps_per_generation == 1024
    few = answer(ask(**CROWDED["ppo"], local_rollout_forward_batch_size=4))
    assert arguments(few)["local_rollout_forward_batch_size"] == 4


@pytest.mark.parametrize(
    "options",
    [
        {"model": "Qwen2.5-1.5B", "gpus": "1xRTX4090", "objective": "ppo", "max_completion_length": 2048},
        {**CROWDED["one card"], "num_iterations": 2},  # a generation outlives its step, so it has no parts
    ],
    ids=["ppo", "iterations"],
)
def test_the_batch_is_halved_until_it_fits_and_this_is_said(options: dict[str, Any]) -> None:
    question = ask(**options)
    found = answer(question)
    size = found.question.workload.global_batch_size
    assert found.recommended is not None and size is not None and size < BATCH_SIZE
    assert f"a batch of {size} completions, halved from {BATCH_SIZE} until it fits" in found.assumptions
    larger = [part for choice in rollout_choices(question, 2 * size) for part in generation_choices(choice)]
    assert {part.workload.global_batch_size for part in larger} == {2 * size} and not any(map(any_fits, larger))


def test_nothing_fits_only_if_no_batch_and_no_part_of_it_does() -> None:
    question = ask("Qwen2.5-72B", gpus="1xRTX4090", objective="grpo", method="lora")
    assert answer(question).recommended is None
    batches = [BATCH_SIZE >> power for power in range(11)]
    choices = [choice for size in batches for choice in rollout_choices(question, size)]
    assert not any(any_fits(part) for choice in choices for part in generation_choices(choice))
