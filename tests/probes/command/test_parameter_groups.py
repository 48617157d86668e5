"""The parameter groups of the Trainer's optimizer: which trainings have two, and what they need of the GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.options import QuestionOptions
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.workload import configured_workload
from ds_advise.estimators.memory.trainable import ShardedTensors, shard_plan
from ds_advise.estimators.parameter_groups import has_decay_groups
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Objective, Software, Workload
from ds_advise.probes.command.request import CommandRequest
from ds_advise.probes.command.run import dry_run_command

from tests.helpers import h100s, sizes

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


TRAINER = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
rows = [{"input_ids": torch.full((256,), row), "labels": torch.full((256,), row)} for row in range(500)]
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"), dtype=torch.bfloat16)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


class Training:
    """A training by the Trainer, with two samples of 256 tokens in a micro batch: predicted and observed. While a
    foreach step updates the first of two groups, all gradients are alive."""

    def __init__(self, folder: Path, model: dict[str, Any], ranks: int, config: dict[str, Any]) -> None:
        self.folder, self.cluster = folder, h100s(ranks)
        self.config = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2, **config}
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(model))
        (folder / "ds.json").write_text(json.dumps(self.config))
        (folder / "train.py").write_text(TRAINER)
        self.accumulation: int = self.config.setdefault("gradient_accumulation_steps", 1)
        options: QuestionOptions = {"seq_len": 256, "micro_batch": 2, "optimizer": "adamw_torch"}
        model_folder = str(folder / "model")
        self.run = read_run(self.config, model_folder, self.cluster, accumulation=self.accumulation, **options)

    def sharded(self) -> ShardedTensors:
        plan, shape = self.run.plan(), self.run.shape
        assert plan is not None and shape is not None
        return shard_plan(shape, self.run.workload, self.cluster, plan)

    def predicted(self) -> tuple[int, int]:
        """Peaks in bytes of the passes and of the step, on the rank with the highest of each."""
        estimate = self.run.estimate()
        assert estimate is not None
        phases = {phase.name: phase.allocated_bytes for phase in estimate.memory.phases if phase.name != "initialize"}
        return max(phases[name] for name in phases if name != "step"), phases["step"]

    def observed(self, rank: int) -> tuple[int, int]:
        """The same in the last step of the command on one rank."""
        words = "train.py --deepspeed ds.json --bf16 --gradient_checkpointing --report_to none --optim adamw_torch "
        words += f"--per_device_train_batch_size 2 --gradient_accumulation_steps {self.accumulation}"
        request = CommandRequest(words=tuple(words.split()), folder=self.folder, cluster=self.cluster, rank=rank)
        result = dry_run_command(request).result
        last = max(phase.iteration for phase in result.phases)
        peaks = {phase.phase: phase.gpu_peak_bytes for phase in result.phases if phase.iteration == last}
        workspace = result.library_workspace_bytes
        return workspace + max(peaks["forward"], peaks["backward"]), workspace + peaks["step"]


@pytest.mark.parametrize(
    ("model", "ranks", "zero", "more"),
    [
        (LLAMA, 2, {"stage": 2, "overlap_comm": True}, {}),
        pytest.param(LLAMA, 2, {"stage": 2, "overlap_comm": True}, BLOCK, marks=pytest.mark.slow),
        pytest.param(LLAMA, 2, {"stage": 2}, {"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
        (GPT2, 8, {"stage": 1}, {}),
        pytest.param(GPT2, 4, {"stage": 2, "offload_optimizer": OFFLOADED}, {}, marks=pytest.mark.slow),
    ],
)
def test_the_closed_form_has_the_groups_of_the_trainer(
    model: dict[str, Any], ranks: int, zero: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    training = Training(tmp_path, model, ranks, {"zero_optimization": zero, **more})
    groups, loads = training.sharded().groups, training.sharded().loads
    assert len(groups) == (1 if "optimizer" in more else 2)
    in_step = [2 * load.touched + max(8 * load.slice, 6 * groups[0].partition) for load in loads]
    fullest = max(range(ranks), key=lambda rank: (in_step[rank], rank))
    assert training.predicted() == pytest.approx(training.observed(fullest), rel=0.001)


def test_stage_1_without_overlap_reduces_after_the_backward_pass(tmp_path: Path) -> None:
    """By group, from the first tensor on: the first rank keeps its gradients while most others are still alive."""
    zero = {"stage": 1, "reduce_bucket_size": 12_000_000}
    training = Training(tmp_path, LLAMA, 2, {"zero_optimization": zero})
    assert training.predicted()[0] == pytest.approx(training.observed(0)[0], rel=0.001)
