"""Configurations that are right get no error and no warning; each of several hundred broken ones is caught by its
code."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.model_source import load_model
from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.optimizers import OPTIMIZERS
from ds_advise.estimators.plan import RUNGS
from ds_advise.estimators.workload import Workload

from .lint_cases import codes, facts, judged

TRAINER = {
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 500,
        "initial_scale_power": 12,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "steps_per_print": 100,
    "wall_clock_breakdown": False,
}
"""What is filled by the Trainer, as its users write it."""

PLAIN = {
    "train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": 500, "warmup_num_steps": 50, "warmup_max_lr": 2e-5},
    },
}
STAGE_2 = {
    "stage": 2,
    "allgather_partitions": True,
    "allgather_bucket_size": 1e8,
    "overlap_comm": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 1e8,
    "contiguous_gradients": True,
}
STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
CPU = {"device": "cpu", "pin_memory": True}
NVME = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}
RIGHT: dict[str, dict[str, Any]] = {
    "trainer 0": {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 0}},
    "trainer 1": {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}},
    "trainer 2": TRAINER | {"zero_optimization": STAGE_2},
    "trainer 2 offload": TRAINER | {"zero_optimization": STAGE_2 | {"offload_optimizer": CPU}},
    "trainer 3": TRAINER | {"zero_optimization": STAGE_3},
    "trainer 3 offload": TRAINER | {"zero_optimization": STAGE_3 | {"offload_optimizer": CPU, "offload_param": CPU}},
    "trainer 3 nvme": TRAINER
    | {
        "zero_optimization": STAGE_3
        | {
            "offload_optimizer": NVME | {"buffer_count": 5, "fast_init": False},
            "offload_param": NVME | {"buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
        },
        "aio": {
            "block_size": 1 << 20,
            "queue_depth": 32,
            "intra_op_parallelism": 8,
            "single_submit": False,
            "overlap_events": True,
        },
    },
    "trainer activation checkpointing": TRAINER
    | {
        "zero_optimization": STAGE_2,
        "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True},
    },
    "plain fp16": PLAIN | {"fp16": {"enabled": True, "auto_cast": True, "loss_scale": 0}, "zero_optimization": STAGE_2},
    "plain bf16": PLAIN | {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
    "plain adam": PLAIN | {"optimizer": {"type": "Adam", "params": {"lr": 2e-5, "betas": [0.8, 0.999], "eps": 1e-8}}},
    "plain 3 offload": PLAIN
    | {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
    },
    "plain zero++": PLAIN
    | {
        "bf16": {"enabled": True},
        "communication_data_type": "fp16",
        "zero_optimization": {
            "stage": 3,
            "zero_hpz_partition_size": 8,
            "zero_quantized_weights": True,
            "zero_quantized_gradients": True,
        },
    },
    "plain logging": PLAIN
    | {
        "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "run"},
        "wandb": {"enabled": False},
        "csv_monitor": {"enabled": False},
    },
}


@pytest.mark.parametrize("name", RIGHT)
def test_configurations_that_people_train_with_are_clean(name: str) -> None:
    """Presets of every stage, offload and flavour: advice at most."""
    assert not codes(judged(RIGHT[name]), "error", "warning")


def _emitted() -> Iterator[tuple[str, dict[str, Any]]]:
    model = load_model("Qwen2.5-7B", offline=True)
    cluster = parse_cluster("2x4xA100-80GB", ram="1TB", nvme="/local_nvme:4TB")
    for rung, flavor, precision, optimizer in itertools.product(
        RUNGS, ("hf", "deepspeed"), ("bf16", "fp16", "fp32"), OPTIMIZERS
    ):
        workload = Workload(precision=precision, optimizer=optimizer, framework=flavor)  # type: ignore[arg-type]
        plan = plan_for(
            rung,
            model,
            workload,
            cluster,
            micro_batch_size=2,
            gradient_accumulation_steps=3,
            gradient_checkpointing=True,
        )
        if plan.offload_optimizer != "none" and OPTIMIZERS[optimizer].cpu_state_bytes is None:
            continue
        yield flavor, ds_config(plan, model, workload, cluster, flavor=flavor)  # type: ignore[arg-type]


def test_every_configuration_that_this_program_writes_is_clean() -> None:
    """All rungs, flavours, precisions and optimizers, on the ranks that they were made for."""
    count = 0
    for flavor, config in _emitted():
        report = judged(config, framework=flavor, gpus="2x4xA100-80GB")
        assert not codes(report, "error", "warning"), (config, [finding.what for finding in report.findings])
        count += 1
    assert count > 250


Mutation = tuple[str, dict[str, Any], str]


def _changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The configuration with another value at a path; its blocks are made where they are missing."""
    changed = copy.deepcopy(config)
    node = changed
    *owners, name = path.split(".")
    for owner in owners:
        node = node.setdefault(owner, {})
    node[name] = value
    return changed


def _mutations() -> Iterator[Mutation]:
    """(what was done, the broken configuration, the code that must find it)."""
    base = RIGHT["plain bf16"]
    for block in facts().blocks:
        if block.path in ("bfloat16", "fp16", "") or not block.strict:
            continue
        for field in block.fields:
            key = field.alias or field.name
            yield f"typo {block.path}.{key}", _changed(base, f"{block.path}.{key}_", 1), "DS010"
            if field.type.name not in ("any", "list", "dict", "union"):
                yield f"list {block.path}.{key}", _changed(base, f"{block.path}.{key}", [1]), "DS020"
            if field.bounds:
                yield f"bound {block.path}.{key}", _changed(base, f"{block.path}.{key}", -1), "DS020"
            if field.type.name == "bool" and not field.deprecated:
                yield f"text {block.path}.{key}", _changed(base, f"{block.path}.{key}", "true"), "DS022"
    for block in facts().blocks:
        for key in block.keys:
            path = f"{block.path}.{key}" if block.path else key
            yield f"typo {path}", _changed(base, f"{path}_", 1), "DS011"
            if not block.path and facts().block(key) is not None and key not in ("bf16", "aio", "bfloat16"):
                yield f"null {path}", _changed(base, path, None), "DS021"
    for name in (
        "overlap_comm",
        "reduce_bucket_size",
        "offload_optimizer",
        "stage3_max_live_parameters",
        "sub_group_size",
    ):
        yield f"top level {name}", _changed(base, name, 1), "DS012"
    for path in facts().removed:
        yield f"removed {path}", _changed(base, path, {"enabled": True}), "DS013"


def test_systematic_mutations_are_caught_with_the_right_code() -> None:
    """Every key misspelled, of the wrong type, out of range, as text, in the wrong place, null, or of a removed
    feature."""
    count = 0
    for what, config, code in _mutations():
        found = codes(judged(config))
        assert code in found, (what, found)
        count += 1
    assert count >= 300


COMBINATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("both precisions", {"fp16.enabled": True}, "DS201"),
    ("bf16 loss scale", {"bf16.loss_scale": 0}, "DS204"),
    ("bf16 window", {"bf16.loss_scale_window": 100}, "DS204"),
    ("batch product", {"train_micro_batch_size_per_gpu": 3}, "DS101"),
    ("batch zero", {"train_batch_size": 0}, "DS103"),
    ("batch text", {"train_batch_size": "16"}, "DS103"),
    ("batch negative", {"gradient_accumulation_steps": -1}, "DS103"),
    ("auto batch", {"train_batch_size": "auto"}, "DS151"),
    ("auto rate", {"optimizer.params.lr": "auto"}, "DS151"),
    ("param offload", {"zero_optimization": {"stage": 2, "offload_param": CPU}}, "DS301"),
    ("stage 3 key", {"zero_optimization": {"stage": 1, "sub_group_size": 10}}, "DS302"),
    ("offload at 0", {"zero_optimization": {"stage": 0, "offload_optimizer": CPU}}, "DS303"),
    ("odd bucket", {"zero_optimization": {"stage": 1, "allgather_bucket_size": 3}}, "DS305"),
    ("legacy", {"zero_optimization.legacy_stage1": True}, "DS309"),
    ("no norm", {"zero_optimization": {"stage": 1, "compute_grad_norm": False}}, "DS310"),
    ("prescale", {"prescale_gradients": True}, "DS312"),
    ("predivide", {"gradient_predivide_factor": 2.0}, "DS312"),
    ("no path", {"zero_optimization.offload_param": {"device": "nvme"}}, "DS401"),
    ("nvme at 2", {"zero_optimization": {"stage": 2, "offload_optimizer": NVME}}, "DS402"),
    ("ratio at 2", {"zero_optimization": {"stage": 2, "offload_optimizer": CPU | {"ratio": 0.1}}}, "DS408"),
    ("ratio at 3", {"zero_optimization": {"stage": 3, "offload_optimizer": CPU | {"ratio": 0.7}}}, "DS417"),
    ("threads", {"aio.thread_count": 4}, "DS451"),
    ("unknown optimizer", {"optimizer.type": "FusedAdamW"}, "DS501"),
    ("no type", {"optimizer": {"params": {"lr": 1}}}, "DS502"),
    ("clipping", {"optimizer.params.max_grad_norm": 1}, "DS503"),
    ("untested", {"optimizer": {"type": "RMSprop", "params": {}}}, "DS504"),
    ("argument", {"optimizer.params.momentum": 0.9}, "DS505"),
    ("amsgrad", {"optimizer.params.amsgrad": True}, "DS506"),
    ("muon", {"optimizer": {"type": "Muon", "params": {"lr": 0.01}}}, "DS508"),
    ("rate text", {"optimizer.params.lr": "1e-5"}, "DS510"),
    ("unknown scheduler", {"scheduler.type": "Cosine"}, "DS601"),
    ("scheduler needs", {"scheduler.params": {}}, "DS602"),
    ("scheduler argument", {"scheduler.params.warmup_steps": 5}, "DS603"),
    ("no warm-up", {"scheduler.params.warmup_num_steps": 0}, "DS604"),
    ("long warm-up", {"scheduler.params.warmup_num_steps": 5000}, "DS605"),
    ("torch's", {"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 10}}}, "DS609"),
    ("comm type", {"communication_data_type": "half"}, "DS701"),
    ("reduction", {"gradient_allreduce_op": "max"}, "DS703"),
    ("sum at 3", {"gradient_allreduce_op": "sum"}, "DS704"),
    ("unmanaged", {"managed_gradient_accumulation": False, "compile.deepcompile": True}, "DS705"),
    ("tag", {"checkpoint.tag_validation": "no"}, "DS801"),
    ("writer", {"checkpoint.writer.type": "slow"}, "DS802"),
    ("print", {"steps_per_print": 0}, "DS851"),
    ("clip text", {"gradient_clipping": "1"}, "DS023"),
    ("dtype", {"data_types.grad_accum_dtype": "fp64"}, "DS212"),
    ("param dtype", {"data_types.param_dtype": "fp16"}, "DS211"),
    ("bf16 states", {"bf16.bf16_optimizer_states": True}, "DS210"),
    ("master", {"bf16.bf16_master_weights_and_grads": True}, "DS209"),
]


@pytest.mark.parametrize(
    ("changes", "code"), [case[1:] for case in COMBINATIONS], ids=[case[0] for case in COMBINATIONS]
)
def test_a_combination_is_caught_with_the_right_code(changes: dict[str, Any], code: str) -> None:
    """One change to a configuration that is right."""
    config = RIGHT["plain bf16"]
    assert code not in codes(judged(config))
    for path, value in changes.items():
        config = _changed(config, path, value)
    assert code in codes(judged(config, framework="deepspeed"))
