"""The formats that are known, and which of them a file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ....estimators.dataclass import dataclass, replace
from ....estimators.errors import ConfigFileError
from ..texts.change import KeyPath, Value
from ..texts.source import Source, read_source
from . import accelerate, axolotl, command_line, llama_factory, ms_swift, training_arguments
from .foreign_run import ForeignRun, Improvement
from .hf_words import found


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What one tool's files are recognised by, read by, and changed by."""

    name: str
    """As `--format` calls it."""
    title: str
    """What a file of it is, with its article."""
    matches: Callable[[Source], bool]
    read: Callable[[Source], ForeignRun]
    changes: Callable[[Source, ForeignRun, Improvement], Mapping[KeyPath, Value]]
    offloads_checkpoints: bool
    """Whether its words can say that layers' inputs wait in host RAM."""


FORMATS = (
    Format(
        name="accelerate",
        title="an accelerate configuration",
        matches=accelerate.matches,
        read=accelerate.read,
        changes=accelerate.changes,
        offloads_checkpoints=False,
    ),
    Format(
        name="axolotl",
        title="an axolotl configuration",
        matches=axolotl.matches,
        read=axolotl.read,
        changes=axolotl.changes,
        offloads_checkpoints=True,
    ),
    Format(
        name="llama-factory",
        title="a LLaMA-Factory configuration",
        matches=llama_factory.matches,
        read=llama_factory.read,
        changes=llama_factory.changes,
        offloads_checkpoints=False,
    ),
    Format(
        name="ms-swift",
        title="an ms-swift configuration",
        matches=ms_swift.matches,
        read=ms_swift.read,
        changes=ms_swift.changes,
        offloads_checkpoints=False,
    ),
    Format(
        name="training-arguments",
        title="a file of TrainingArguments",
        matches=training_arguments.matches,
        read=training_arguments.read,
        changes=training_arguments.changes,
        offloads_checkpoints=True,
    ),
    Format(
        name="script",
        title="a script that starts a training",
        matches=command_line.matches,
        read=command_line.read,
        changes=command_line.changes,
        offloads_checkpoints=True,
    ),
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
        if source.line is not None and wanted != "script" and not named.matches(source):
            raise ConfigFileError(
                f"{path} is a script, and its training command is not that of {wanted}", fix="leave --format out"
            )
        return source, named
    form = next((form for form in FORMATS if form.matches(source)), None)
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
    """The configuration that a script's training command hands to its tool, in the place of the script."""
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
    return replace(read_source(path), started_by=source)
