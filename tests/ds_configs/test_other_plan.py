"""What a training keeps of its configuration when it goes on under another plan."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.ds_configs.emit import ds_config, merge_plan_into_config
from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Rung
from ds_advise.estimators.workload import Workload

from tests.helpers import h100s

OWN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True, "bf16_master_weights_and_grads": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.98], "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1},
    "steps_per_print": 7,
    "wandb": {"enabled": True},
}


def under(rung: Rung, own: dict[str, Any]) -> dict[str, Any]:
    cluster, shape = h100s(2), find("gpt2")
    batch = {"micro_batch_size": 2, "gradient_accumulation_steps": 4}
    plan = plan_for(rung, shape, Workload(), cluster, **batch, gradient_checkpointing=False)
    return merge_plan_into_config(own, ds_config(plan, shape, Workload(), cluster, flavor="deepspeed"), plan)


@pytest.mark.parametrize("rung", ["zero2", "zero3", "zero2-offload"])
def test_only_what_the_plan_decides_changes(rung: Rung) -> None:
    """Batch and ZeRO are the plan's; optimizer, scheduler, precision, clipping and logging the training's own."""
    config = under(rung, OWN)
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (2, 4)
    assert config["train_batch_size"] == 16
    assert config["zero_optimization"]["stage"] == (3 if rung == "zero3" else 2)
    assert config["zero_optimization"]["reduce_bucket_size"] > 1
    for name in ("gradient_clipping", "bf16", "scheduler", "steps_per_print", "wandb"):
        assert config[name] == OWN[name]
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.98]


def test_torchs_adam_is_not_asked_for_where_the_states_are_offloaded() -> None:
    """DeepSpeed refuses it there; elsewhere it stays."""
    assert "torch_adam" not in under("zero2-offload", OWN)["optimizer"]["params"]
    assert under("zero2", OWN)["optimizer"] == OWN["optimizer"]


def test_an_optimizer_of_the_script_stays_the_scripts() -> None:
    """Unless its states are offloaded, which takes DeepSpeed's own."""
    own = {name: value for name, value in OWN.items() if name != "optimizer"}
    assert "optimizer" not in under("zero2", own)
    assert under("zero2-offload", own)["optimizer"]["type"] == "AdamW"


def test_gradients_are_not_clipped_where_they_were_not() -> None:
    """A fallback goes on with the same training; a configuration made from nothing clips as the Trainer does."""
    own = {name: value for name, value in OWN.items() if name != "gradient_clipping"}
    assert "gradient_clipping" not in under("zero2", own)
    assert "gradient_clipping" in under("zero2", {})
