"""The page's options: those of `ds-advise MODEL`, as texts by the names that they have on the command line."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ...estimators.errors import DsAdviseError, ModelConfigError, UnknownModelError, WorkloadError
from ...estimators.models import catalogue
from ...estimators.models.families import shape_from_config
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import Precision
from ..advise import advise
from ..ask import ask
from ..question.model_source import parse_json_object
from ..question.question import Question

PASTED = "./config.json"
"""A model whose `config.json` was pasted: its name, and the file that the command line reads it from."""

_LONGEST_TEXT = 200
"""Characters of an option; longer ones are no answer to anything."""

_LONGEST_CONFIG = 2**20
"""Characters of a pasted configuration of a model."""

_LEFT_OUT = ("model", "model_size", "offline", "sharding", "deepspeed_estimate", "data", "packing", "eval_split", "say")
"""Arguments of `advise` that are no option here: the model is chosen beside them, the others want what no browser has
or change no recommendation."""

_WORDS = {"precision": ("auto", *get_args(Precision)), "optimizer": tuple(OPTIMIZERS)}
"""Words of arguments whose type does not list them."""

_MAY_BE_MAX = ("seq-len", "micro-batch")
"""Counts that the search makes as large as they may be."""

State = Mapping[str, str]
"""`model`, `config` (a pasted `config.json`, which then is the model) and options by name; an empty text is none."""


class Option(NamedTuple):
    """An option of the command line."""

    kind: Literal["words", "switch", "count", "number", "text"]
    """A switch stands on the command line without a value, and is "yes" here."""
    words: tuple[str, ...]
    """What it may be; empty where it is no choice."""
    default: str
    """What it is where nobody names it; empty for none."""


def _option(name: str, hint: Any, default: Any) -> Option:
    members = get_args(hint) or (hint,)
    said = "" if default is None or default is False else str(default)
    words = _WORDS.get(name, ()) or (members if get_origin(hint) is Literal else ())
    if words:
        return Option("words", words, said)
    if bool in members:
        return Option("switch", ("", "yes"), said)
    return Option("count" if int in members else "number" if float in members else "text", (), said)


def _options() -> dict[str, Option]:
    hints = get_type_hints(advise)
    return {
        name.replace("_", "-"): _option(name, hints[name], argument.default)
        for name, argument in inspect.signature(advise).parameters.items()
        if name not in _LEFT_OUT
    }


OPTIONS = _options()
"""The options by name, as `advise` takes them."""


def question_of(state: State) -> Question:
    """The question that the page's options ask.

    Raises DsAdviseError for options that are unknown, impossible or contradictory, and for a pasted text that is no
    model's configuration.
    """
    options = {name: text for name, text in state.items() if name not in ("model", "config") and text}
    if options.get("gpus", "auto") == "auto":
        raise WorkloadError(
            "the page cannot see this machine's GPUs", fix="name them, such as 2x24GB, 8xA100-80GB or 4x8xH100"
        )
    return ask(model_of(state), **{name.replace("-", "_"): _value(name, text) for name, text in options.items()})


def model_of(state: State) -> ModelShape:
    """The catalogue's model, or that of the pasted configuration.

    Raises DsAdviseError where there is no such model, and for a text that is no model's configuration.
    """
    if state.get("config"):
        return shape_from_config(pasted_object(state["config"]), name=PASTED, source="the pasted config.json")
    name = state.get("model", "").strip()
    if not name:
        raise UnknownModelError("no model is named", fix="choose one, or paste its config.json")
    try:
        return catalogue.find(name)
    except UnknownModelError as error:
        if error.fix.startswith("give one of these"):  # not in the catalogue; an ambiguous name has a fix of its own
            fix = "choose one of these, or paste its config.json"
            raise UnknownModelError(error.what, why=error.why, fix=fix) from None
        raise


def pasted_object(text: str) -> dict[str, Any]:
    """A pasted model configuration. Raises ModelConfigError for a text that is no JSON object."""
    if len(text) > _LONGEST_CONFIG:
        raise ModelConfigError("the pasted text is longer than any config.json", fix="paste a model's config.json")
    fix = "paste the whole file, from the first { to the last }"
    return parse_json_object(text, name="the pasted text", error=ModelConfigError, fix=fix)


def command_of(state: State) -> str:
    """The same question as a command line."""
    words = ["ds-advise", PASTED if state.get("config") else state.get("model", "").strip()]
    for name, text in state.items():
        if name not in ("model", "config") and text:
            words += [f"--{name}"] if name in OPTIONS and OPTIONS[name].kind == "switch" else [f"--{name}", text]
    return shlex.join(words)


def options_in(flags: str) -> dict[str, str]:
    """The options that a change names, as the page holds them: `--gpus 4x32GB --ram 2TB`; a drive has some folder."""
    found: dict[str, str] = {}
    for word in shlex.split(flags):
        if word.startswith("--"):
            name = word.removeprefix("--")
            found[name] = "yes"
        else:
            found[name] = word.replace("PATH:", "/nvme:")
    return found


def _value(name: str, text: str) -> Any:
    option = OPTIONS.get(name)
    if option is None:
        raise DsAdviseError(
            f"the page has no option {name[:40]!r}", fix="open the page without what stands after the #"
        )
    if len(text) > _LONGEST_TEXT:
        raise WorkloadError(f"{name} is a text of {len(text):,} characters", fix="shorten it")
    if option.words and text not in option.words:
        raise WorkloadError(f"{text!r} is no {name}", fix=f"choose one of {', '.join(filter(None, option.words))}")
    if option.kind == "switch":
        return True
    if option.kind == "count":
        return text if text == "max" and name in _MAY_BE_MAX else _count(name, text)
    if option.kind == "number":
        try:
            return float(text)
        except ValueError:
            raise WorkloadError(f"{text!r} is no number", fix=f"give {name} a number, such as 0.1") from None
    return text


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise WorkloadError(f"{text!r} is not a whole number from 1 to 999999999", fix=f"give {name} such a number")
    return int(text)
