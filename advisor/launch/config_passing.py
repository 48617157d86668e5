"""Whether and how the script is handed the configuration: it may have one of its own, in its text or its arguments."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...estimators.errors import ConfigFileError
from ...estimators.workload import Framework
from ..question.run import read_ds_config
from .request import Script
from .script_arguments import ScriptArguments

_INITIALIZE_KEYWORDS, _INITIALIZE_POSITION = ("config", "config_params"), 10
"""How `deepspeed.initialize` is given a configuration (0.19.8 `deepspeed/__init__.py`)."""

_NAMES: dict[Framework, str] = {"deepspeed": "deepspeed_config", "hf": "deepspeed"}
"""The name under which a parser hands over the file that `launch` passes. A script in which it occurs, as `args.NAME`
or as a text, may read the file from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandingOver:
    """How the file reaches the script."""

    passes: bool
    """Whether it is handed over at all."""
    with_flag: bool = True
    """Whether `--deepspeed` goes before `--deepspeed_config`."""
    remarks: tuple[str, ...] = ()
    """What to know where the script has a configuration of its own."""


def handing_over(
    wanted: bool | None,
    config_file: Path,
    config: Mapping[str, Any],
    *,
    framework: Framework,
    script: Script,
    source: str,
) -> HandingOver:
    """How a script with this text is handed the file.

    wanted: what the user says of it; None leaves it to the script.

    Raises ConfigFileError where its arguments or its text name another configuration: one would be checked, and the
    other trained with.
    """
    arguments = ScriptArguments(script.arguments)
    _check_arguments(config_file, config, arguments)
    with_flag = _parses_flag(source)
    if wanted is not None or arguments.passes_a_config:
        return HandingOver(passes=wanted is not False and not arguments.passes_a_config, with_flag=with_flag)
    own = own_configuration(source, framework)
    if own is None:
        return HandingOver(passes=True, with_flag=with_flag)
    where = f"{script.target}, line {own.lineno},"
    if isinstance(own, ast.Constant) and isinstance(own.value, str):
        if Path(own.value).resolve() == config_file.resolve():
            return HandingOver(passes=False)
        raise ConfigFileError(
            f"{where} names {own.value}, but {config_file} is what would be checked",
            why="the training would not be the one that was seen to fit",
            fix=f"launch {own.value}, or pass --pass-config where the script takes the file from its arguments",
        )
    remark = (
        f"{where} gives DeepSpeed a configuration of its own: {config_file} is checked but not handed over, so they "
        "must be alike (--pass-config hands it over)"
    )
    return HandingOver(passes=False, remarks=(remark,))


def _check_arguments(config_file: Path, config: Mapping[str, Any], arguments: ScriptArguments) -> None:
    for name, text in arguments.configs.items():
        try:
            other = json.loads(text) if text.lstrip().startswith("{") else read_ds_config(Path(text))
        except (ConfigFileError, ValueError):
            other = None
        if other != config:
            raise ConfigFileError(
                f"the script is given --{name} {text[:80]}, which is not what {config_file} says",
                why="one would be checked, and the other trained with",
                fix=f"leave --{name} to launch, or launch the script's file",
            )


def own_configuration(source: str, framework: Framework) -> ast.expr | None:
    """What the script gives DeepSpeed as its configuration, where that cannot be the file of its arguments: the
    `config` of `deepspeed.initialize`, or the `deepspeed` of TrainingArguments; None where it has none of its own.

    Only the script's own text is seen, not what it imports.
    """
    given: ast.expr | None = None
    for node in _nodes(source):
        if isinstance(node, ast.Call) and given is None:
            given = _given(node, framework)
        if _occurs(node, _NAMES[framework]):
            return None
    return given


def _given(call: ast.Call, framework: Framework) -> ast.expr | None:
    """The configuration that a call hands to DeepSpeed."""
    name = _called(call)
    values: list[ast.expr] = []
    if framework == "deepspeed" and name == "initialize":
        values = [keyword.value for keyword in call.keywords if keyword.arg in _INITIALIZE_KEYWORDS]
        values += call.args[_INITIALIZE_POSITION : _INITIALIZE_POSITION + 1]
    elif framework == "hf" and name.endswith(("TrainingArguments", "Config")):
        values = [keyword.value for keyword in call.keywords if keyword.arg == "deepspeed"]
    return next((value for value in values if not (isinstance(value, ast.Constant) and value.value is None)), None)


def _parses_flag(source: str) -> bool:
    """Whether a parser may know `--deepspeed`: one that knows `--deepspeed_config` alone takes it for an abbreviation
    of that, and ends over its missing value."""
    known = {word for call in _nodes(source) if isinstance(call, ast.Call) for word in _options(call)}
    return "--deepspeed_config" not in known or "--deepspeed" in known or "add_config_arguments" in known


def _options(call: ast.Call) -> list[str]:
    """The options that a call adds to a parser; the name of DeepSpeed's function that adds its own."""
    if _called(call) == "add_argument":
        return [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return ["add_config_arguments"] if _called(call) == "add_config_arguments" else []


def _occurs(node: ast.AST, name: str) -> bool:
    """Whether it reads an attribute of this name, or is a text that says it, as for a parser."""
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lstrip("-") == name


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _nodes(source: str) -> list[ast.AST]:
    """The parts of its syntax, none where it is not this Python's."""
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return []
