"""How a script gets its settings: its parsers, its TrainingArguments, and the calls that make loader and engine.

A plan that the user would write into the script by hand is forced here (`ForcedSettings`), so that a dry run shows it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import inspect
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..default_script.engine import CHECKPOINTING
from .imports import on_import
from .observed import ObservedArguments, ObservedOption
from .request import ForcedSettings

_SCALARS = bool | int | float | str
_LONGEST = 200
_OWN = (str(Path(__file__).parents[2]), str(Path(os.__file__).parent), "<")
_LIBRARIES = frozenset({"accelerate", "datasets", "deepspeed", "peft", "torch", "transformers", "trl"})


class Arguments:
    """Hooks on what reads settings. user_path: the path that the user knows for one of the simulation."""

    def __init__(self, forced: ForcedSettings | None, user_path: Callable[[str], str]) -> None:
        self._forced = forced or ForcedSettings()
        self._user_path = user_path
        self._options: dict[tuple[str, ...], ObservedOption] = {}
        self._unknown: dict[str, argparse.ArgumentParser] = {}
        """Options that a parser of the script does not have."""
        self._known = set[str]()
        """Options of all parsers of the script."""
        self._trainer: Any = None
        self._calls: dict[str, str] = {}
        self._makers: dict[int, tuple[weakref.ref[Any], str]] = {}
        """Models of transformers with the FILE:LINE that made each, by their ids."""
        self._fields: dict[str, Any] = {}
        self._ds_config = ""
        self.active = False
        """Whether the script runs, and no launcher."""

    def install(self) -> None:
        parser: Any = argparse.ArgumentParser
        parser.parse_known_args = self._parsing_with(parser.parse_known_args)
        on_import("transformers.hf_argparser", self._patch_dataclasses)
        on_import("transformers.training_args", self._patch_trainer)
        on_import("accelerate.utils.dataclasses", self._patch_plugin)
        on_import("transformers.modeling_utils", self._patch_checkpointing)
        self._patch_deepspeed()
        self._patch_loader()

    def misspelt(self, error: str) -> str:
        """Return what to write for the options that an error names, that no parser of the script has, and that one
        nearly has; "" for none."""
        unknown = {name: parser for name, parser in self._unknown.items() if name not in self._known}
        named = {name: parser for name, parser in unknown.items() if re.search(rf"{re.escape(name)}\b", error)}
        near = {name: get_close_matches(name, parser._option_string_actions, n=1) for name, parser in named.items()}
        return "; ".join(f"write {found[0]} for {name}" for name, found in near.items() if found)

    # ------------------------------------------------------------------ hooks

    def _parsing_with(self, parse: Any) -> Any:
        @functools.wraps(parse)
        def parsed(own: Any, *arguments: Any, **options: Any) -> Any:
            if self.active:
                self._known |= own._option_string_actions.keys()  # before a parser refuses the words
            found = parse(own, *arguments, **options)
            if self.active:
                self._options |= {option.flags: option for option in _options(own, found[0])}
                self._unknown |= {word.partition("=")[0]: own for word in found[1] if word.startswith("--")}
            return found

        return parsed

    def _patch_dataclasses(self, module: ModuleType) -> None:
        owner: Any = vars(module)["HfArgumentParser"]
        parse = owner.parse_dict

        @functools.wraps(parse)
        def filled(*arguments: Any, **options: Any) -> Any:
            made = parse(*arguments, **options)
            for each in made:
                self._fields |= _scalars({field.name: getattr(each, field.name) for field in fields(each)})
            return made

        owner.parse_dict = filled

    def _patch_trainer(self, module: ModuleType) -> None:
        owner: Any = vars(module)["TrainingArguments"]
        post_init = owner.__post_init__

        @functools.wraps(post_init)
        def made(own: Any) -> None:
            # The values that the script gave: post_init replaces some of them.
            self._trainer = copy.copy(own)
            self._note("TrainingArguments")
            for name, value in self._forced.trainer.items():
                if hasattr(own, name):
                    setattr(own, name, value)
            self._name_config(own.deepspeed)
            post_init(own)

        owner.__post_init__ = made

    def _patch_plugin(self, module: ModuleType) -> None:
        owner: Any = vars(module)["DeepSpeedPlugin"]
        post_init = owner.__post_init__

        def made(own: Any) -> None:
            if self._called_by_user():
                self._note("DeepSpeedPlugin")
            if self._forced.ds_config is not None:
                own.hf_ds_config, own.zero_stage = dict(self._forced.ds_config), None
            self._name_config(own.hf_ds_config or os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"))
            post_init(own)

        owner.__post_init__ = made

    def _patch_checkpointing(self, module: ModuleType) -> None:
        owner: Any = vars(module)["PreTrainedModel"]
        enable = owner.gradient_checkpointing_enable

        @functools.wraps(enable)
        def noted(own: Any, *arguments: Any, **options: Any) -> Any:
            if self._called_by_user():
                self._note("checkpointing")
            return enable(own, *arguments, **options)

        owner.gradient_checkpointing_enable = noted
        init = owner.__init__

        @functools.wraps(init)
        def made(own: Any, *arguments: Any, **options: Any) -> None:
            if self.active and (line := self._user_line()):
                self._makers[id(own)] = weakref.ref(own), line
            init(own, *arguments, **options)

        owner.__init__ = made

    def _note_model(self, module: Any) -> None:
        """Note where the module was made; inside of a wrapper, the model that it holds."""
        for each in module.modules() if isinstance(module, torch.nn.Module) else ():
            maker = self._makers.get(id(each))
            if maker is not None and maker[0]() is each:
                self._calls.setdefault("model", maker[1])
                return

    def _patch_deepspeed(self) -> None:
        deepspeed: Any = importlib.import_module("deepspeed")
        initialize, signature = deepspeed.initialize, inspect.signature(deepspeed.initialize)

        @functools.wraps(initialize)
        def started(*arguments: Any, **options: Any) -> Any:
            given = signature.bind_partial(*arguments, **options).arguments
            by_user = self._called_by_user()
            if by_user:
                self._note("initialize")
            named = given.get("config") or given.get("config_params")
            named = named or getattr(given.get("args"), "deepspeed_config", None)
            self._name_config(named)
            if self._forced.ds_config is not None and by_user:
                given.pop("config_params", None)
                given["config"] = dict(self._forced.ds_config)
                given["args"] = None
            self._note_model(given.get("model"))
            self._force_checkpointing(given.get("model"))
            return initialize(**given)

        deepspeed.initialize = started

    def _force_checkpointing(self, module: Any) -> None:
        wanted = self._forced.checkpointing
        names = [name for name in CHECKPOINTING if callable(getattr(module, name, None))]
        if wanted is None or not names:
            return
        if wanted:
            getattr(module, names[0])()
            module.train()
        else:
            getattr(module, "gradient_checkpointing_disable", lambda: None)()

    def _patch_loader(self) -> None:
        loader: Any = torch.utils.data.DataLoader
        init = loader.__init__
        names = list(inspect.signature(init).parameters)[1:]

        @functools.wraps(init)
        def made(own: Any, *arguments: Any, **options: Any) -> None:
            named = dict(zip(names, arguments, strict=False)) | options
            if self.active and self._called_by_user():
                self._calls.setdefault("DataLoader", self._user_line())
                new = self._forced.loader_batches.get(str(named.get("batch_size", 1)))
                if new is not None and named.get("batch_sampler") is None:
                    named["batch_size"] = new
            init(own, **named)

        loader.__init__ = made

    # ------------------------------------------------------------------ what was seen

    def _note(self, call: str) -> None:
        line = self._user_line()
        if line and self.active:
            self._calls.setdefault(call, line)

    def _name_config(self, config: Any) -> None:
        if isinstance(config, str) and Path(config).is_file() and not self._ds_config:
            self._ds_config = self._user_path(config)

    def _called_by_user(self) -> bool:
        """Whether the hooked function was called from a file of the user's, and not by a library."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_OWN):
            frame = frame.f_back
        return frame is not None and _is_users(frame)

    def _user_line(self) -> str:
        """FILE:LINE of the innermost frame in the user's files; "" if there is none."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            if _is_users(frame):
                return f"{self._user_path(str(Path(frame.f_code.co_filename).absolute()))}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def observed(self) -> ObservedArguments:
        trainer = self._trainer
        return ObservedArguments(
            options=tuple(self._options.values()),
            fields=self._fields,
            trainer={}
            if trainer is None
            else _scalars({each.name: getattr(trainer, each.name) for each in fields(trainer)}),
            trainer_class="" if trainer is None else type(trainer).__name__,
            calls=self._calls,
            ds_config=self._ds_config,
        )


def _is_users(frame: Any) -> bool:
    """Whether a frame runs code of the user's, and not of a library, wherever that is installed."""
    file, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return "-packages" not in file and not file.startswith(_OWN) and package not in _LIBRARIES


def _options(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> Iterator[ObservedOption]:
    for action in parser._actions:
        value = getattr(namespace, action.dest, None)
        value = getattr(value, "value", value)
        if action.option_strings and isinstance(value, _SCALARS | None) and len(str(value)) < _LONGEST:
            yield ObservedOption(flags=tuple(action.option_strings), value=value, is_switch=action.nargs == 0)


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: getattr(value, "value", value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if isinstance(value, _SCALARS)}
