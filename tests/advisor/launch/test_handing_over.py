"""Which configuration a launched script really reads: the file that was checked, or one of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.launch.monitor import Display, Monitor
from ds_advise.advisor.launch.request import LaunchRequest, Script
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.this_machine import cpu_cluster
from rich.console import Console

FILE = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}
PARSER = "import argparse, deepspeed\nparser = argparse.ArgumentParser()\n"
ADDED = f"{PARSER}parser = deepspeed.add_config_arguments(parser)\nargs = parser.parse_args()\n"

Launched = Callable[..., tuple[int, str, str]]
"""A script's text and the words of a launch -> (exit code, the script's words in the command, stderr)."""


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Launched:
    """Shows the launch of a script with this text."""
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text(json.dumps(FILE))
    Path("same.json").write_text(json.dumps(FILE, indent=4))
    Path("other.json").write_text(json.dumps(FILE | {"zero_optimization": {"stage": 3}}))

    def show(text: str, *script: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        Path("train.py").write_text(text)
        words = ["--gpus", "2x24GB", "--dry", "--json", *options, "--", "train.py", *script]
        code = run(["launch", "ds_config.json", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out)[0]["command"].partition("train.py")[2].strip() if out else "", err

    return show


@pytest.mark.parametrize(
    ("text", "handed"),
    [
        # As DeepSpeedExamples' training/cifar: DeepSpeed refuses a file beside a dictionary.
        (f"{ADDED}deepspeed.initialize(args=args, model=net, config=get_ds_config(args))", ""),
        (f"{ADDED}deepspeed.initialize(args, net, config_params={{'train_batch_size': 4}})", ""),
        (f"{PARSER}import deepspeed as ds\nds.initialize(model=net, config='ds_config.json')", ""),
        # As its training/bf16_master_weight: the dictionary comes from the file.
        (
            f"{ADDED}deepspeed.initialize(model=net, config=args.deepspeed_config)",
            "--deepspeed --deepspeed_config ds_config.json",
        ),
        (
            f"{ADDED}deepspeed.initialize(model=net, config=json.load(open(getattr(args, 'deepspeed_config'))))",
            "--deepspeed --deepspeed_config ds_config.json",
        ),
        (f"{ADDED}deepspeed.initialize(args=args, config=None)", "--deepspeed --deepspeed_config ds_config.json"),
        # argparse takes `--deepspeed` for an abbreviation where a parser knows the longer option alone.
        (
            f"{PARSER}parser.add_argument('--deepspeed_config')\ndeepspeed.initialize(args=parser.parse_args())",
            "--deepspeed_config ds_config.json",
        ),
        ("from transformers import TrainingArguments\nTrainingArguments('out', deepspeed=settings())", ""),
        (
            "from transformers import TrainingArguments\nTrainingArguments('out', deepspeed=args.deepspeed)",
            "--deepspeed ds_config.json",
        ),
        ("import deepspeed\ndef broken(:\n", "--deepspeed --deepspeed_config ds_config.json"),
    ],
)
def test_a_script_with_its_own_configuration_is_not_handed_another(launched: Launched, text: str, handed: str) -> None:
    """It is said, unless the script names the very file; --pass-config and --no-pass-config decide otherwise."""
    code, words, err = launched(text)
    assert (code, words) == (0, handed)
    assert ("configuration of its own" in err) == (not handed and "'ds_config.json'" not in text)
    assert launched(text, options=("--no-pass-config",))[1] == ""
    assert launched(text, options=("--pass-config",))[1].endswith("ds_config.json")


@pytest.mark.parametrize("name", ["--deepspeed", "--deepspeed_config", "--ds-config"])
def test_the_file_that_is_checked_is_the_one_that_trains(launched: Launched, name: str) -> None:
    """Another one among the script's arguments or in its text is refused; one that says the same is not."""
    code, _, err = launched(ADDED, name, "other.json")
    assert code == 2
    assert "other.json, which is not what ds_config.json says" in err
    assert launched(ADDED, name, "missing.json")[0] == 2
    assert launched(ADDED, name, json.dumps(FILE))[0] == 0
    assert launched(ADDED, name, "same.json")[:2] == (0, f"{name} same.json")
    code, _, err = launched(f"{PARSER}deepspeed.initialize(model=net, config='other.json')")
    assert code == 2
    assert "line 3, names other.json" in err


def test_a_script_that_trains_by_another_plan_is_told_of(tmp_path: Path) -> None:
    """What the engine says of itself at its first step is held against the plan that was checked, once."""
    (tmp_path / "ds_config.json").write_text(json.dumps(FILE))
    gpt2 = read_run(tmp_path / "ds_config.json", "gpt2", cpu_cluster(2), seq_len=32, micro_batch=4, offline=True)
    folder = tmp_path / "log"
    folder.mkdir()
    request = LaunchRequest(
        script=Script(target="train.py"),
        run=gpt2,
        config_path=tmp_path / "ds_config.json",
        launcher="torchrun",
        folder=folder,
        prediction=gpt2.estimate(),
    )
    seen = {"zero_stage": 0, "micro_batch_size": 4, "gradient_accumulation_steps": 2}
    (folder / "rank0.jsonl").write_text(json.dumps({"time": 1.0, "engine": seen}) + "\n")
    with (tmp_path / "shown").open("w") as page:
        monitor = Monitor(request, Display(Console(file=page)))
        for _ in range(2):
            monitor.look(1)
            monitor._sampled_at = 0.0
    outcome = monitor.outcome(0, None, stopped=False)
    assert outcome.differences == ("ZeRO 0 instead of 2", "accumulation 2 instead of 1")
    assert (tmp_path / "shown").read_text().count("another plan than the one that was checked") == 1
