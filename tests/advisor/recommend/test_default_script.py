"""`--script`: the default script of the recommended plan, as a file of the user's."""

from __future__ import annotations

import shlex
from pathlib import Path

import ds_advise
import pytest
from ds_advise.advisor.answer.default_script import script_files
from ds_advise.advisor.cli.main import run
from ds_advise.probes.default_script import trainer, words


def test_the_script_is_given_with_a_command_that_it_understands() -> None:
    """Every argument is one of the script's or of TrainingArguments."""
    from transformers import HfArgumentParser, TrainingArguments

    answer = ds_advise.advise("Qwen2.5-0.5B", gpus="2xRTX4090", method="lora", deepspeed_estimate=False)
    path = Path("train.py")
    files, script = script_files(answer, path, "zero.json")
    assert files == [(path, words.TRAINER.read_text())]
    launcher, *rest = shlex.split(script.start)
    arguments = rest[rest.index(str(path)) + 1 :]
    assert (launcher, arguments[arguments.index("--deepspeed") + 1]) == ("torchrun", "zero.json")
    options, _, unknown = HfArgumentParser([trainer.ScriptArguments, TrainingArguments]).parse_args_into_dataclasses(
        [word.replace("zero.json", "") for word in (*arguments, "--use_cpu", "true")], return_remaining_strings=True
    )
    assert (options.lora_r, options.model_name_or_path, unknown) == (8, "Qwen/Qwen2.5-0.5B", [])


def test_whole_epochs_are_written_as_in_the_training_arguments() -> None:
    asked = {"gpus": "2xRTX4090", "samples": "20k", "offline": True, "deepspeed_estimate": False}
    for epochs, written in ((2.0, "2"), (0.5, "0.5")):
        answer = ds_advise.advise("Qwen2.5-0.5B", epochs=epochs, **asked)  # type: ignore[arg-type]
        own = script_files(answer, Path("train.py"), "zero.json")[1].arguments
        assert own[own.index("--num_train_epochs") + 1] == written


def test_a_model_under_plain_deepspeed_is_loaded_by_a_second_file() -> None:
    answer = ds_advise.advise("Qwen2.5-0.5B", gpus="2xRTX4090", framework="deepspeed", deepspeed_estimate=False)
    files, script = script_files(answer, Path("train.py"), "zero.json")
    assert [str(path) for path, _ in files] == ["train.py", "trainer.py"]
    assert "--deepspeed_config zero.json" in script.start


def test_the_only_start_command_is_the_one_that_the_script_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command without the script's arguments, and nothing about what the user should write into it."""
    monkeypatch.chdir(tmp_path)
    asked = ["Qwen2.5-0.5B", "--gpus", "2x16GB", "--offline", "--script", "train.py", "--emit", "slurm,accelerate"]
    assert run([*asked, "--no-deepspeed-estimate"]) == 0
    told = capsys.readouterr()
    text = told.out.replace("\\\n", " ")
    starts = [line for line in text.splitlines() if " train.py" in line and "--" in line]
    assert len(starts) == 2 and all("--model_name_or_path Qwen/Qwen2.5-0.5B" in line for line in starts), starts
    assert "In the script" not in text and "ds-advise launch" not in text and "torchrun" not in told.err
    assert max(map(len, told.out.splitlines())) <= 80
    job = (tmp_path / "job.sbatch").read_text()
    assert "--model_name_or_path Qwen/Qwen2.5-0.5B" in job and "--deepspeed ds_config.json" in job
