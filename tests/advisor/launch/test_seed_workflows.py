"""Trainings that people have described in public, on two CPU ranks with their own files: configurations, commands and
scripts word for word but for paths, sizes and ports, and for what the installed transformers and the CPU refuse. Each
gets its advice and is probed; its launch begins with a dry run.

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
from ds_advise.probes.real_run.torchrun import free_port

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

Launch = Callable[..., tuple[dict[str, Any], str]]
"""(configuration, script, command, options in front of it) -> (its JSON, its other output)."""


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

    def launch(config: str, script: str, command: str, *options: str) -> tuple[dict[str, Any], str]:
        if not Path(script).exists():
            Path(script).write_text((SEEDS / script).with_suffix(".txt").read_text())
        if script in STAND_INS:
            module = Path(STAND_INS[script][0])
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(STAND_INS[script][1])
        Path("ds_config.json").write_text(json.dumps(CONFIGS[config]))

        def answer(*words: str) -> tuple[dict[str, Any], str]:
            code = run([*words, "--json", "--", *command.split()])
            out, err = capfd.readouterr()
            assert code == 0, out + err
            return json.loads(out), err

        advice, _ = answer(*options, "--gpus", "2xA100-40GB", "--no-write")
        assert advice["recommended"] and advice["proofs"][-1]["problem"] == ""
        probed, _ = answer("probe", *options, "--device", "cpu", "--no-dry-run")
        assert probed["failure"] is None
        assert [len(rank["losses"]) >= 3 for rank in probed["ranks"]] == [True, True]  # LoRA's data have three steps
        return answer("launch", *options, "--device", "cpu", "--log-dir", str(tmp_path / "log"))

    return launch


def trained(
    session: dict[str, Any], printed: str, *, zero_stage: int, micro_batch: int, accumulation: int
) -> dict[str, Any]:
    """The one attempt of a launch that finished, by the plan that the dry run saw, with its phases."""
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
    assert (attempt["predicted"]["evidence"], attempt["predicted"]["engine"]) == ("dry-run", plan)
    assert [phase["name"] for phase in attempt["phases"]] == ["forward", "backward", "step"]
    assert all(phase["seconds"] > 0 for phase in attempt["phases"])
    predicted = attempt["predicted"]["phases"]  # without times: the speed of this CPU was not measured
    assert [phase["name"] for phase in predicted] == ["forward", "backward", "step"]
    assert all(phase["peak_bytes"] > 0 for phase in predicted)
    return attempt


def rewrite(script: str, **more: str) -> None:
    """Give the script the arguments of the installed transformers, and other replacements."""
    text = (SEEDS / script).with_suffix(".txt").read_text()
    for old, new in {**CHANGED, **more}.items():
        text = text.replace(old, new)
    Path(script).write_text(text)


@pytest.mark.slow
def test_the_trainer_with_literal_arguments(launch: Launch) -> None:
    """Seed 000, full fine-tuning, behind torchrun: the accumulation is that of the script, which the configuration does
    not name."""
    rewrite("fft_ner_deepspeed.py", **{"bf16=True,)": 'bf16=True, deepspeed="ds_config.json")'})
    torchrun = f"torchrun --nproc_per_node 2 --master_port {free_port()}"
    found = launch("000 stage 1", "fft_ner_deepspeed.py", f"{torchrun} fft_ner_deepspeed.py")
    attempt = trained(*found, zero_stage=1, micro_batch=1, accumulation=8)
    assert (attempt["last_step"], attempt["launcher"]) == (6, None)


@pytest.mark.slow
def test_lora_with_literal_arguments(launch: Launch) -> None:
    """Seed 001: LoRA and the offload of its stage 3, with a configuration that TrainingArguments do not name."""
    rewrite("lora_math.py", **{'deepspeed="ds_stage0.json"': ""})
    found = launch("001 stage 3", "lora_math.py", "lora_math.py", "ds_config.json")
    attempt = trained(*found, zero_stage=3, micro_batch=16, accumulation=1)
    assert (attempt["last_step"], attempt["launcher"]) == (3, "torchrun")


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "own"), [("002", "--adam_beta2 0.95"), ("003", "")])
def test_arguments_on_the_command_line(launch: Launch, seed: str, own: str) -> None:
    """ZeRO-3 by the deepspeed launcher, with all in host RAM (002, whose beta2 the Trainer compares) and without."""
    batch = "--per_device_train_batch_size 2 --per_device_eval_batch_size 2"
    deepspeed = f"deepspeed --num_gpus 2 --master_port {free_port()}"
    command = f"{deepspeed} run_clm.py {RUN_CLM} --bf16 {own} {batch} --deepspeed ds_config.json"
    attempt = trained(*launch(seed, "run_clm.py", command), zero_stage=3, micro_batch=2, accumulation=1)
    assert attempt["last_step"] == 12


@pytest.mark.slow
def test_a_network_of_the_users(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 004: a script without a launcher that takes --local_rank, which only DeepSpeed's passes; it names its
    configuration itself."""
    monkeypatch.setitem(CONFIGS["004"], "fp16", {"enabled": False})
    found = launch("004", "deepspeed_train.py", "deepspeed_train.py --epochs 2")
    attempt = trained(*found, zero_stage=2, micro_batch=16, accumulation=1)
    assert (attempt["last_step"], attempt["launcher"]) == (4, "deepspeed")


TRL = """
from datasets import Dataset
from trl import {kind}Config, {kind}Trainer
rows = [{row} for x in range(32)]
args = {kind}Config("out", per_device_train_batch_size=2, max_length=64, max_steps=3, report_to=[], {options})
{kind}Trainer(model="model", args=args, train_dataset=Dataset.from_list(rows)).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("SFT", '{"text": f"the sum is {x} " * 4}'),
        ("DPO", '{"prompt": f"{x} is", "chosen": " a number", "rejected": " a word"}'),
    ],
)
def test_trls_trainers(launch: Launch, kind: str, row: str) -> None:
    """As TRL's examples write them, with TRL's own defaults."""
    pytest.importorskip("trl")
    Path("sft.py").write_text(TRL.format(kind=kind, row=row, options='deepspeed="ds_config.json"'))
    attempt = trained(*launch("000 stage 1", "sft.py", "sft.py"), zero_stage=1, micro_batch=2, accumulation=1)
    assert attempt["last_step"] == 3
