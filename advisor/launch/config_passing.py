"""How the script gets the configuration file. The script may have a configuration of its own, in its text or its
arguments; then another file must not be checked."""

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
from .script_arguments import ScriptArguments
from .script_source import Script, called

_INITIALIZE_KEYWORDS, _INITIALIZE_POSITION = ("config", "config_params"), 10
"""The configuration's parameters of `deepspeed.initialize` (0.19.8 `deepspeed/__init__.py`)."""

_NAMES: dict[Framework, str] = {"deepspeed": "deepspeed_config", "hf": "deepspeed", "trl": "deepspeed"}
"""The parser's name of the file that `launch` passes. A script with `args.NAME` or the text NAME may read the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPassing:
    """How the file reaches the script."""

    passes: bool
    """Whether it is passed at all."""
    with_flag: bool = True
    """Whether `--deepspeed` precedes `--deepspeed_config`."""
    remarks: tuple[str, ...] = ()


def config_passing(
    requested: bool | None,
    config_file: Path,
    config: Mapping[str, Any],
    *,
    framework: Framework,
    script: Script,
) -> ConfigPassing:
    """How to pass the file to a script.

    requested: the user's choice; None lets the script decide.

    Raises ConfigFileError where its arguments or its text name another configuration than the one that is checked.
    """
    arguments, source = script.options, script.source
    _check_arguments(config_file, config, arguments)
    options = {word for call in source.calls for word in _options(call)}
    # argparse takes `--deepspeed` for an abbreviation where the parser has `--deepspeed_config` alone.
    with_flag = "--deepspeed_config" not in options or bool({"--deepspeed", "add_config_arguments"} & options)
    if requested is not None or arguments.passes_a_config:
        return ConfigPassing(passes=requested is not False and not arguments.passes_a_config, with_flag=with_flag)
    own = next((value for call in source.calls if (value := _given(call, framework)) is not None), None)
    if own is None or _NAMES[framework] in source.names:
        return ConfigPassing(passes=True, with_flag=with_flag)
    where = f"{script.target}, line {own.lineno},"
    if isinstance(own, ast.Constant) and isinstance(own.value, str):
        if Path(own.value).resolve() == config_file.resolve():
            return ConfigPassing(passes=False)
        raise ConfigFileError(
            f"{where} names {own.value}, but {config_file} would be checked",
            why="the checked configuration and that of the training must be the same",
            fix=f"launch {own.value}, or pass --pass-config where the script takes the file from its arguments",
        )
    remark = (
        f"{where} gives DeepSpeed a configuration of its own: {config_file} is checked but not passed, so they "
        "must be equal (--pass-config passes it)"
    )
    return ConfigPassing(passes=False, remarks=(remark,))


def _check_arguments(config_file: Path, config: Mapping[str, Any], arguments: ScriptArguments) -> None:
    for name, text in arguments.configs.items():
        try:
            other = json.loads(text) if text.lstrip().startswith("{") else read_ds_config(Path(text))
        except (ConfigFileError, ValueError):
            other = None
        if other != config:
            raise ConfigFileError(
                f"the script gets --{name} {text[:80]}, which differs from {config_file}",
                why="the checked configuration and that of the training must be the same",
                fix=f"leave --{name} to launch, or launch the script's file",
            )


def _given(call: ast.Call, framework: Framework) -> ast.expr | None:
    name = called(call)
    values: list[ast.expr] = []
    if framework == "deepspeed" and name == "initialize":
        values = [keyword.value for keyword in call.keywords if keyword.arg in _INITIALIZE_KEYWORDS]
        values += call.args[_INITIALIZE_POSITION : _INITIALIZE_POSITION + 1]
    elif framework != "deepspeed" and name.endswith(("TrainingArguments", "Config")):
        values = [keyword.value for keyword in call.keywords if keyword.arg == "deepspeed"]
    return next((value for value in values if not (isinstance(value, ast.Constant) and value.value is None)), None)


def _options(call: ast.Call) -> list[str]:
    """The options that a call adds to a parser; the name of DeepSpeed's function that adds its own."""
    if called(call) == "add_argument":
        return [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return ["add_config_arguments"] if called(call) == "add_config_arguments" else []
