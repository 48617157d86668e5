"""Usual mistakes: each is answered with what to type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ds_advise.advisor.cli.advise import advise
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.mistakes import options_of
from ds_advise.advisor.question.other_names import ADVICE, OTHER_NAMES
from ds_advise.advisor.text.lines import wrapped

QUESTION = "gpt2 --gpus 24GB --offline --no-write"
MISTAKES = {
    "--dtype torch.bfloat16": "write --precision bf16",
    "--fp16": "write --precision fp16",
    "--bf16": "write --precision bf16",
    "--precision float16": "write --precision fp16",
    "--batch-size 4": "write --micro-batch 4",
    "--per_device_train_batch_size=4": "write --micro-batch 4",
    "--train-batch-size 64": "write --global-batch 64",
    "--gradient-accumulation-steps 4": "write --global-batch N: micro batch x accumulation x GPUs",
    "--max-seq-length 4096": "write --seq-len 4096",
    "--seq_len 4096": "write --seq-len 4096",
    "--lora-r 16": "write --lora-rank 16",
    "--lora": "write --method lora",
    "--load-in-4bit": "write --method qlora",
    "--method qlora4": "write --method qlora",
    "--attn-implementation flash_attention_2": "write --attention flash",
    "--zero-stage 3": "every strategy is compared; ds-advise explain MODEL --strategy zero3",
    "--learning-rate 1e-5": "it changes neither memory nor speed",
    "--num-gpus 2": "write --gpus 2x24GB",
    "--deepspeed ds.json": "ds-advise lint FILE",
    "--micro-batch auto": "leave --micro-batch out",
    "--optim adamw_torch": "write --optimizer adamw_torch",
    "--epoch 3": "did you mean --epochs?",
    "--seq-len": "write --seq-len N",
    "2x24GB": "write --gpus 2x24GB",
}
LINES = {
    "gpt2 --gpus": "write --gpus SPEC (GPUs: 2x32GB",
    "gpt2 --gpus 24GB,24GB": "write --gpus 2x24GB",
    "gpt3.5": "no model named 'gpt3.5'",
    "help": "write ds-advise --help",
    "estimate gpt2": "write ds-advise gpt2 --gpus 2x24GB",
    "ds.json": "write ds-advise explain ds.json --model MODEL --gpus 2x24GB",
    "train.py": "write ds-advise --gpus 2x24GB -- torchrun train.py",
    "axolotl.yaml --gpus 24GB": "write ds-advise from axolotl.yaml",
    "run.log": "write ds-advise why run.log",
    "lint": "for example: ds-advise lint ds_config.json",
    "lint axolotl.yaml": "write ds-advise from axolotl.yaml",
    "compare axolotl.yaml ds.json": "write ds-advise from axolotl.yaml",
    "missing.py": "write ds-advise --gpus 2x24GB -- torchrun missing.py",
    "explain ds201": "write ds-advise lint --explain DS201",
    "page --port abc": "'abc' is not a whole number",
    "dry-run train.py": "write ds-advise --gpus 2x24GB -- torchrun train.py",
    "launch ds.json train.py --lr 1": "write ds-advise launch ds.json -- train.py --lr 1",
    "gpt2 --gpus H100 80GB": "write --gpus H100-80GB",
    "gpt2 --gpus 4090x2": "write --gpus 2xRTX4090",
    "train gpt2": "--data is missing; for example: ds-advise train",
    "explain": "for example: ds-advise explain Qwen2.5-14B --gpus 2x32GB",
    "explain overlap_comm 24GB": "write --gpus 24GB",
    "check ds.json --dtype bf16": "write --precision bf16",
}


@pytest.mark.parametrize("line", [*(f"{QUESTION} {words}" for words in MISTAKES), *LINES])
def test_a_mistake_is_answered_with_what_to_type(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On one line, before the machine is looked for."""
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    for name in ("train.py", "axolotl.yaml", "run.log"):
        Path(name).write_text("x: 1\n")
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert (LINES.get(line) or MISTAKES[line.removeprefix(f"{QUESTION} ")]) in error
    assert error.count("\n") == 1 and len(error) < 400


def test_every_name_of_another_tool_leads_to_an_option_once() -> None:
    """The options exist, none of the names is an option itself, and none has two answers."""
    known = options_of(advise)
    names = [name for names in (*OTHER_NAMES.values(), *ADVICE.values()) for name in names.split()]
    assert len(names) == len(set(names)) > 120
    assert not {f"--{name.replace('_', '-')}" for name in names} & set(known)
    assert {written.split(" ")[0] for written in OTHER_NAMES} <= {*known, "--model"}


def test_a_model_after_a_key_is_the_keys_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "overlap_comm", "gpt2", "--gpus", "24GB", "--offline"]) == 0
    assert "\n openai-community/gpt2, ddp" in capsys.readouterr().out


def test_an_error_on_a_terminal_has_its_fix_on_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In colours; elsewhere it is one line, however long."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run(["gpt2", "--per-device-train-batch-size", "4"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert run(["gpt2", "--per-device-train-batch-size", "4"]) == 2
    error = capsys.readouterr().err
    assert "\x1b[1;31mds-advise:" in error
    plain = re.sub(r"\x1b\[[\d;]*m", "", error)
    assert plain == "ds-advise: no such option\n  --per-device-train-batch-size\n  write --micro-batch 4\n"


@pytest.mark.parametrize("columns", [40, 64, 80])
def test_a_command_in_an_error_stays_on_one_line(columns: int) -> None:
    """It can be copied from a terminal of any width."""
    for command in (
        "ds-advise explain ds.json --model MODEL --gpus 2x24GB",
        "ds-advise --gpus 2x24GB -- torchrun train.py",
        "ds-advise compare old.json new.json",
        'pip install "ds-advise[engine]"',
    ):
        lines = wrapped(f"ds-advise: this is not what the command can read; write {command}; or leave it out", columns)
        assert any(command in line for line in lines.splitlines())
        assert all(len(line) <= columns or command in line for line in lines.splitlines())
        assert re.sub(r"\n  ", " ", lines).endswith("leave it out")
