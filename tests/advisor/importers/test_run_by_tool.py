"""`from` with a tool that is installed: its command is run with the file, as it is and changed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema

from tests.helpers import SMALL_LLAMA, schema_errors

TOOL = f"""#!{sys.executable}
import os, sys
import torch, yaml
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
assert sys.argv[1] == "train" and os.environ["FORCE_TORCHRUN"] == "1"
with open(sys.argv[2]) as file:
    options = yaml.safe_load(file)
assert "broken" not in options, "the tool stops at broken"
assert "strict" not in options or options["deepspeed"] == "z3.json", "the tool stops at another file"
checkpoints = not options.pop("disable_gradient_checkpointing", False)
names = ("per_device_train_batch_size", "gradient_accumulation_steps", "deepspeed", "bf16", "output_dir")
own = {{name: options[name] for name in names if name in options}}
arguments = TrainingArguments(**own, gradient_checkpointing=checkpoints, adam_beta2=0.95, report_to="none")
model = AutoModelForCausalLM.from_pretrained(options["model_name_or_path"], dtype=torch.bfloat16)
rows = [{{"input_ids": torch.arange(256), "labels": torch.arange(256)}}] * 64
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""
ZERO_3 = {
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
}
OPTIONS = {
    "model_name_or_path": "model",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "cutoff_len": 4096,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "deepspeed": "z3.json",
    "output_dir": "o",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and its tool on PATH."""
    Path("model").mkdir()
    Path("model", "config.json").write_text(json.dumps(SMALL_LLAMA))
    Path("z3.json").write_text(json.dumps(ZERO_3))
    program = tmp_path / "bin" / "llamafactory-cli"
    program.parent.mkdir()
    program.write_text(TOOL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    Path("sft.yaml").write_text(yaml.safe_dump(OPTIONS))
    return Path("sft.yaml")


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert run(["from", *words, "--gpus", "2xA100-40GB", "--offline", "--json"]) == code
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert schema_errors(printed, command_schema("from")) == []
    return printed


def test_the_written_file_was_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The samples are those of the tool's data, not the longest that the file allows. The changed file is the one that
    was run: checkpointing is off by the tool's own key."""
    found = answer(capsys, str(file), "-o", "better.yaml")
    assert found["not_run"] == "" and found["command"] == ["FORCE_TORCHRUN=1", "llamafactory-cli", "train", "sft.yaml"]
    assert found["run"]["training"]["seq_len"] == 256 and found["run"]["training"]["optimizer"] == "adamw"
    assert found["today"]["fits"] and found["today"]["observed"]["engines"][0]["zero_stage"] == 3
    proof, plan, written = found["proofs"][-1], found["recommended"], yaml.safe_load(Path("better.yaml").read_text())
    assert found["is_better"] and proof["problem"] == "" and plan["gradient_checkpointing"] is False
    assert written["disable_gradient_checkpointing"] is True and written["deepspeed"] == "better.ds_config.json"
    steps = written["per_device_train_batch_size"] * written["gradient_accumulation_steps"]
    assert (steps, plan["strategy"], plan["micro_batch_size"]) == (
        2,
        proof["strategy"],
        written["per_device_train_batch_size"],
    )
    assert file.read_text() == yaml.safe_dump(OPTIONS)


@pytest.mark.slow
def test_a_change_that_the_tool_refuses_is_not_proposed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text() + "strict: true\n")
    assert run(["from", str(file), "--gpus", "2xA100-40GB", "--offline"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No better plan was found: the script failed" in text and "the tool stops at another file" in text
    assert "Change in" not in text


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("broken: true\n", (), "the tool stops at broken"),
        ("", ("--no-run",), "--no-run is given"),
        ("", ("--seq-len", "512"), "--seq-len replaces the file's value"),
    ],
)
def test_the_reason_for_reading_alone_is_named(
    text: str, words: tuple[str, ...], why: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are the reader's."""
    file.write_text(file.read_text() + text)
    found = answer(capsys, str(file), *words, code=int("broken" in text))  # LLaMA-Factory has no such key
    assert why in found["not_run"] and found["today"] is None and found["proofs"] == []
    assert found["run"]["training"]["seq_len"] in (512, 4096) and found["as_is"] is not None


def test_what_cannot_be_run_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tool that is not here, and a file that only a script reads."""
    file.write_text("base_model: Qwen2.5-1.5B\nbf16: true\nmicro_batch_size: 1\nbatch_size: 1\n")
    assert "axolotl is not installed here" in answer(capsys, str(file))["not_run"]
    file.write_text("distributed_type: NO\nnum_processes: 2\n")
    assert "names no script" in answer(capsys, str(file), "--model", "gpt2", "--format", "accelerate")["not_run"]
