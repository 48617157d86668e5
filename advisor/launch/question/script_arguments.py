"""What the arguments of the user's script say of the training, by the names that TrainingArguments and the field's
scripts give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

_MODEL = ("model_name_or_path", "model_name", "model_path", "base_model", "pretrained_model_name_or_path", "model")
_SEQ_LEN = ("max_seq_length", "max_seq_len", "max_length", "model_max_length", "block_size", "cutoff_len", "seq_len")
_CONFIG = ("deepspeed", "deepspeed_config", "ds_config")
_TRAINING_ARGUMENTS = (
    "output_dir",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "logging_steps",
    "save_steps",
    "learning_rate",
)
"""Nearly every script that parses TrainingArguments is given two of these or more."""

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


class ScriptArguments:
    """Options as argparse reads them: `--name value`, `--name=value`, `--name` alone; `-` and `_` are one."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._words = tuple(arguments)
        self._values: dict[str, str] = {}
        for word, following in pairwise([*arguments, "--"]):
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                self._values[_key(name)] = value if equals else "" if following.startswith("--") else following

    def text(self, *names: str) -> str | None:
        """The value of the first of the names that is given one."""
        return next((value for name in names if (value := self._values.get(name))), None)

    def number(self, *names: str) -> int | None:
        text = self.text(*names)
        return int(text) if text is not None and text.isascii() and text.isdigit() else None

    def flag(self, name: str) -> bool | None:
        """None where it is not given."""
        value = self._values.get(name)
        return None if value is None else value.lower() not in _FALSE

    @property
    def model(self) -> str | None:
        return self.text(*_MODEL)

    @property
    def seq_len(self) -> int | None:
        return self.number(*_SEQ_LEN)

    @property
    def output_dir(self) -> Path | None:
        text = self.text("output_dir")
        return None if text is None else Path(text)

    @property
    def passes_a_config(self) -> bool:
        """The user hands the script a DeepSpeed configuration already."""
        return any(name in self._values for name in _CONFIG)

    @property
    def configs(self) -> dict[str, str]:
        """The configurations among them, files or JSON, by the option that hands them over."""
        return {name: value for name in _CONFIG if (value := self.text(name)) and value.lower() not in _TRUE}

    @property
    def are_training_arguments(self) -> bool:
        """The script parses TrainingArguments, as far as can be told."""
        return sum(name in self._values for name in _TRAINING_ARGUMENTS) >= 2

    def with_values(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The command line with these options at the end, and without earlier ones of the same names."""
        kept: list[str] = []
        dropping = False
        for word in self._words:
            if word.startswith("--"):
                dropping = _key(word[2:].partition("=")[0]) in values
            if not dropping:
                kept.append(word)
        return (*kept, *(part for name, value in values.items() for part in (f"--{name}", value)))


def _key(name: str) -> str:
    return name.replace("-", "_")
