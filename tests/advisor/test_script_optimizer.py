"""An optimizer that the training script makes: whose step it is by versions, and what it needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.importers.answer import import_file
from ds_advise.advisor.question.workload import configured_workload
from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.training_script import training_arguments
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import OptimizerStep, Software, Workload

MODEL = find("Qwen2.5-32B")
CLUSTER = Cluster(nodes=1, gpus_per_node=8, gpu=find_gpu("A100-80GB-SXM"))
BLOCK = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
TORCH_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}}}
OFFLOADED = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("config", "options", "step"),
    [
        ({}, {}, "fused"),
        ({}, {"software": "transformers=4.53"}, "foreach"),
        ({}, {"software": "transformers=4.53,optimizer-step=fused"}, "fused"),
        ({}, {"framework": "deepspeed"}, "foreach"),
        (BLOCK, {"software": "transformers=4.45,optimizer-step=loop"}, "auto"),
        (TORCH_ADAM, {}, "foreach"),
        (OFFLOADED, {"software": "transformers=4.45"}, "auto"),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"framework": "deepspeed"}, "auto"),
    ],
)
def test_the_implementation_of_the_step(config: dict[str, Any], options: dict[str, Any], step: OptimizerStep) -> None:
    """Without a block the Trainer's default by its version, torch's in a loop of one's own; DeepSpeed's with a block or
    in host RAM."""
    assert configured_workload(config, options, MODEL, None).software.optimizer_step == step  # type: ignore[arg-type]


def step_bytes(plan: Plan, step: OptimizerStep, cluster: Cluster = CLUSTER) -> int:
    asked = Workload(seq_len=128, software=Software(optimizer_step=step))
    phases = {phase.name: phase.allocated_bytes for phase in estimate_memory(MODEL, asked, cluster, plan).phases}
    return phases["step"]


def test_without_zero_the_loop_has_two_copies_of_one_tensor_and_foreach_one_of_all() -> None:
    plan = Plan(zero_stage=0, micro_batch_size=1)
    foreach, loop = (step_bytes(plan, step) for step in ("foreach", "loop"))
    largest = max(tensor_set(MODEL, Workload()).trainable)
    assert foreach - loop == 4 * MODEL.parameters - 8 * largest


@pytest.mark.parametrize(("step", "name"), [("fused", "adamw_torch_fused"), ("foreach", "adamw_torch")])
def test_written_configurations_leave_the_optimizer_to_the_script_that_makes_it(step: OptimizerStep, name: str) -> None:
    """With its states in host RAM it is DeepSpeed's, and the block is written."""
    workload = Workload(software=Software(optimizer_step=step))
    plan = Plan(zero_stage=3, micro_batch_size=1)
    config = ds_config(plan, MODEL, workload, CLUSTER, flavor="hf")
    assert "optimizer" not in config and config["zero_allow_untested_optimizer"]
    assert training_arguments(plan, workload, CLUSTER)["optim"] == name
    offloaded = replace(plan, offload_optimizer="cpu")
    assert "optimizer" in ds_config(offloaded, MODEL, workload, CLUSTER, flavor="hf")
    assert "optim" not in training_arguments(offloaded, workload, CLUSTER)
    assert "optimizer" in ds_config(plan, MODEL, Workload(), CLUSTER, flavor="hf")


def test_from_reads_the_optimizers_implementation(tmp_path: Path) -> None:
    """A LLaMA-Factory file with `optim: adamw_torch` needs more than one with the fused one."""
    zero = {"stage": 3, "sub_group_size": 1e9, "reduce_bucket_size": "auto"}
    settings = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero}
    (tmp_path / "z3.json").write_text(json.dumps(settings))

    def need(name: str) -> int:
        file = tmp_path / f"{name}.yaml"
        file.write_text(
            "stage: sft\ndo_train: true\nfinetuning_type: full\nmodel_name_or_path: Qwen/Qwen2.5-32B\n"
            f"deepspeed: z3.json\ncutoff_len: 512\nper_device_train_batch_size: 1\nbf16: true\noptim: {name}\n"
        )
        answer = import_file(file, gpus="8xA100-80GB", offline=True)
        assert answer.figures is not None and answer.figures.as_is is not None
        return answer.figures.as_is.memory.allocated_bytes_per_gpu

    assert need("adamw_torch") - need("adamw_torch_fused") == pytest.approx(2e9, rel=0.1)
