"""The formats of other tools, shell scripts among them, and recognition of a file's format by its content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ...estimators.errors import ConfigFileError
from .accelerate import ACCELERATE
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source, find_file, read_source, with_launch
from .tool_format import named_part
from .tool_tables import AXOLOTL, LLAMA_FACTORY, MS_SWIFT, TRAINING_ARGUMENTS


class Format(Protocol):
    """The files of one tool: how they are recognised, read and changed."""

    @property
    def name(self) -> str:
        """As `--format` calls it."""

    @property
    def title(self) -> str:
        """What a file of it is, with its article."""

    @property
    def offloads_checkpoints(self) -> bool:
        """Whether it has a key that offloads the inputs of checkpointed layers to host RAM."""

    def matches(self, source: Source) -> bool: ...
    def read(self, source: Source) -> ImportedRun: ...
    def changes(self, source: Source, run: ImportedRun, better: Improvement) -> Mapping[KeyPath, Value]: ...


class _Script:
    """A shell or Slurm script with a training command of no tool."""

    name = "script"
    title = "a script that starts a training"
    offloads_checkpoints = True

    def matches(self, source: Source) -> bool:
        return source.line is not None and source.line.program == "script"

    def read(self, source: Source) -> ImportedRun:
        """The training of its first training command."""
        assert source.line is not None
        run = TRAINING_ARGUMENTS.read_options(source)
        return launched(replace(run, tool=source.line.launcher or "python"), source)

    def changes(self, source: Source, run: ImportedRun, better: Improvement) -> Mapping[KeyPath, Value]:
        """The options that turn it into the better run.

        Raises ConfigFileError where the DeepSpeed configuration is in the launcher's own options, before the script.
        """
        line = source.line
        assert line is not None
        options = line.launcher_options
        if line.launcher == "accelerate" and (options.text("config_file") or options.flag("use_deepspeed")):
            raise ConfigFileError(
                "the DeepSpeed configuration is in the options of accelerate launch, or in its --config_file",
                fix="ask about that file: ds-advise from CONFIG_FILE --model MODEL",
            )
        return TRAINING_ARGUMENTS.changes(source, run, better)


FORMATS: tuple[Format, ...] = (ACCELERATE, AXOLOTL, LLAMA_FACTORY, MS_SWIFT, TRAINING_ARGUMENTS, _Script())
"""The first that matches is taken."""

NAMES = tuple(form.name for form in FORMATS)


def launched(run: ImportedRun, source: Source) -> ImportedRun:
    """The run with the options of its launcher: DeepSpeed or FSDP by accelerate, and the processes."""
    return with_launch(_with_accelerate_options(run, source), source)


def _with_accelerate_options(run: ImportedRun, source: Source) -> ImportedRun:
    line = source.line
    assert line is not None
    if line.launcher != "accelerate" or run.deepspeed is not None:
        return run
    options, folder = line.launcher_options, source.path.parent
    if name := options.text("config_file"):
        run = _with_accelerate_file(run, name, folder)
    precision = options.text("mixed_precision")
    if precision in ("bf16", "fp16") and run.training.get("precision") == "fp32":
        run = replace(run, training={**run.training, "precision": precision})
    if name := options.text("deepspeed_config_file"):
        return replace(run, sharding="zero", deepspeed=named_part(name, folder))
    return replace(run, sharding="fsdp") if options.flag("use_fsdp") else run


def _with_accelerate_file(run: ImportedRun, name: str, folder: Path) -> ImportedRun:
    path = find_file(name, folder)
    if path is None:
        return replace(run, remarks=(*run.remarks, f"accelerate's configuration {name} is not here, so it is not read"))
    launch = ACCELERATE.read(read_source(path))
    precision = launch.training if run.training.get("precision") == "fp32" else {}
    return replace(
        run,
        training={**run.training, **precision},
        sharding=launch.sharding,
        deepspeed=launch.deepspeed,
        nodes=launch.nodes,
        gpus_per_node=launch.gpus_per_node,
        faults=(*run.faults, *launch.faults),
        obstacle=run.obstacle or launch.obstacle,
        uncounted=(*run.uncounted, *launch.uncounted),
        unknown=(*run.unknown, *launch.unknown),
    )


def recognised(path: Path, wanted: str | None = None) -> tuple[Source, Format]:
    """The file and its format: the named one, or by its content.

    A script that starts a tool with a configuration file leads to that file.

    Raises ConfigFileError for a file that cannot be read or has none of the formats.
    """
    source = _followed(read_source(path, "shell" if wanted == "script" else None))
    if wanted is not None:
        named = next(form for form in FORMATS if form.name == wanted)
        if source.line is not None and wanted != "script" and not named.matches(source):
            raise ConfigFileError(
                f"{path} is a script, and its training command is not that of {wanted}", fix="leave --format out"
            )
        return source, named
    form = next((form for form in FORMATS if form.matches(source)), None)
    if form is not None:
        return source, form
    if {"zero_optimization", "train_micro_batch_size_per_gpu"} & set(source.values):
        raise ConfigFileError(
            f"{path} is a DeepSpeed configuration, without model and batch",
            fix="pass it to ds-advise lint, compare or dry-run",
        )
    keys = ", ".join(list(source.values)[:4])
    raise ConfigFileError(
        f"{path}: its keys ({keys}) are those of no known tool",
        fix=f"name it with --format, one of {', '.join(NAMES)}",
    )


def _followed(source: Source) -> Source:
    """The configuration file that a script's training command names, with the command's options; else the source."""
    name = source.line.configuration if source.line is not None else None
    if name is None:
        return source
    path = find_file(name, source.path.parent)
    if path is None:
        raise ConfigFileError(
            f"{source.path} trains with the configuration {name[:80]}, which is not on this machine",
            why="it describes the training",
            fix="run this where it is, or name that file",
        )
    return read_source(path).handed_by(source)
