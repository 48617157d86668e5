"""The parameter groups of the Trainer's optimizer: which trainings have two, and what they need of the GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.options import QuestionOptions
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.workload import configured_workload
from ds_advise.estimators.memory.trainable import shard_plan
from ds_advise.estimators.parameter_groups import has_decay_groups
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Objective, Software, Workload
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

from tests.helpers import dry_runs_in_forks, h100s, sizes

BLOCK = {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
OFFLOADED = {"device": "cpu", "pin_memory": True}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **sizes(1024, 2816, 3, 8, 4, 8000, tie_word_embeddings=False),
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 512,
    "n_head": 8,
    "n_layer": 12,
    "n_positions": 512,
    "vocab_size": 8000,
}


@pytest.mark.parametrize(
    ("config", "options", "groups"),
    [
        ({}, {}, True),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": OFFLOADED}}, {}, True),
        (BLOCK, {}, False),
        ({}, {"framework": "deepspeed"}, False),
        ({}, {"framework": "trl", "optimizer": "adamw_8bit"}, True),
    ],
)
def test_a_configuration_with_a_block_has_one_group(
    config: dict[str, Any], options: QuestionOptions, *, groups: bool
) -> None:
    assert (
        has_decay_groups(configured_workload(config, options, None, None), Plan(zero_stage=2, micro_batch_size=1))
        == groups
    )


@pytest.mark.parametrize(
    ("workload", "offload", "groups"),
    [
        (Workload(), "none", False),
        (Workload(optimizer="adafactor"), "none", True),
        (Workload(software=Software(optimizer_step="fused")), "none", True),
        (Workload(software=Software(optimizer_step="fused")), "cpu", False),
    ],
)
def test_an_emitted_configuration_has_the_groups_of_its_optimizer(
    workload: Workload, offload: Any, *, groups: bool
) -> None:
    """DeepSpeed makes an offloaded optimizer, from a block."""
    assert has_decay_groups(workload, Plan(zero_stage=2, micro_batch_size=1, offload_optimizer=offload)) == groups


def test_the_optimizer_of_a_value_model_is_the_scripts() -> None:
    objective: Objective = "ppo"
    assert has_decay_groups(Workload(objective=objective, framework="trl"), Plan(zero_stage=2, micro_batch_size=1))


def trained(model: dict[str, Any], ranks: int, config: dict[str, Any]) -> Run:
    """A training by the Trainer, with two samples of 256 tokens in a micro batch. While a foreach step updates the
    first of two groups, all gradients are alive."""
    Path("config.json").write_text(json.dumps(model))
    config = {"bf16": {"enabled": True}, "gradient_accumulation_steps": 1, **config}
    options: QuestionOptions = {"seq_len": 256, "micro_batch": 2, "optimizer": "adamw_torch"}
    return read_run(config, ".", h100s(ranks), accumulation=config["gradient_accumulation_steps"], **options)


def predicted(run: Run) -> tuple[int, int]:
    """Peaks in bytes of the passes and of the step, on the rank with the highest of each."""
    estimate = run.estimate()
    assert estimate is not None
    phases = {phase.name: phase.allocated_bytes for phase in estimate.memory.phases if phase.name != "initialize"}
    return max(phases[name] for name in phases if name != "step"), phases["step"]


def observed(run: Run, rank: int) -> tuple[int, int]:
    """The same in the last step of one rank."""
    with dry_runs_in_forks():
        result = dry_run(run, rank=rank)
    last = max(phase.iteration for phase in result.phases)
    peaks = {phase.phase: phase.gpu_peak_bytes for phase in result.phases if phase.iteration == last}
    workspace = result.library_workspace_bytes
    return workspace + max(peaks["forward"], peaks["backward"]), workspace + peaks["step"]


@pytest.mark.parametrize(
    ("model", "ranks", "zero", "more"),
    [
        (LLAMA, 2, {"stage": 2, "overlap_comm": True}, {}),
        (LLAMA, 2, {"stage": 2, "overlap_comm": True}, BLOCK),
        (LLAMA, 2, {"stage": 2}, {"gradient_accumulation_steps": 2}),
        (GPT2, 8, {"stage": 1}, {}),
        (GPT2, 4, {"stage": 2, "offload_optimizer": OFFLOADED}, {}),
    ],
)
def test_the_closed_form_has_the_groups_of_the_trainer(
    model: dict[str, Any], ranks: int, zero: dict[str, Any], more: dict[str, Any]
) -> None:
    run = trained(model, ranks, {"zero_optimization": zero, **more})
    plan, shape = run.plan(), run.shape
    assert plan is not None and shape is not None
    sharded = shard_plan(shape, run.workload, run.cluster, plan)
    groups, loads = sharded.groups, sharded.loads
    assert len(groups) == (1 if "optimizer" in more else 2)
    in_step = [2 * load.touched + max(8 * load.slice, 6 * groups[0].partition) for load in loads]
    fullest = max(range(ranks), key=lambda rank: (in_step[rank], rank))
    assert predicted(run) == pytest.approx(observed(run, fullest), rel=0.001)


def test_stage_1_without_overlap_reduces_after_the_backward_pass() -> None:
    """By group, from the first tensor on: the first rank keeps its gradients while most others are still alive."""
    run = trained(LLAMA, 2, {"zero_optimization": {"stage": 1, "reduce_bucket_size": 12_000_000}})
    assert predicted(run)[0] == pytest.approx(observed(run, 0)[0], rel=0.001)
