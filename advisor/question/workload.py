"""From the options of a question to a `Workload`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from ...ds_configs.read import optimizer_in, precision_in
from ...estimators.errors import WorkloadError
from ...estimators.hardware.cluster import Gpu
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import DEFAULT_SEQ_LEN, OptimizerStep, Precision, Software, Workload
from .options import OPTIONS, with_defaults

_SHARED = {field.name for field in fields(Workload)} & OPTIONS.keys() - {"sequence_parallel_size"}
"""Options that are fields of a workload; the sequence-parallel size is the plan's."""

_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_VERSION = re.compile(r"(\d{1,3})(\.(\d{1,3})(\..*)?)?")


def workload_of(options: Mapping[str, Any], model: ModelShape | None, gpu: Gpu | None) -> Workload:
    """The workload of a model on a GPU.

    options: of `QuestionOptions`.
    model: None for a module of the user.
    gpu: None if unknown; it is assumed to support bf16.

    Raises WorkloadError for unknown, impossible or contradictory options.
    """
    given = with_defaults(options)
    seq_len = sequence_length(model, given["seq_len"])  # type: ignore[arg-type]  # "max" has been resolved
    dropout = _dropout(given["lora_dropout"])
    adapted = given["method"] != "full"
    saved = _names("--modules-to-save", given["modules_to_save"], "leave it out") if adapted else None
    converted: dict[str, Any] = {
        "lora_dropout": dropout if adapted else 0.0,
        "lora_targets": _names("--lora-targets", given["lora_targets"], "leave it out for all linear layers"),
        "modules_to_save": saved or (),
        "seq_len": seq_len,
        "document_len": _document_length(given["document_len"], seq_len),
        "precision": resolve_precision(given["precision"], gpu),
        "optimizer": _optimizer(given["optimizer"]),
        "software": software_of(given["software"]),
        "global_batch_size": given["global_batch"],
    }
    return Workload(**{name: given[name] for name in _SHARED} | converted)  # type: ignore[literal-required]


def configured_workload(
    config: Mapping[str, Any], options: Mapping[str, Any], model: ModelShape | None, gpu: Gpu | None
) -> Workload:
    """The workload of a ds_config; its precision and optimizer take precedence over the options.

    The optimizer keeps its name in the file, because the closed forms do not know every class of torch.optim.
    """
    precision = precision_in(config)
    if precision != "auto":
        options = {**options, "precision": "fp32"}  # no GPU lacks it
    workload = workload_of(options, model, gpu)
    return replace(
        workload,
        precision=workload.precision if precision == "auto" else precision,
        optimizer=optimizer_in(config) or workload.optimizer,
    )


def sequence_length(model: ModelShape | None, seq_len: int | None) -> int:
    """The sequence length, with the model's default for None. Raises WorkloadError if the model does not support it."""
    if model is not None and model.fixed_len is not None:
        if seq_len not in (None, model.fixed_len):
            raise WorkloadError(
                f"every sample of {model.name} has {model.fixed_len} tokens",
                why="its images have one size",
                fix="leave --seq-len out",
            )
        return model.fixed_len
    longest = model.max_positions if model is not None and model.has_learned_positions else None
    if seq_len is None:
        return min(DEFAULT_SEQ_LEN, longest) if longest else DEFAULT_SEQ_LEN
    if model is not None and longest is not None and seq_len > longest:
        raise WorkloadError(
            f"{model.name} has {longest} learned positions, fewer than a sequence of {seq_len}",
            why="the position embedding has no row for the tokens beyond",
            fix=f"pass --seq-len {longest} or less",
        )
    return seq_len


def resolve_precision(precision: str, gpu: Gpu | None) -> Precision:
    """The precision, with `auto` resolved. Raises WorkloadError if the GPU does not support it."""
    if precision == "auto":
        return "bf16" if gpu is None or gpu.has_bf16 else "fp16"
    if precision == "bf16" and gpu is not None and not gpu.has_bf16:
        raise WorkloadError(
            f"the {gpu.name} has no bf16 units",
            why="bf16 is emulated there, several times slower than fp16",
            fix="pass --precision fp16 (or auto)",
        )
    return precision  # type: ignore[return-value]  # one of the option's choices


def software_of(software: str | Mapping[str, Any] | None) -> Software:
    """The software that names and values describe; in a text a name alone means yes.

    Raises WorkloadError for an unknown name or value.
    """
    pairs = named_values(software) if isinstance(software, str) else software or {}
    known = [field.name for field in fields(Software)]
    described = {}
    for name, value in pairs.items():
        key = str(name).replace("-", "_").lower()
        if key not in known:
            listed = ", ".join(field.replace("_", "-") for field in known)
            raise WorkloadError(f"--software has nothing called {name[:40]!r}", fix=f"name one of {listed}")
        described[key] = _software_value(key, value)
    return Software(**described)


def _software_value(name: str, value: Any) -> Any:
    if name in ("transformers", "deepspeed", "torch"):
        version = _VERSION.fullmatch(".".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
        if version is None:
            raise WorkloadError(
                f"{str(value)[:40]!r} is no version of {name}", fix=f"pass a version such as --software {name}=4.45"
            )
        return int(version[1]), int(version[3] or 0)
    if name == "optimizer_step":
        if value not in get_args(OptimizerStep):
            listed = ", ".join(get_args(OptimizerStep))
            raise WorkloadError(f"unknown optimizer-step {str(value)[:40]!r}", fix=f"pass one of {listed}")
        return value
    return yes_or_no(f"--software {name.replace('_', '-')}", value)


def named_values(text: str) -> dict[str, str]:
    """The values by name of `a=1,b`; a name alone means yes."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return {name.strip(): value.strip() or "yes" for name, _, value in (word.partition("=") for word in words)}


def yes_or_no(name: str, value: object) -> bool:
    """The truth value of a bool or a word. Raises WorkloadError for any other value."""
    found = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
    if found is None:
        raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix="pass yes or no")
    return found


def _document_length(document_len: int | None, seq_len: int) -> int | None:
    if document_len is None or document_len == seq_len:
        return None
    if document_len > seq_len:
        raise WorkloadError(
            f"documents of {document_len} tokens do not fit into samples of {seq_len}",
            why="--document-len is the mean length of the documents packed into a sample",
            fix="pass a longer --seq-len, or leave --document-len out",
        )
    return document_len


def _dropout(probability: float) -> float:
    if not 0 <= probability < 1:
        raise WorkloadError(
            f"lora_dropout is {probability}",
            why="it must be from 0 to below 1",
            fix="pass a probability such as --lora-dropout 0.05",
        )
    return probability


def _names(option: str, given: str | Sequence[str] | None, fix: str) -> tuple[str, ...] | None:
    """Names in a list or separated by commas; None for none. Raises WorkloadError for a text without a name."""
    if given is None:
        return None
    listed = given.split(",") if isinstance(given, str) else given
    names = tuple(name.strip() for name in listed if name.strip())
    if not names and isinstance(given, str):
        raise WorkloadError(f"{option} names no module", fix=fix)
    return names or None


def _optimizer(name: str) -> str:
    """The key of `OPTIMIZERS`; `AdamW_8bit`, `adamw-8bit` and `adamw8bit` are one name."""

    def letters(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    key = next((known for known in OPTIMIZERS if letters(known) == letters(name)), None)
    if key is None:
        raise WorkloadError(
            f"unknown optimizer {name!r}",
            why="the memory depends on its state bytes per parameter",
            fix=f"pass one of {', '.join(sorted(OPTIMIZERS))}",
        )
    return key
