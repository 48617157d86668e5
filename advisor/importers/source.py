"""A file of another tool as text and as values: YAML, JSON or a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ...ds_configs.files import read_text
from ...estimators.errors import ConfigFileError
from ...validate.lint.document import MAX_BYTES, read_document
from ..question.run import read_ds_config
from .file_text import edit_json, edit_yaml, read_yaml
from .imported_run import DeepSpeedPart, Value
from .launch_line import LaunchLine, SlurmJob, read_slurm, training_lines
from .script_arguments import ScriptArguments
from .shell_words import read_shell

Kind = Literal["yaml", "json", "shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path
    text: str
    kind: Kind
    values: Mapping[str, Any] = field(default_factory=dict)
    """The file's keys, or the options of its training command."""
    line: LaunchLine | None = None
    """The training command of a script; None for a configuration file."""
    further_lines: int = 0
    """Number of further commands that train."""
    job: SlurmJob | None = None
    started_by: Source | None = None
    """The script whose training command names this configuration; None if the file is read alone."""

    @property
    def start(self) -> LaunchLine | None:
        """The training command: the script's own, or the command of the script that names this configuration."""
        return self.line or (self.started_by.line if self.started_by is not None else None)

    @property
    def arguments(self) -> ScriptArguments:
        """The values as options. Every access returns a new object, with no option marked as read."""
        return (
            ScriptArguments(self.line.arguments) if self.line is not None else ScriptArguments.from_values(self.values)
        )

    def overridden_by(self, script: Source | None) -> Source:
        """The file with the options of the script's command, which override its keys; unchanged if `script` is None."""
        if script is None or script.line is None:
            return self
        return replace(self, values={**self.values, **script.line.overrides}, started_by=script)

    def edited(self, changes: Mapping[str, Value]) -> str:
        """The text with these keys or options set, or removed if the value is None.

        Raises ConfigFileError if the file's form does not allow it, or if the script's command overrides them.
        """
        if not changes:
            return self.text
        if self.started_by is not None and self.started_by.line is not None:
            script, overrides = self.started_by.path, self.started_by.line.overrides
            if name := next((name for name in changes if name in overrides), None):
                what = f"the command in {script} sets {name}, which overrides {self.path}"
                raise ConfigFileError(what, fix="set it only in that file")
        if self.line is None:
            return edit_json(self.text, changes) if self.kind == "json" else edit_yaml(self.text, changes)
        text = self.text
        for name, value in reversed(list(changes.items())):  # new options then stand in the order of the changes
            text = _set_option(text, self.line, name, value)
        return text


def read_source(path: Path, kind: Kind | None = None) -> Source:
    """Read a file. kind: None recognises it by content and suffix. Raises ConfigFileError for a file that cannot be
    read, and for a text of no known kind."""
    fix = "pass a configuration of one of the tools, or a training script"
    text = read_text(path, MAX_BYTES, what="a configuration", fix=fix)
    if "\0" in text or not text.strip():
        problem = "not text" if text.strip() else "the file is empty"
        raise ConfigFileError(f"{path}: {problem}", fix=fix)
    return parse_source(path, text, kind or _kind(path, text))


def parse_source(path: Path, text: str, kind: Kind) -> Source:
    """The text as values. Raises the errors of `read_source`."""
    if kind == "yaml":
        return Source(path=path, text=text, kind=kind, values=read_yaml(text, str(path)))
    if kind == "json":
        values = read_document(text.encode(), name=str(path)).value
        return Source(path=path, text=text, kind=kind, values=values)
    job = read_slurm(text)
    lines = training_lines(read_shell(text, job.variables() if job is not None else None))
    if not lines:
        raise ConfigFileError(
            f"{path}: it has no training command",
            why="it calls neither a launcher, nor python with training arguments, nor one of the tools",
            fix="pass the script that calls them, or the configuration",
        )
    line = lines[0]
    return Source(path=path, text=text, kind=kind, line=line, further_lines=len(lines) - 1, job=job)


def _kind(path: Path, text: str) -> Kind:
    if text.lstrip().startswith("{") or path.suffix == ".json":
        return "json"
    if text.startswith("#!") or path.suffix in (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".job"):
        return "shell"
    try:
        read_yaml(text, str(path))
    except ConfigFileError:
        return "yaml" if path.suffix in (".yaml", ".yml") else "shell"
    return "yaml"


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


_VALUE = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|[^\s'";&|<>\\)])+"""
_REFERENCE = re.compile(r"""["']?\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\})["']?""")


def _set_option(text: str, line: LaunchLine, name: str, value: Value) -> str:
    """The script's text with an option of its training command set, or removed if the value is None. A value is
    replaced where it is written, which may be the assignment of a variable; a new option follows the last one. Raises
    ConfigFileError if the option is not written in one place."""
    new = shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))
    options = ScriptArguments(line.arguments).by_name
    if name in options:
        found = _option(text, name)
        if found is not None and value is None:
            return text[: found.start()] + text[found.end() :]
        if found is not None and found["value"] is None:
            return f"{text[: found.end()]} {new}{text[found.end() :]}"
        span = None if found is None else _value_span(text, found.span("value"))
        if span is not None:
            return text[: span[0]] + new + text[span[1] :]
    elif value is None:
        return text
    elif last := next(filter(None, (_option(text, each) for each in reversed(options))), None):
        return f"{text[: last.end()]} --{name} {new}{text[last.end() :]}"
    raise ConfigFileError(
        f"--{name} is composed of several parts of the script, so it cannot be changed there",
        fix="write its value in one place",
    )


def _option(text: str, name: str) -> re.Match[str] | None:
    """The first place outside comments where an option is written, with the blanks before it and its values."""
    blank, no_value = r"(?:[ \t]|\\\n)+", r"--|\d*[<>]"
    words = name.replace("_", "[-_]")
    pattern = (
        rf"(?m)(?:{blank}|(?<=[\"'(])|^)--{words}"
        rf"(?:(?:=|{blank}(?!{no_value}))(?P<value>{_VALUE})(?:{blank}(?!{no_value}){_VALUE})*|(?=[\s\"');&|]|$))"
    )
    found = re.finditer(pattern, text)
    return next((match for match in found if "#" not in text[text.rfind("\n", 0, match.end()) + 1 : match.end()]), None)


def _value_span(text: str, span: tuple[int, int]) -> tuple[int, int] | None:
    """The position of a value; for a variable that is assigned once, of the assigned value or the default."""
    while "$" in (written := text[span[0] : span[1]]):
        reference = _REFERENCE.fullmatch(written)
        if reference is None:
            return None
        if reference[3] is not None:
            return span[0] + reference.start(3), span[0] + reference.end(3)
        assigned = list(re.finditer(rf"(?m)(?<![\w$]){reference[1] or reference[2]}=({_VALUE})", text))
        if len(assigned) != 1 or assigned[0].start() >= span[0]:
            return None
        span = assigned[0].span(1)
    return span
