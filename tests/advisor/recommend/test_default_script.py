"""`--script`: the default script of the recommended plan, as a file of the user's."""

from __future__ import annotations

import shlex
from pathlib import Path

import ds_advise
from ds_advise.advisor.answer.default_script import script_files
from ds_advise.probes.default_script import trainer, words


def test_the_script_is_given_with_a_command_that_it_understands() -> None:
    """Every argument is one of the script's or of TrainingArguments."""
    from transformers import HfArgumentParser, TrainingArguments

    answer = ds_advise.advise("Qwen2.5-0.5B", gpus="2xRTX4090", method="lora", deepspeed_estimate=False)
    path = Path("train.py")
    files, line = script_files(answer, path, "zero.json")
    assert files == [(path, words.TRAINER.read_text())]
    launcher, *rest = shlex.split(line)
    arguments = rest[rest.index(str(path)) + 1 :]
    assert (launcher, arguments[arguments.index("--deepspeed") + 1]) == ("torchrun", "zero.json")
    options, _, unknown = HfArgumentParser([trainer.ScriptArguments, TrainingArguments]).parse_args_into_dataclasses(
        [word.replace("zero.json", "") for word in (*arguments, "--use_cpu", "true")], return_remaining_strings=True
    )
    assert (options.lora_r, options.model_name_or_path, unknown) == (8, "Qwen/Qwen2.5-0.5B", [])


def test_a_model_under_plain_deepspeed_is_loaded_by_a_second_file() -> None:
    answer = ds_advise.advise("Qwen2.5-0.5B", gpus="2xRTX4090", framework="deepspeed", deepspeed_estimate=False)
    files, line = script_files(answer, Path("train.py"), "zero.json")
    assert [str(path) for path, _ in files] == ["train.py", "trainer.py"]
    assert "--deepspeed_config zero.json" in line
