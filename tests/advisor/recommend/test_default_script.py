"""`--script`: the default script of the recommended plan, as a file of the user's."""

from __future__ import annotations

import shlex
from pathlib import Path

import ds_advise
import pytest
from ds_advise.advisor.answer.default_script import write_script
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.probes.default_script import trainer, words


def test_the_script_is_given_with_a_command_that_it_understands(tmp_path: Path) -> None:
    """Every argument is one of the script's or of TrainingArguments; an own file is not overwritten."""
    from transformers import HfArgumentParser, TrainingArguments

    answer = ds_advise.advise("Qwen2.5-0.5B", gpus="2xRTX4090", method="lora", deepspeed_estimate=False)
    path = tmp_path / "train.py"
    files, line = write_script(answer, path, "zero.json", force=False)
    assert files == [str(path)]
    assert path.read_text() == words.TRAINER.read_text()
    launcher, *rest = shlex.split(line)
    arguments = rest[rest.index(str(path)) + 1 :]
    assert (launcher, arguments[arguments.index("--deepspeed") + 1]) == ("torchrun", "zero.json")
    options, _, unknown = HfArgumentParser([trainer.ScriptArguments, TrainingArguments]).parse_args_into_dataclasses(
        [word.replace("zero.json", "") for word in (*arguments, "--use_cpu", "true")], return_remaining_strings=True
    )
    assert (options.lora_r, options.model_name_or_path, unknown) == (8, "Qwen/Qwen2.5-0.5B", [])
    path.write_text("mine")
    with pytest.raises(ConfigFileError, match="exists and differs"):
        write_script(answer, path, "zero.json", force=False)


def test_a_model_under_plain_deepspeed_is_loaded_by_a_second_file(tmp_path: Path) -> None:
    answer = ds_advise.advise("Qwen2.5-0.5B", gpus="2xRTX4090", framework="deepspeed", deepspeed_estimate=False)
    files, line = write_script(answer, tmp_path / "train.py", "zero.json", force=False)
    assert files == [str(tmp_path / "train.py"), str(tmp_path / "trainer.py")]
    assert "--deepspeed_config zero.json" in line
