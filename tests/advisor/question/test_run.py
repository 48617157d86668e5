"""A dry run, lint and a comparison read the same workload from a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.advise import comparison_context
from ds_advise.advisor.answer.comparison import compare
from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.advisor.question.run import read_run
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.workload import Workload
from ds_advise.probes.run import Run

from tests.helpers import h100s

V100 = Cluster(nodes=1, gpus_per_node=1, gpu=find_gpu("V100-SXM2-32GB"))


def read(tmp_path: Path, config: dict[str, Any], *, cluster: Cluster | None = None, **options: Any) -> Run:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(config))
    return read_run(file, "gpt2", cluster or h100s(2), offline=True, **options)


def lint_workload(config: dict[str, Any], **changes: Any) -> Workload | None:
    settings = {"framework": None, "model": "gpt2", "gpus": "2xH100", "ram": None, "seq_len": None, "offline": True}
    workload: Workload | None = lint_settings(config, **settings | changes)["workload"]
    return workload


PRECISIONS: dict[str, tuple[dict[str, Any], str]] = {
    "absent": ({}, "fp32"),
    "absent, of the Trainer": ({"train_micro_batch_size_per_gpu": "auto"}, "bf16"),
    "empty": ({"bf16": {}}, "fp32"),
    "on": ({"bf16": {"enabled": True}}, "bf16"),
    "the text true": ({"fp16": {"enabled": "true"}}, "fp16"),
    "the text off": ({"fp16": {"enabled": "off"}}, "fp32"),
    "the old name": ({"bfloat16": {"enabled": True}}, "bf16"),
    "auto": ({"bf16": {"enabled": "auto"}}, "bf16"),
    "one off, one auto": ({"bf16": {"enabled": False}, "fp16": {"enabled": "auto"}}, "bf16"),
}


@pytest.mark.parametrize(("config", "precision"), PRECISIONS.values(), ids=PRECISIONS)
def test_a_file_has_one_precision(tmp_path: Path, config: dict[str, Any], precision: str) -> None:
    """A run and lint read the same, which is what DeepSpeed's pydantic classes read."""
    assert read(tmp_path, config).workload.precision == precision
    seen = lint_workload(config)
    assert seen is not None and seen.precision == precision


@pytest.mark.parametrize("value", [True, False, 1, 0, "true", "True", "yes", "off", "n", "1", 1.0])
def test_true_is_what_deepspeed_reads_as_true(value: Any) -> None:
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config
    from ds_advise.ds_configs.conversions import is_true

    assert is_true(value) is DeepSpeedBF16Config(enabled=value).enabled


def test_auto_is_fp16_without_bf16_units(tmp_path: Path) -> None:
    assert read(tmp_path, {"fp16": {"enabled": "auto"}}, cluster=V100).workload.precision == "fp16"


def test_targets_without_a_name_are_dropped(tmp_path: Path) -> None:
    assert read(tmp_path, {}, method="lora", lora_targets="q_proj, ,v_proj,").workload.lora_targets == (
        "q_proj",
        "v_proj",
    )
    with pytest.raises(WorkloadError, match="names no module"):
        read(tmp_path, {}, method="lora", lora_targets=" ,")


def test_an_unknown_optimizer_is_run_but_not_predicted(tmp_path: Path) -> None:
    """Its states are not known: the run has no closed form, lint judges no memory, a comparison says why it cannot."""
    config = {"optimizer": {"type": "Rprop"}, "train_micro_batch_size_per_gpu": 1}
    run = read(tmp_path, config)
    assert run.workload.optimizer == "rprop"
    assert run.plan() is None and run.estimate() is None
    assert lint_workload(config) is None
    with pytest.raises(WorkloadError, match="the optimizer 'rprop' is not known"):
        compare(str(tmp_path / "ds_config.json"), "zero2", comparison_context("gpt2", gpus="2xH100", offline=True))
