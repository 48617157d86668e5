"""`ds-advise from FILE` recommends what `ds-advise MODEL` does: what the file sets is kept, its defaults are free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers.answer import import_file
from ds_advise.advisor.render.imported_file import in_blocks

GPUS = "4xA100-40GB"
OFFLOADED: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
"""What people write after a run that was out of memory."""

_BATCH = {"gradient_accumulation_steps": 8, "bf16": True, "deepspeed": "z3.json", "learning_rate": 1.0e-5}
_FULL = {"model_name_or_path": "Qwen2.5-7B", "finetuning_type": "full", "stage": "sft", "do_train": True}
FILES: dict[str, dict[str, Any]] = {
    "llama-factory": _BATCH | _FULL | {"per_device_train_batch_size": 1, "cutoff_len": 2048},
    "training-arguments": _BATCH | {"per_device_train_batch_size": 1, "output_dir": "o", "model": "Qwen2.5-7B"},
    "ms-swift": _BATCH | {"per_device_train_batch_size": 1, "model": "Qwen2.5-7B", "tuner_type": "full"},
    "axolotl": _BATCH | {"base_model": "Qwen2.5-7B", "sequence_len": 2048, "plugins": ["mine.Plugin"]},
    "accelerate": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "z3.json", "gradient_accumulation_steps": 8},
    },
}
"""The same training, which is fastest with checkpointing, Liger's loss and two samples a micro batch, not offloaded."""


def _file(name: str, **further: Any) -> Path:
    Path("z3.json").write_text(json.dumps(OFFLOADED))
    Path("file.yaml").write_text(yaml.safe_dump(FILES[name] | further, sort_keys=False))
    return Path("file.yaml")


@pytest.mark.parametrize("name", [name for name in FILES if name != "accelerate"])
def test_the_loss_is_turned_on_by_the_files_own_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again, the run has it and the plan; axolotl's own plugin stays."""
    found = import_file(_file(name), format=name, gpus=GPUS, offline=True, destination=Path("new.yaml"))
    assert found.figures is not None and found.figures.recommended is not None
    for each in found.files:
        each.new_path.write_text(each.new_text)
    for variable in found.figures.variables:
        monkeypatch.setenv(*variable.split("="))
    again = import_file(Path("new.yaml"), format=name, gpus=GPUS, offline=True)
    assert again.figures is not None and again.run.training["loss"] == "fused" and again.is_fine
    plan, written = found.figures.recommended.plan, again.figures.plan
    assert (plan.zero_stage, plan.micro_batch_size, plan.gradient_checkpointing) == (3, 2, True)
    assert (written.strategy, written.micro_batch_size, written.gradient_accumulation_steps) == ("zero3", 2, 4)
    assert yaml.safe_load(Path("new.yaml").read_text()).get("plugins", [])[:1] == FILES[name].get("plugins", [])


def test_what_the_file_and_the_user_set_is_kept() -> None:
    """A switch that is off, and options by hand."""
    figures = import_file(_file("llama-factory", enable_liger_kernel=False), gpus=GPUS, offline=True).figures
    assert figures is not None and figures.recommended is not None
    assert figures.question.workload.loss == "standard" and figures.recommended.plan.samples_per_step(4) == 32
    options: dict[str, Any] = {"micro_batch": 1, "gradient_checkpointing": "off", "loss": "fused"}
    figures = import_file(_file("accelerate"), model="Qwen2.5-7B", gpus=GPUS, offline=True, **options).figures
    assert figures is not None and figures.recommended is not None
    plan = figures.recommended.plan
    assert (plan.micro_batch_size, plan.gradient_accumulation_steps, plan.gradient_checkpointing) == (1, 8, False)
    assert figures.question.workload.loss == figures.own.workload.loss == "fused"


@pytest.mark.parametrize("further", [(), ("--interconnect", "100Gb/s")])
def test_the_answer_takes_a_screen(further: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The gain, the memory of both plans by part, the assumed network, and the difference last."""
    file = str(_file("llama-factory"))
    words = ["from", file, "--gpus", "2x8xA100-40GB", "--offline", *further]
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45 and all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    parts = ("Better:", "Predicted memory per GPU", "█ weights", "Change in file.yaml", "Write it")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert ("assuming 400 Gb/s between nodes" in " ".join(text.split())) == (not further)


PLAIN: dict[str, tuple[dict[str, Any], int]] = {
    "fp16 of any script": ({"distributed_type": "NO", "mixed_precision": "fp16"}, 4),
    "bf16 of a script": ({"output_dir": "o", "learning_rate": 1e-5, "bf16": True}, 4),
    "bf16 of a script that loads 16 bits": ({"output_dir": "o", "learning_rate": 1, "bf16": True, "dtype": "auto"}, 2),
    "bf16 of TRL": ({"model_name_or_path": "gpt2-xl", "packing": True, "bf16": True}, 4),
    "DeepSpeed": ({"output_dir": "o", "learning_rate": 1e-5, "bf16": True, "deepspeed": "z3.json"}, 2),
}


@pytest.mark.parametrize("what", PLAIN)
def test_weights_are_fp32_where_no_engine_casts_them(what: str) -> None:
    """Under autocast weights and Adam's two states have 4 bytes, else the type in which they are loaded; DeepSpeed has
    a 16-bit copy and fp32 masters."""
    values, width = PLAIN[what]
    Path("z3.json").write_text(json.dumps(OFFLOADED | {"zero_optimization": {"stage": 1}}))
    Path("file.yaml").write_text(yaml.safe_dump(values))
    found = import_file(Path("file.yaml"), model="gpt2-xl", gpus="1xA40", seq_len=1024, offline=True)
    assert found.figures is not None and found.figures.as_is is not None
    parts, parameters = found.figures.as_is.memory.components, found.figures.question.model.parameters
    assert parts["parameters"] == pytest.approx(width * parameters, rel=0.01)
    states = 8 if what == "DeepSpeed" else 2 * width
    assert parts["optimizer_states"] == pytest.approx(states * parameters, rel=0.01)


def test_each_block_of_changed_keys_is_named_once() -> None:
    keys = ["steps: 5", "zero.stage: 3", "zero.overlap_comm: true", "no zero.offload.device", "clipping: 1"]
    said = "steps: 5; in zero: stage: 3; overlap_comm: true; in zero.offload: no device; at the top: clipping: 1"
    assert in_blocks(keys) == said
