"""Hostfiles, configurations that continue under another plan, and features that no plan holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ds_advise.ds_configs.conversions import as_number
from ds_advise.ds_configs.emit import ds_config, merge_plan_into_config
from ds_advise.ds_configs.launch_commands import read_hostfile
from ds_advise.ds_configs.presets import plan_for
from ds_advise.ds_configs.read import autoep_size_in, unmodeled_features
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Strategy
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run.run import DryRunError, NeedsValuesError, dry_run
from ds_advise.probes.run import Run

from tests.helpers import h100s

TAKEN = (
    "# two\n\nworker-0 slots=8\nuser@10.0.0.2 slots=4 # half\n",
    "worker-0 slots=8,max_slots=8\r\n  worker-1\tslots=8x",
    "worker-0 slots=0",
    "worker-0 slots=16384",
)
REFUSED = ("", "# none\n", "worker-0\n", "worker-0 slots=many\n", "a slots=1\na slots=2\n", "a slots = 1", "\x00\x01")


def test_hostfiles_are_read_as_deepspeeds_launcher_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments, text after the number of slots, and everything that it refuses."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.launcher.runner import fetch_hostfile

    file = tmp_path / "hosts"
    for text in TAKEN:
        file.write_bytes(text.encode())
        assert read_hostfile(file) == fetch_hostfile(str(file)), text
    for text in REFUSED:
        file.write_bytes(text.encode())
        with pytest.raises(ValueError):
            fetch_hostfile(str(file))
        with pytest.raises(ConfigFileError):
            read_hostfile(file)


@pytest.mark.parametrize("text", ["-oProxyCommand=sh slots=1\n", "a;b slots=1\n", "x slots=1\n" + "y" * 2_000_000])
def test_names_that_ssh_could_misread_are_refused(tmp_path: Path, text: str) -> None:
    """And so is a file that is no hostfile at all."""
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigFileError):
        read_hostfile(tmp_path / "hosts")


def test_a_hostfile_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    """Missing, a folder, a name that no file has, a pipe (which is not waited for), a device."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, Path("a\0b"), tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigFileError):
            read_hostfile(path)


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


def under(strategy: Strategy, own: dict[str, Any]) -> dict[str, Any]:
    cluster, shape = h100s(2), find("gpt2")
    batch = {"micro_batch_size": 2, "gradient_accumulation_steps": 4}
    plan = plan_for(strategy, shape, Workload(), cluster, **batch, gradient_checkpointing=False)
    return merge_plan_into_config(own, ds_config(plan, shape, Workload(), cluster, flavor="deepspeed"), plan)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "zero2-offload"])
def test_only_what_the_plan_decides_changes(strategy: Strategy) -> None:
    """Batch and ZeRO are the plan's; optimizer, scheduler, precision, clipping and logging the training's own."""
    config = under(strategy, OWN)
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (2, 4)
    assert config["train_batch_size"] == 16
    assert config["zero_optimization"]["stage"] == (3 if strategy == "zero3" else 2)
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
    """A configuration made from nothing clips as the Trainer does."""
    own = {name: value for name, value in OWN.items() if name != "gradient_clipping"}
    assert "gradient_clipping" not in under("zero2", own)
    assert "gradient_clipping" in under("zero2", {})


OFFLOAD: dict[str, Any] = {"device": "cpu"}
FEATURES: list[tuple[str, dict[str, Any]]] = [
    ("ZenFlow", {"zero_optimization": {"stage": 2, "offload_optimizer": OFFLOAD, "zenflow": {}}}),
    ("SuperOffload", {"zero_optimization": {"stage": 3, "offload_optimizer": OFFLOAD | {"super_offload": True}}}),
    ("DeepCompile", {"zero_optimization": {"stage": 3}, "compile": {"deepcompile": True}}),
    ("torch_autocast", {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    (
        "AutoEP",
        {
            "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
            "expert_parallel": {"enabled": True, "autoep_size": 2},
        },
    ),
]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"zero_optimization": {"stage": 2, "offload_optimizer": OFFLOAD | {"super_offload": True}}},
        {"zero_optimization": "auto", "compile": {"deepcompile": False}, "expert_parallel": {"enabled": False}},
    ],
)
def test_disabled_and_ignored_features_are_not_named(config: dict[str, Any]) -> None:
    assert not list(unmodeled_features(config))


@pytest.mark.parametrize(("name", "config"), FEATURES)
def test_a_feature_is_recognised_and_not_dry_run(name: str, config: dict[str, Any]) -> None:
    """A dry run of DeepCompile is one without it. AutoEP with the transformers that is installed cannot run at all; a
    probe can tell of the others."""
    [found] = unmodeled_features(config)
    assert found.name == name
    if name == "DeepCompile":
        return
    cluster = Cluster(nodes=1, gpus_per_node=2, gpu=find_gpu("H100-80GB"))
    run = Run(config=config, model={"model_type": "qwen3_moe"}, workload=Workload(), cluster=cluster)
    with pytest.raises(DryRunError, match=name) as refused:
        dry_run(run)
    assert isinstance(refused.value, NeedsValuesError) or "install transformers 5.8" in refused.value.fix


def test_a_stage_is_read_in_one_way() -> None:
    """AutoEP's block counts at the stage that accelerate fills in, and is named where it cannot be predicted."""
    experts = {"expert_parallel": {"enabled": "true", "autoep_size": 4}}
    assert autoep_size_in({"zero_optimization": {"stage": "auto"}, **experts}) == 4
    assert autoep_size_in({"zero_optimization": True, **experts}) == 4
    offloaded = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, **experts}
    assert [feature.name for feature in unmodeled_features(offloaded)] == ["AutoEP"]


def test_a_number_beyond_floating_point_is_rejected() -> None:
    with pytest.raises(ValueError):
        as_number(10**400)
