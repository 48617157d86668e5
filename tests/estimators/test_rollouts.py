"""Reinforcement learning: the phases of a step, what generates, and how the search chooses it."""

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from ds_advise.advisor.advise import answer, build_question
from ds_advise.advisor.answer.advice import build_advice
from ds_advise.advisor.answer.phases import phase_figures
from ds_advise.advisor.answer.start import plan_config
from ds_advise.advisor.question.rollouts import rollout_choices
from ds_advise.advisor.search.search import fastest
from ds_advise.ds_configs.training_script import script_lines, server_commands, training_arguments
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.memory.evaluation import cached_elements
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.memory.rollout_memory import VLLM_GRAPHS_BYTES
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.objectives import OBJECTIVES, trained_model
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.estimators.time.job import server_cluster
from ds_advise.estimators.time.rollout_time import vllm_engine
from ds_advise.estimators.time.step_time import estimate_forward_s, estimate_time
from ds_advise.estimators.unsupported import unsupported
from ds_advise.estimators.workload import Workload

from tests.helpers import h100s, printed

MODEL, CLUSTER = find("Qwen2.5-1.5B"), h100s(8)
PLAN = Plan(zero_stage=3, micro_batch_size=4, gradient_accumulation_steps=8, gradient_checkpointing=True)


def grpo(**settings: Any) -> Workload:
    rollouts = Rollouts(**settings)
    return Workload(objective="grpo", framework="trl", loss="chunked-head", seq_len=1024, rollouts=rollouts)


def allocated(workload: Workload, plan: Plan = PLAN) -> dict[str, int]:
    return {phase.name: phase.allocated_bytes for phase in estimate_memory(MODEL, workload, CLUSTER, plan).phases}


def test_a_token_of_a_cache_is_a_key_and_a_value_of_each_head_and_layer() -> None:
    assert cached_elements(find("Qwen2.5-7B"), 1, latent=True) == 28 * 4 * (128 + 128)
    deepseek = find("DeepSeek-V2-Lite")
    assert cached_elements(deepseek, 1, latent=True) == 27 * (512 + 64)


def test_stage_3_generates_with_the_whole_model_by_default() -> None:
    whole, layers = allocated(grpo()), allocated(grpo(ds3_gather_for_generation=False))
    server = allocated(grpo(rollout="vllm-server", server_gpus=8))
    assert whole["rollout"] - server["weight_synchronization"] > 0.7 * 2 * MODEL.parameters
    assert whole["rollout"] > layers["rollout"]
    below = allocated(grpo(), replace(PLAN, zero_stage=2))
    cache = 2 * 32 * cached_elements(MODEL, 1024, latent=False)
    assert below["rollout"] - below["step"] < cache + 14 * 32 * MODEL.vocab_size


def test_vllm_on_the_same_gpu_takes_its_part_in_every_phase_or_asleep_in_the_rollout_alone() -> None:
    alone, awake, asleep = (
        allocated(grpo(rollout="vllm-server", server_gpus=8)),
        allocated(grpo(rollout="vllm-colocate")),
        allocated(grpo(rollout="vllm-colocate", vllm_enable_sleep_mode=True)),
    )
    part = int(0.3 * CLUSTER.gpu.memory_bytes + VLLM_GRAPHS_BYTES)
    assert {awake[name] - alone[name] for name in ("loss_peak", "step", "scoring")} == {part}
    assert 0 < asleep["step"] - alone["step"] < part < asleep["rollout"] - alone["weight_synchronization"]


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, {}),
        ({"beta": 0.1}, {"reference model": 1}),
        ({"rollout": "vllm-colocate"}, {"passes without gradients": 1}),
        ({"num_iterations": 2, "beta": 0.1}, {"passes without gradients": 0.5, "reference model": 0.5}),
        ({"steps_per_generation": 16}, {"passes without gradients": 1}),
    ],
)
def test_completions_are_scored_once_in_a_generation(settings: dict[str, Any], passes: dict[str, float]) -> None:
    """By the policy where vLLM made them, or where they outlive a step (TRL's `_generate_and_score_completions`)."""
    workload = grpo(**settings)
    found = estimate_time(MODEL, workload, CLUSTER, PLAN).components
    forward_s = estimate_forward_s(MODEL, workload, CLUSTER, PLAN)
    names = found.keys() & {"passes without gradients", "reference model"}
    assert {name: found[name] / forward_s for name in names} == pytest.approx(passes)


def test_decoding_is_bound_by_memory_for_few_sequences_and_by_products_for_many() -> None:
    server = grpo(rollout="vllm-server", server_gpus=8, max_completion_length=512)
    few, more, many = (vllm_engine(MODEL, server, CLUSTER, count).token_s for count in (1, 8, 2048))
    weights_s = 2 * MODEL.parameters / CLUSTER.gpu.memory_bytes_per_s
    assert weights_s < few < 5 * weights_s and more < 1.3 * few and many > 5 * few
    eager = vllm_engine(MODEL, grpo(), CLUSTER, 1)
    assert eager.token_s == eager.host_s > few


def test_traces_of_stage_3_outlive_a_generation_by_vllm_alone() -> None:
    def broken(steps: int, **settings: Any) -> bool:
        return Rollouts(**settings).breaks_traces("full", steps)

    assert broken(1) and not broken(2)
    assert broken(2, scores_policy=True) and not broken(3, scores_policy=True)
    assert broken(1, rollout="vllm-colocate") and not broken(2, rollout="vllm-colocate")


def test_the_search_finds_the_split_that_is_fastest_of_all() -> None:
    question = build_question(MODEL, gpus="8xH100", objective="grpo", rollout="vllm-server", max_completion_length=2048)
    speeds = [best.tokens_per_s for choice in rollout_choices(question) if (best := fastest(choice)) is not None]
    found = answer(question)
    rollouts, chosen = found.question.workload.rollouts, found.recommended
    assert rollouts is not None and chosen is not None
    assert rollouts.server_gpus + found.question.cluster.world_size == 8
    assert chosen.tokens_per_s == pytest.approx(max(speeds), rel=0.02)


def test_an_answer_fits_in_every_phase_and_its_phases_add_up() -> None:
    found = answer(build_question("Qwen2.5-7B", gpus="8xH100", objective="grpo"))
    chosen = found.recommended
    assert chosen is not None
    phases = {phase.name: phase for phase in phase_figures(chosen)}
    assert list(phases) == ["rollout", "scoring", "training"]
    assert sum(phase.seconds for phase in phases.values()) == pytest.approx(chosen.time.step_s)
    assert max(phase.device_bytes_per_gpu for phase in phases.values()) == chosen.device_bytes
    assert {other.question.workload.rollouts.rollout for other in found.other_rollouts} >= {"generate", "vllm-server"}  # type: ignore[union-attr]


@pytest.mark.parametrize("objective", ["grpo", "rloo"])
def test_the_printed_script_is_that_of_the_trainer(objective: Any) -> None:
    """Its class has every argument, and the server's command names the GPUs that do not train."""
    question = build_question(MODEL, gpus="8xH100", objective=objective, rollout="vllm-server", server_gpus=2)
    (decided,) = rollout_choices(question)
    workload, cluster = decided.workload, decided.cluster
    assert cluster.world_size == 6
    arguments = training_arguments(PLAN, workload, cluster)
    assert (arguments["use_vllm"], arguments["vllm_mode"]) == (True, "server")
    assert "reward_funcs=..." in "".join(script_lines(MODEL, workload, PLAN, cluster, "ds_config.json")[-4:])
    (command,) = server_commands(workload, cluster, MODEL.name)
    assert command.startswith("CUDA_VISIBLE_DEVICES=6,7 trl vllm-serve") and "--data-parallel-size 2" in command
    config = getattr(pytest.importorskip("trl"), OBJECTIVES[objective].config)
    assert arguments.keys() <= {field.name for field in fields(config)}


def test_other_gpus_are_no_change_where_a_server_has_some() -> None:
    """The cluster of such a question is what trains: twice of it is no `--gpus` that a user could pass."""
    asked = {"gpus": "8xH100", "objective": "grpo"}
    colocated, server = (
        answer(build_question(MODEL, **asked, rollout=name)) for name in ("vllm-colocate", "vllm-server")
    )
    assert any("--gpus" in change.flags for change in colocated.changes if change)
    assert not any("--gpus" in change.flags for change in server.changes if change)


def test_a_generation_consists_of_whole_groups() -> None:
    question = build_question(MODEL, gpus="6xH100", objective="grpo", rollout="generate", global_batch=48)
    assert all(micro * steps * 6 % 8 == 0 for micro, steps in rollout_choices(question)[0].batch_shapes())
    with pytest.raises(WorkloadError, match="do not form whole groups of 8"):
        answer(build_question(MODEL, gpus="6xH100", objective="grpo", rollout="generate", global_batch=12))


def test_options_of_completions_belong_to_objectives_with_completions() -> None:
    with pytest.raises(WorkloadError, match="--num-generations is not possible with --objective dpo"):
        build_question(MODEL, gpus="8xH100", objective="dpo", num_generations=4)
    with pytest.raises(WorkloadError, match="no room for the prompt in 512"):
        build_question(MODEL, gpus="8xH100", objective="grpo", seq_len=512)


def test_a_reward_model_is_held_and_computes_all_completions_at_once() -> None:
    reward = allocated(grpo(reward_model=MODEL, rollout="generate"), replace(PLAN, zero_stage=2))
    function = allocated(grpo(), replace(PLAN, zero_stage=2))
    assert reward["step"] - function["step"] == pytest.approx(2 * MODEL.parameters, rel=0.01)
    assert reward["rewards"] > reward["step"]


def test_the_hours_and_the_cost_are_those_of_all_gpus_and_all_completions() -> None:
    options: dict[str, Any] = {"objective": "grpo", "seq_len": 1024, "micro_batch": 4, "global_batch": 192}
    options |= {"samples": 240, "epochs": 1.0, "price": "2/h", "num_generations": 8}
    found = build_advice(
        answer(build_question("Qwen2.5-1.5B", gpus="8xH100", **options, rollout="vllm-server", server_gpus=2))
    )
    assert found.recommended is not None
    job = found.recommended.job
    assert job is not None and job.cost is not None
    assert job.steps == 240 * 8 / 192
    assert job.cost == pytest.approx(8 * 2 * job.duration_s / 3600)


def test_a_server_on_nodes_of_its_own_is_rented_with_them() -> None:
    server = Rollouts(rollout="vllm-server", server_gpus=8, server_has_node=True)
    assert server_cluster(h100s(8), server) == replace(h100s(8), nodes=2)
    assert server_cluster(h100s(6), replace(server, server_gpus=2, server_has_node=False)) == h100s(8)


def test_ppo_trains_a_value_model_beside_the_policy_and_holds_two_more_models() -> None:
    """Whose weights are sharded at stage 3 alone, and the scores of all tokens from one generation to the next."""
    question = build_question(
        MODEL, gpus="8xH100", objective="ppo", micro_batch=4, max_completion_length=256, seq_len=768
    )
    (question,) = rollout_choices(replace(question, workload=replace(question.workload, global_batch_size=64)))
    model, workload = question.model, question.workload
    value = trained_model(MODEL, "reward")
    assert (model.policy, model.parameters) == (MODEL, MODEL.parameters + value.parameters)
    for stage, share in ((2, 1.0), (3, 1 / 8)):
        plan = Plan(zero_stage=stage, micro_batch_size=4, gradient_accumulation_steps=2, gradient_checkpointing=True)
        (rollout,) = (each for each in estimate_memory(model, workload, CLUSTER, plan).phases if each.name == "rollout")
        held = Counter[str]()
        for part in rollout.terms:
            held[part.name] += part.size_bytes
        for name, frozen in (("reference_model", MODEL), ("reward_model", value)):
            assert held[name] == pytest.approx(2 * frozen.parameters * share, rel=0.001, abs=2 * 10**6)
        assert ("gradients" in held) == (stage == 3)  # whose shards stay
        scores = 4 * 8 * 256 * MODEL.vocab_size
        assert (held["scores of generated tokens"], held["scores as they come"]) == (scores, 2 * scores)
        time = estimate_time(model, workload, CLUSTER, plan).components
        forward_s = estimate_forward_s(model, workload, CLUSTER, plan)
        assert time["reference model"] == pytest.approx(forward_s / 4)  # four steps on each generation
    lora = unsupported(model, replace(workload, method="lora"), plan)
    assert lora is not None and "adapts only the policy" in lora
    with pytest.raises(WorkloadError, match="--num-generations is not possible"):
        build_question(MODEL, gpus="8xH100", objective="ppo", num_generations=4)


def test_ppo_is_started_by_accelerate_which_its_trainer_alone_listens_to() -> None:
    found = answer(build_question(MODEL, gpus="8xH100", objective="ppo"))
    shown = printed(found)
    assert "response_length=53" in shown and "gradient_checkpointing=" not in shown
    assert "value_model = (" in shown and "accelerate launch --use_deepspeed" in shown
    assert "--deepspeed ds_config.json" not in shown and "ds-advise launch" not in shown
    assert found.recommended is not None
    config = plan_config(found, found.recommended)
    assert "optimizer" not in config and "auto" not in str(config)
