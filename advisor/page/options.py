"""The page's options: those of `ds-advise MODEL`, as texts by the names that they have on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args

from ...estimators.errors import DsAdviseError, ModelConfigError, UnknownModelError, WorkloadError
from ...estimators.models import catalogue
from ...estimators.models.families import shape_from_config
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import AttentionKernel, Framework, LayerKernels, LossKernel, Method, Precision, Quantization
from ..ask import ask
from ..question.json_file import parse_json_object
from ..question.question import CheckpointingChoice, Question, Risk
from ..question.workload import WorkloadOptions

CHOICES: Mapping[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "quantization": get_args(Quantization),
    "precision": ("auto", *get_args(Precision)),
    "gradient-checkpointing": get_args(CheckpointingChoice),
    "attention": get_args(AttentionKernel),
    "loss": get_args(LossKernel),
    "kernels": get_args(LayerKernels),
    "risk": get_args(Risk),
    "framework": get_args(Framework),
    "optimizer": tuple(OPTIMIZERS),
}
"""Options that take one of a few words."""

DEFAULTS: Mapping[str, str] = {
    **{
        field.name.replace("_", "-"): str(field.default)
        for field in fields(WorkloadOptions)
        if field.default not in (None, MISSING)
    },
    "gradient-checkpointing": "auto",
    "risk": "safe",
}
"""What an option is that nobody names; the others are then none."""

COUNTS = frozenset(
    ("lora-rank", "seq-len", "global-batch", "micro-batch", "sequence-parallel-size", "document-len", "threads")
)
"""Options that take a whole number; `seq-len` also takes `max`."""

TEXTS = frozenset(("gpus", "ram", "nvme", "interconnect", "lora-targets", "software"))
"""Options whose text the question reads itself."""

PASTED = "./config.json"
"""A model whose `config.json` was pasted: its name, and the file that the command line reads it from."""

_LONGEST_TEXT = 200
"""Characters of an option; longer ones are no answer to anything."""

_LONGEST_CONFIG = 2**20
"""Characters of a pasted configuration of a model."""

State = Mapping[str, str]
"""`model`, `config` (a pasted `config.json`, which then is the model) and options by name; an empty text is none."""


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
    try:
        return catalogue.find(name)
    except UnknownModelError as error:
        if error.fix.startswith("give one of these"):  # not in the catalogue; an ambiguous name has a fix of its own
            raise UnknownModelError(
                error.what, why=error.why, fix="choose one of these, or paste its config.json"
            ) from None
        raise


def pasted_object(text: str) -> dict[str, Any]:
    """A pasted model configuration. Raises ModelConfigError for a text that is no JSON object."""
    if len(text) > _LONGEST_CONFIG:
        raise ModelConfigError("the pasted text is longer than any config.json", fix="paste a model's config.json")
    return parse_json_object(
        text,
        name="the pasted text",
        error=ModelConfigError,
        fix="paste the whole file, from the first { to the last }",
    )


def command_of(state: State) -> str:
    """The same question as a command line."""
    words = ["ds-advise", PASTED if state.get("config") else state.get("model", "").strip()]
    for name, text in state.items():
        if name not in ("model", "config") and text:
            words += [f"--{name}", text]
    return shlex.join(words)


def options_in(flags: str) -> dict[str, str]:
    """The options that a change names, as the page holds them: `--gpus 4x32GB --ram 2TB`; a drive has some folder."""
    words = shlex.split(flags)
    return {
        name.removeprefix("--"): value.replace("PATH:", "/nvme:")
        for name, value in zip(words[::2], words[1::2], strict=True)
    }


def _value(name: str, text: str) -> Any:
    if len(text) > _LONGEST_TEXT:
        raise WorkloadError(f"{name} is a text of {len(text):,} characters", fix="shorten it")
    if name in CHOICES:
        if text not in CHOICES[name]:
            raise WorkloadError(f"{text!r} is no {name}", fix=f"choose one of {', '.join(CHOICES[name])}")
        return text
    if name in COUNTS:
        return text if name == "seq-len" and text == "max" else _count(name, text)
    if name == "lora-dropout":
        try:
            return float(text)
        except ValueError:
            raise WorkloadError(
                f"{text!r} is no probability", fix="give lora-dropout a number from 0 to below 1"
            ) from None
    if name in TEXTS:
        return text
    raise DsAdviseError(f"the page has no option {name[:40]!r}", fix="open the page without what stands after the #")


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise WorkloadError(f"{text!r} is not a whole number from 1 to 999999999", fix=f"give {name} such a number")
    return int(text)
