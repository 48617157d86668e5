"""Trainings that people have described in public, on two CPU ranks with their own files: configurations and scripts
word for word but for paths and sizes, and for what the installed transformers and the CPU refuse, which `launch` names
first.

A model of 100 thousand parameters and a few rows in place of theirs; stand-ins for torchvision and SwanLab.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run

from tests.helpers import TINY

SEEDS = Path(__file__).parents[2] / "training_scripts" / "seeds"
CONFIGS = json.loads((SEEDS / "ds_configs.json").read_text())
STAND_INS = {
    "deepspeed_train.py": (
        "torchvision.py",
        """
import torch
from types import SimpleNamespace as Names
rows = [(torch.randn(3, 32, 32), number % 10) for number in range(64)]
datasets = Names(CIFAR10=lambda **_: rows)
transforms = Names(Compose=list, ToTensor=int, Normalize=lambda *_: None)
""",
    ),
    "lora_math.py": (
        "swanlab/integration/transformers.py",
        """
from transformers import TrainerCallback
class SwanLabCallback(TrainerCallback):
    def __init__(self, **_): pass
""",
    ),
}
"""Script -> a module that it imports, which is not among the tests' packages."""

CHANGED = {
    "warmup_ratio=": "warmup_steps=",
    "evaluation_strategy=": "eval_strategy=",
    "tokenizer=tokenizer": "processing_class=tokenizer",
}
"""Arguments of transformers 4 -> those in their place."""

RUN_CLM = "--model_name_or_path model --train_file data.json --output_dir outputs --do_train --do_eval"

Launch = Callable[..., tuple[int, dict[str, Any], str]]
"""(configuration, script, arguments, options) -> (exit code, its JSON, its other output)."""


@pytest.fixture(scope="module")
def workplace(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, extensions: Callable[..., None]
) -> Path:
    """A folder with a small model with weights, every seed's data, and the scripts."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    extensions("ShareMemCommBuilder", "FusedAdamBuilder", "CPUAdamBuilder")
    folder = tmp_path_factory.mktemp("seeds")
    shutil.copytree(tokenizer_folder, folder / "model")
    Qwen2ForCausalLM(Qwen2Config(**TINY)).save_pretrained(folder / "model")
    ner = [
        {"text": f"浙商银行企业信贷部叶老桂博士{number}", "label": {"name": {"叶老桂": [[9, 11]]}}}
        for number in range(32)
    ]
    for name, rows in (("train.json", ner), ("dev.json", ner[:4])):
        (folder / name).write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    sums = [{"instruction": f"{x}=", "input": "", "output": f"王大丫丫的回答是--->1 + {x - 1}"} for x in range(5, 101)]
    (folder / "math_train.json").write_text(json.dumps(sums, ensure_ascii=False))
    (folder / "math_eval.json").write_text(json.dumps(sums[:4], ensure_ascii=False))
    (folder / "data.json").write_text("\n".join(json.dumps({"text": f"the sum is {x} " * 8}) for x in range(16)))
    return folder


@pytest.fixture
def launch(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Launch:
    """`ds-advise launch` of a seed's configuration and script on two CPU ranks, in a copy of the folder."""
    shutil.copytree(workplace, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def launch(config: str, script: str, *options: str, arguments: str = "") -> tuple[int, dict[str, Any], str]:
        if not Path(script).exists():
            Path(script).write_text((SEEDS / script).with_suffix(".txt").read_text())
        if script in STAND_INS:
            module = Path(STAND_INS[script][0])
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(STAND_INS[script][1])
        file = Path("ds_config.json")
        file.write_text(json.dumps(CONFIGS[config]))
        place = ["--device", "cpu", "--ranks", "2", "--log-dir", str(tmp_path / "log"), "--json"]
        code = run(["launch", file.name, *place, *options, "--", script, *arguments.split()])
        out, err = capfd.readouterr()
        return code, json.loads(out) if out else {}, err

    return launch


def trained(
    session: dict[str, Any], printed: str, *, zero_stage: int, micro_batch: int, accumulation: int
) -> dict[str, Any]:
    """The one attempt of a launch that finished, by the plan that was checked."""
    (attempt,) = session["attempts"]
    assert (attempt["status"], attempt["differences"]) == ("finished", []), (attempt["failure"], printed)
    notes = [
        json.loads(line)
        for file in Path(attempt["folder"]).glob("rank*.jsonl")
        for line in file.read_text().splitlines()
    ]
    plan = {"zero_stage": zero_stage, "micro_batch_size": micro_batch, "gradient_accumulation_steps": accumulation}
    assert [note["engine"] for note in notes if "engine" in note] == [plan, plan]
    assert [note["engine_ranks"] for note in notes if "engine_ranks" in note] == [2, 2]
    return attempt


def rewrite(script: str, **more: str) -> None:
    """Give the script the arguments of the installed transformers, and other replacements."""
    text = (SEEDS / script).with_suffix(".txt").read_text()
    for old, new in {**CHANGED, **more}.items():
        text = text.replace(old, new)
    Path(script).write_text(text)


@pytest.mark.slow
def test_the_trainer_with_literal_arguments(launch: Launch) -> None:
    """Seed 000, full fine-tuning: the literals of the script are the plan's, and the accumulation is counted although
    the configuration does not name it."""
    rewrite("fft_ner_deepspeed.py", **{"bf16=True,)": 'bf16=True, deepspeed="ds_config.json")'})
    code, session, printed = launch("000 stage 1", "fft_ner_deepspeed.py", "--seq-len", "161", "--no-check")
    attempt = trained(session, printed, zero_stage=1, micro_batch=1, accumulation=8)
    assert code == 0 and attempt["last_step"] == 6


@pytest.mark.slow
def test_lora_with_literal_arguments(launch: Launch) -> None:
    """Seed 001: LoRA by its LoraConfig, and the offload of its stage 3; accelerate passes the configuration to
    TrainingArguments that do not name it."""
    rewrite("lora_math.py", **{'deepspeed="ds_stage0.json"': ""})
    code, session, printed = launch("001 stage 3", "lora_math.py", "--seq-len", "51", "--no-check")
    attempt = trained(session, printed, zero_stage=3, micro_batch=16, accumulation=1)
    assert code == 0 and attempt["last_step"] == 3
    assert "using accelerate" in printed and "counted as LoRA of rank 8" in printed


@pytest.mark.slow
def test_arguments_on_the_command_line(launch: Launch) -> None:
    """Seed 002: ZeRO-3 with all in host RAM, by the deepspeed launcher."""
    options = ("--launcher", "deepspeed", "--seq-len", "32", "--no-check")
    batch = "--per_device_train_batch_size 2 --per_device_eval_batch_size 2"
    own = "--bf16 --adam_beta2 0.95"  # as its configuration, which the Trainer compares
    code, session, printed = launch("002", "run_clm.py", *options, arguments=f"{RUN_CLM} {own} {batch}")
    attempt = trained(session, printed, zero_stage=3, micro_batch=2, accumulation=1)
    assert code == 0 and attempt["last_step"] == 12


@pytest.mark.slow
def test_a_network_of_the_users(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 004: the batch follows from train_batch_size."""
    options = ("--model", "deepspeed_train.py:ConvNet", "--input-shape", "3,32,32", "--launcher", "deepspeed")
    monkeypatch.setitem(CONFIGS["004"], "fp16", {"enabled": False})
    code, session, printed = launch("004", "deepspeed_train.py", *options, arguments="--epochs 2")
    attempt = trained(session, printed, zero_stage=2, micro_batch=16, accumulation=1)
    assert code == 0 and attempt["last_step"] == 4


TRL = """
from datasets import Dataset
from trl import {kind}Config, {kind}Trainer
rows = [{row} for x in range(32)]
args = {kind}Config("out", per_device_train_batch_size=2, max_length=64, max_steps=3, report_to=[], {options})
{kind}Trainer(model="model", args=args, train_dataset=Dataset.from_list(rows)).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "row", "checked"),
    [
        ("SFT", '{"text": f"the sum is {x} " * 4}', "probe: step"),
        ("DPO", '{"prompt": f"{x} is", "chosen": " a number", "rejected": " a word"}', "dry run"),
    ],
)
def test_trls_trainers(launch: Launch, kind: str, row: str, checked: str) -> None:
    """Word for word as TRL's examples write them, with TRL's own checkpointing; DPO is checked by a dry run."""
    pytest.importorskip("trl")
    Path("sft.py").write_text(TRL.format(kind=kind, row=row, options='deepspeed="ds_config.json"'))
    code, session, printed = launch("000 stage 1", "sft.py")
    attempt = trained(session, printed, zero_stage=1, micro_batch=2, accumulation=1)
    assert code == 0 and attempt["last_step"] == 3
    assert (
        checked in printed and "assumed accumulation 1, checkpointing, precision bf16, the defaults of TRL" in printed
    )
