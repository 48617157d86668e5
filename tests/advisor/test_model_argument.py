"""MODEL in front and `--model MODEL` give the same answer in every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_advise.advisor.cli.main import run

from tests.helpers import TINY


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model, and a configuration."""
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text(json.dumps({"model_type": "llama", **TINY}))
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
    Path("ds_config.json").write_text(json.dumps(config))


def test_a_misspelled_model_is_not_read_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a file or a model is expected, and one model has nearly this name."""
    assert run(["dry-run", "Qwen25-0.5B", "--gpus", "2x24GB"]) == 2
    assert "write Qwen2.5-0.5B" in capsys.readouterr().err
    assert run(["dry-run", "ds_confg", "--gpus", "2x24GB"]) == 2
    assert "ds_confg: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "dry-run tyny --gpus 24GB",
        "probe tini --device cpu",
        "dry-run ds_config.json --model tyny --gpus 24GB",
        "probe ds_config.json --model ./tyny --device cpu",
        "tyny --gpus 24GB",
        "explain tyny --gpus 24GB",
    ],
)
def test_a_misspelled_folder_of_a_model_is_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In every command; of four letters one may differ."""
    assert run([*line.split(), "--offline"]) == 2
    assert capsys.readouterr().err.endswith("; write tiny\n")


@pytest.mark.parametrize("model", ["tiny", "gpt2", "openai-community/gpt2"])
@pytest.mark.parametrize(
    "command",
    [
        "advise MODEL --gpus 8xH100 --no-write --offline --no-deepspeed-estimate",
        "explain MODEL --gpus 8xH100 --offline",
        "rent MODEL --offline",
        "lint ds_config.json MODEL --gpus 8xH100 --offline",
        "check ds_config.json MODEL --gpus 8xH100 --offline",
        "compare zero2 zero3 MODEL --gpus 8xH100 --offline",
    ],
)
def test_the_argument_and_the_option_are_the_same(command: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    name, rest = command.replace("MODEL ", "").split(" ", 1)
    for line in (command.replace("MODEL", model), f"{name} {rest} --model {model}", f"{name} --model={model} {rest}"):
        code = run([*line.split(), "--json"])
        printed.append((code, capsys.readouterr().out))
    assert printed[0][0] in (0, 1) and printed[0][1].startswith("{") and len(set(printed)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpt2 --model tiny --gpus 8xH100", "two models: gpt2 and --model"),
        ("compare zero2 zero3 gpt2 tiny", "unexpected extra arguments (gpt2 tiny)"),
        ("train tiny", "--data is missing"),
        ("dry-run", "name a model or a DS_CONFIG"),
        ("dry-run gpt2 --gpus 24GB --accumulation 2", "--accumulation needs a DS_CONFIG"),
        ("--model", "missing argument MODEL"),
    ],
)
def test_what_is_no_question_gets_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    assert message in capsys.readouterr().err
