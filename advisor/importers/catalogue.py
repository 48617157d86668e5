"""The formats that are known, and which of them a file has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from ...estimators.errors import ConfigFileError
from . import accelerate, axolotl, command_line, llama_factory, ms_swift, training_arguments
from .hf_arguments import found
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source, read_source


class _Reader(Protocol):
    """What each module of a format has."""

    def matches(self, source: Source, /) -> bool: ...
    def read(self, source: Source, /) -> ImportedRun: ...
    def changes(self, source: Source, run: ImportedRun, better: Improvement, /) -> Mapping[KeyPath, Value]: ...


class Format(NamedTuple):
    """What one tool's files are recognised by, read by, and changed by."""

    name: str
    """As `--format` calls it."""
    title: str
    """What a file of it is, with its article."""
    by: _Reader
    offloads_checkpoints: bool = False
    """Whether its words can say that layers' inputs wait in host RAM."""


FORMATS = (
    Format("accelerate", "an accelerate configuration", accelerate),
    Format("axolotl", "an axolotl configuration", axolotl, offloads_checkpoints=True),
    Format("llama-factory", "a LLaMA-Factory configuration", llama_factory),
    Format("ms-swift", "an ms-swift configuration", ms_swift),
    Format("training-arguments", "a file of TrainingArguments", training_arguments, offloads_checkpoints=True),
    Format("script", "a script that starts a training", command_line, offloads_checkpoints=True),
)
"""Those with words of their own first: what several would take is the first one's."""

NAMES = tuple(form.name for form in FORMATS)
"""As `--format` takes them."""

_OWN_KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu")
"""Keys of a ds_config."""


def recognised(path: Path, wanted: str | None = None) -> tuple[Source, Format]:
    """The file and its format, by its content or as it is named.

    A script that hands a tool its configuration file leads to that file.

    Raises ConfigFileError for a file that cannot be read, or is of none of the formats.
    """
    source = _followed(read_source(path, "shell" if wanted == "script" else None))
    if wanted is not None:
        named = next(form for form in FORMATS if form.name == wanted)
        if source.line is not None and wanted != "script" and not named.by.matches(source):
            raise ConfigFileError(
                f"{path} is a script, and its training command is not that of {wanted}", fix="leave --format out"
            )
        return source, named
    form = next((form for form in FORMATS if form.by.matches(source)), None)
    if form is not None:
        return source, form
    if any(key in source.values for key in _OWN_KEYS):
        raise ConfigFileError(
            f"{path} is a DeepSpeed configuration itself, which says neither model nor batch",
            fix="pass it to ds-advise lint, compare or dry-run",
        )
    keys = ", ".join(list(source.values)[:4])
    raise ConfigFileError(
        f"{path}: its keys ({keys}) are those of no tool that is known here",
        fix=f"name it with --format, one of {', '.join(NAMES)}",
    )


def _followed(source: Source) -> Source:
    """The configuration that a script's training command hands to its tool, in the place of the script, with what the
    command says otherwise."""
    name = source.line.configuration if source.line is not None else None
    if name is None:
        return source
    path = found(name, source.path.parent)
    if path is None:
        raise ConfigFileError(
            f"{source.path} trains by the configuration {name[:80]}, which is not here",
            why="it says what is trained",
            fix="run this where it is, or name that file",
        )
    return read_source(path).handed_by(source)
