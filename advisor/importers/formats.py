"""The formats of other tools, shell scripts among them, and recognition of a file's format by its content."""

from __future__ import annotations

from pathlib import Path

from ...estimators.errors import ConfigFileError
from ...estimators.phrase import phrase
from .accelerate import ACCELERATE, AccelerateFormat
from .openrlhf import OPENRLHF
from .source import Source, find_file, read_source
from .tool_format import ToolFormat
from .tool_tables import AXOLOTL, LLAMA_FACTORY, MS_SWIFT
from .trainer_tables import SCRIPT, TRAINING_ARGUMENTS, TRL

Format = AccelerateFormat | ToolFormat

FORMATS: tuple[Format, ...] = (ACCELERATE, AXOLOTL, LLAMA_FACTORY, MS_SWIFT, OPENRLHF, TRL, TRAINING_ARGUMENTS, SCRIPT)
"""The first that matches is taken."""

NAMES = tuple(form.name for form in FORMATS)


def recognised(path: Path, name: str | None = None) -> tuple[Source, Format]:
    """The file and its format: the named one, or by its content.

    A script that starts a tool with a configuration file leads to that file.

    Raises ConfigFileError for a file that cannot be read or has none of the formats.
    """
    source = _followed(read_source(path, "shell" if name == "script" else None))
    if name is not None:
        named = next(form for form in FORMATS if form.name == name)
        if source.line is not None and name != "script" and not named.matches(source):
            raise ConfigFileError(
                phrase("{path} is a script, and its training command is not that of {name}", path=path, name=name),
                fix="leave --format out",
            )
        return source, named
    form = next((form for form in FORMATS if form.matches(source)), None)
    if form is not None:
        return source, form
    if {"zero_optimization", "train_micro_batch_size_per_gpu"} & set(source.values):
        raise ConfigFileError(
            phrase("{path} is a DeepSpeed configuration, without model and batch", path=source.path),
            fix="pass it to ds-advise lint, compare or dry-run",
        )
    keys = ", ".join(list(source.values)[:4])
    raise ConfigFileError(
        phrase("{path}: its keys ({keys}) are those of no known tool", path=source.path, keys=keys),
        fix=phrase("name it with --format, one of {names}", names=", ".join(NAMES)),
    )


def _followed(source: Source) -> Source:
    """The configuration file that a script's training command names, with the command's options; else the source."""
    name = source.line.configuration if source.line is not None else None
    if name is None:
        return source
    path = find_file(name, source.path.parent)
    if path is None and "$" in name:
        raise ConfigFileError(
            phrase(
                "{path} names its configuration by values that are set when it runs: {name}",
                path=source.path,
                name=name[:80],
            ),
            fix="name the configuration itself",
        )
    if path is None:
        raise ConfigFileError(
            phrase("{path} needs {name}, which is not on this machine", path=source.path, name=name[:80]),
            why="it describes the training",
            fix="run this where it is, or name that file",
        )
    return read_source(path).handed_by(source)
