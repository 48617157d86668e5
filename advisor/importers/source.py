"""A file of another tool as text and as values: YAML or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...ds_configs.files import read_text
from ...estimators.errors import ConfigFileError
from ...probes.command.words import tools_file
from ...validate.lint.document_reader import MAX_BYTES, read_document
from ..question.gpu_text import started
from ..question.run import read_ds_config
from ..text.units import listed
from .file_text import edit_json, edit_yaml, read_yaml
from .imported_run import DeepSpeedPart, Value
from .script_arguments import ScriptArguments
from .script_command import training_commands, unknown_variables

Kind = Literal["yaml", "json"]

_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".job", ".py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path
    text: str
    kind: Kind
    values: Mapping[str, Any] = field(default_factory=dict)
    """The file's keys."""

    @property
    def arguments(self) -> ScriptArguments:
        """The values as options. Every access returns a new object, with no option marked as read."""
        return ScriptArguments.from_values(self.values)

    def edited(self, changes: Mapping[str, Value]) -> str:
        """The text with these keys set, or removed if the value is None. Raises ConfigFileError if the file's form does
        not allow it."""
        if not changes:
            return self.text
        return edit_json(self.text, changes) if self.kind == "json" else edit_yaml(self.text, changes)


def read_source(path: Path, gpus: str | None = None, *, further: Sequence[str] = ()) -> Source:
    """Read a file. gpus, further: the machines and other options, as given: for the command in the message on a script.

    Raises ConfigFileError for a file that cannot be read, for a text that is neither YAML nor JSON, and for a script,
    with the command that answers in its place.
    """
    fix = "pass a file of accelerate, axolotl, LLaMA-Factory, ms-swift or TRL, or TrainingArguments as JSON"
    text = read_text(path, MAX_BYTES, what="a configuration", fix=fix)
    if "\0" in text or not text.strip():
        problem = "not text" if text.strip() else "the file is empty"
        raise ConfigFileError(f"{path}: {problem}", fix=fix)
    if text.startswith("#!") or path.suffix in _SCRIPTS:
        raise _script_error(path, text, gpus or "SPEC", "".join(f" {shlex.quote(word)}" for word in further))
    is_json = text.lstrip().startswith("{") or path.suffix == ".json"
    return parse_source(path, text, "json" if is_json else "yaml")


def parse_source(path: Path, text: str, kind: Kind) -> Source:
    """The text as values. Raises the errors of `read_source`."""
    values = read_document(text.encode(), name=str(path)).value if kind == "json" else read_yaml(text, str(path))
    return Source(path=path, text=text, kind=kind, values=values)


def _script_error(path: Path, text: str, gpus: str, further: str) -> ConfigFileError:
    """The error for a script, with the first training command in its text, and what is exported before."""
    command, others, what = started(str(path), gpus), list[str](), f"{path} is a script, not a configuration"
    if path.suffix != ".py":
        found = training_commands(text)
        command = found[0].text if found else "COMMAND, with the command that starts the training"
        others = [str(each.line) for each in found[1:]]
    with suppress(ValueError):  # quotes that only a shell could close
        if (name := tools_file(shlex.split(command))) and (named := find_file(name, path.parent)) is not None:
            why = f"its command trains with {named}; what else the command sets is left out"
            return ConfigFileError(what, why=why, fix=f"ds-advise from {named} --gpus {gpus}{further}")
    why = "a dry run of its command answers in its place"
    if others:
        lines = f"line{'s' * (len(others) > 1)} {listed(others)}"
        why = f"a dry run of its first command answers in its place, and so may those of {lines}"
    if unknown := unknown_variables(command):
        names = listed([f"${name}" for name in unknown])
        why += f", once you have replaced {names}, which the script gives no literal value"
    return ConfigFileError(what, why=why, fix=f"ds-advise --gpus {gpus}{further} -- {command}")


def find_file(name: str, folder: Path) -> Path | None:
    """The path of a named file; None if there is none. The search covers the working folder, the folder of the file
    that names it, and the parents of that folder, because tools are started from the root of their checkout."""
    # The working folder first, as the tool itself would look.
    for place in (Path(), folder, *folder.resolve().parents[:5]):
        try:
            if (place / name).is_file():
                return place / name
        except (OSError, ValueError):
            continue
    return None


def named_part(name: str, folder: Path) -> DeepSpeedPart:
    """The DeepSpeed configuration in a file that another file in this folder names."""
    path = find_file(name, folder)
    return DeepSpeedPart(name=name, config=None if path is None else read_ds_config(path), path=path)
