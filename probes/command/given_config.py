"""A DeepSpeed configuration in front of a command, for a script that names none: in a dry run and on real ranks."""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from ...ds_configs.launch_commands import accelerate_variables
from .imports import on_import


def give_config(file: Path) -> None:
    """Give this process's script the file: to accelerate by the variables of its launcher, to TrainingArguments as
    `--deepspeed`, and to `deepspeed.initialize` as its `config`, in each case unless the script names one. Nothing is
    imported for this."""
    os.environ.update(accelerate_variables(str(file)))
    on_import("transformers.training_args", lambda module: _to_trainer(module, str(file)))
    on_import("deepspeed", lambda module: _to_initialize(module, str(file)))


def _to_trainer(module: ModuleType, file: str) -> None:
    owner: Any = vars(module)["TrainingArguments"]
    post_init = owner.__post_init__

    @functools.wraps(post_init)
    def with_config(own: Any) -> None:
        own.deepspeed = own.deepspeed or file
        post_init(own)

    owner.__post_init__ = with_config


def _to_initialize(module: ModuleType, file: str) -> None:
    initialize: Any = vars(module)["initialize"]
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def with_config(*arguments: Any, **options: Any) -> Any:
        given = signature.bind_partial(*arguments, **options).arguments
        named = getattr(given.get("args"), "deepspeed_config", None)
        if not (named or given.get("config") or given.get("config_params")):
            options["config"] = file
        return initialize(*arguments, **options)

    vars(module)["initialize"] = with_config
