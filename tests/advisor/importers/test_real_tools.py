"""The readers of accelerate's and of the Trainer's files agree with the installed libraries."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers.accelerate import ACCELERATE
from ds_advise.advisor.importers.source import read_source
from ds_advise.estimators.optimizers import OPTIMIZERS

pytestmark = pytest.mark.slow

BLOCKS: tuple[dict[str, Any], ...] = (
    {},
    {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu", "zero3_save_16bit_model": True},
    {"zero_stage": 3, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/nvme"},
    {"zero_stage": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5},
)


def _environment(block: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `accelerate launch` sets for its fields (1.15 utils/launch.py `prepare_deepspeed_cmd_env`)."""
    for key, value in block.items():
        name = key.upper() if key.startswith(("gradient", "deepspeed")) else f"DEEPSPEED_{key.upper()}"
        monkeypatch.setenv(f"ACCELERATE_{name}", str(value).lower() if isinstance(value, bool) else str(value))
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", ",".join(block))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: " ".join(block) or "nothing")
def test_fields_make_the_configuration_that_accelerate_makes(
    block: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apart from logging, and with the offload's path where there is one."""
    from accelerate.utils import DeepSpeedPlugin

    path = tmp_path / "acc.json"
    path.write_text(json.dumps({"distributed_type": "DEEPSPEED", "num_processes": 2, "deepspeed_config": block}))
    part = ACCELERATE.read(read_source(path)).deepspeed
    assert part is not None
    _environment(block, monkeypatch)
    made = DeepSpeedPlugin().deepspeed_config
    del made["steps_per_print"]
    for name in ("offload_optimizer", "offload_param"):
        offload = made["zero_optimization"][name]
        made["zero_optimization"][name] = {key: value for key, value in offload.items() if value is not None}
    assert made == part.config


def test_accelerate_takes_what_is_written_and_stops_at_what_was_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own loader and its own plugin read the file; a Trainer of any accumulation takes the configuration."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DeepSpeedPlugin
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": "auto"}}
    Path("ds.json").write_text(json.dumps(config | {"train_micro_batch_size_per_gpu": "auto"}))
    Path("acc.yaml").write_text(
        "distributed_type: DEEPSPEED\ncompute_environment: LOCAL_MACHINE\nnum_processes: 2\nnum_machines: 1\n"
        "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 2\n"
    )
    with monkeypatch.context() as patch:
        _environment(load_config_from_file("acc.yaml").deepspeed_config, patch)
        with pytest.raises(ValueError, match="ignored"):
            DeepSpeedPlugin()
    words = ["from", "acc.yaml", "--model", "Qwen2.5-1.5B", "--gpus", "80GB", "-o", "new.yaml", "--offline", "--quiet"]
    assert run(words) == 1  # the fault
    written = load_config_from_file("new.yaml")
    assert (written.num_processes, str(written.distributed_type.value)) == (2, "DEEPSPEED")
    _environment(written.deepspeed_config, monkeypatch)
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == plugin.deepspeed_config["zero_optimization"]["stage"] < 3
    config = HfTrainerDeepSpeedConfig(json.loads(Path("new.ds_config.json").read_text()))
    config.trainer_config_process(TrainingArguments("o", gradient_accumulation_steps=3, bf16=True, use_cpu=True))
    assert not config.mismatches


def test_training_arguments_are_read_with_their_own_defaults() -> None:
    """Micro batch, accumulation and checkpointing, and every optimizer by a name that exists."""
    from transformers import TrainingArguments
    from transformers.training_args import OptimizerNames

    defaults = {field.name: field.default for field in fields(TrainingArguments)}
    assert (defaults["per_device_train_batch_size"], defaults["gradient_accumulation_steps"]) == (8, 1)
    assert not defaults["gradient_checkpointing"]
    own = {"adamw_8bit", "adamw_torch_8bit", "lion", "paged_lion", "paged_adamw", "adamw", "adam", "muon"}
    older = {"adamw_hf", "adamw_apex_fused"}
    known = {name for spec in OPTIMIZERS.values() for name in spec.trainer_names}
    assert known - own - older <= {name.value for name in OptimizerNames}


def test_transformers_parses_the_arguments_that_are_written() -> None:
    from transformers import HfArgumentParser, TrainingArguments

    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
    options: dict[str, Any] = {"output_dir": "o", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    options |= {
        "learning_rate": 1e-4,
        "bf16": True,
        "use_cpu": True,
        "activation_checkpointing": True,
        "deepspeed": config,
    }
    Path("args.json").write_text(json.dumps(options))
    words = ["--model", "Qwen2.5-1.5B", "--gpus", "4x80GB", "--method", "lora", "--offline", "--quiet"]
    assert run(["from", "args.json", *words, "-o", "new.json"]) == 0
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file("new.json")
    stage = arguments.hf_deepspeed_config.config["zero_optimization"]["stage"]
    assert (arguments.learning_rate, arguments.activation_checkpointing, stage) == (1e-4, False, 0)
