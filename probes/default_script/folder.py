"""The folder in which a default script runs: the model's configuration, a tokenizer and DeepSpeed's configuration."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.emit import GRADIENT_CLIPPING, OPTIMIZER_PARAMS
from ...estimators.plan import PLAN_FIELDS
from ..command.errors import DryRunError
from ..run import Run, isolated_config
from .words import CONFIG_FILE, run_plan, script_of

_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def write_folder(run: Run, folder: Path, *, nvme_folder: str = "") -> None:
    """Write what `command_words` names: `config.json` of a transformers model, DeepSpeed's configuration, and for TRL,
    which tokenizes its rows, a tokenizer. nvme_folder: the parent of DeepSpeed's swap folders, by default `folder`."""
    if run.description is not None:
        (folder / "config.json").write_text(json.dumps(run.description))
        if script_of(run).name == "objective.py":
            write_tokenizer(folder, run.description)
    config = isolated_config(run.config, nvme_folder or str(folder))
    config = filled_config(run, config) if script_of(run).name == "engine.py" else _with_batch_keys(config)
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def _with_batch_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer fills in batch sizes that are `auto`, not those that are absent."""
    return dict.fromkeys(_BATCH_KEYS, "auto") | dict(config)


def filled_config(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for plain DeepSpeed: with the batch sizes, and with the Trainer's values for `auto` where they
    follow from its default arguments or the hidden size.

    Another `auto` stays: DeepSpeed treats it as an absent key, or rejects it. Raises DryRunError for it under the
    Trainer or accelerate, which replace `auto` only in models with a hidden size.
    """
    filled: dict[str, Any] = copy.deepcopy(dict(config))
    plan, total = run_plan(run), filled.get("train_batch_size")
    if total == "auto":
        del filled["train_batch_size"]
    for name, requested, size in (
        ("train_micro_batch_size_per_gpu", run.micro_batch_size, plan.micro_batch_size),
        ("gradient_accumulation_steps", run.gradient_accumulation_steps, plan.gradient_accumulation_steps),
    ):
        if filled.get(name, "auto") == "auto":
            filled.pop(name, None)
            if requested is not None or not isinstance(total, int):  # otherwise DeepSpeed derives it
                filled[name] = size
    values: dict[str, Any] = {f"{name}.enabled": run.workload.precision == name for name in ("bf16", "fp16")}
    values |= {f"optimizer.params.{name}": value for name, value in OPTIMIZER_PARAMS.items()}
    values["gradient_clipping"] = GRADIENT_CLIPPING
    hidden_size = run.shape.hidden_size if run.shape is not None else 0
    for known in PLAN_FIELDS.values():
        if known.filled_from_hidden_size is not None and hidden_size:
            values[known.path] = known.filled_from_hidden_size(hidden_size)
    _fill(filled, "", values, strict=run.workload.uses_trainer)
    return filled


def _fill(node: dict[str, Any], prefix: str, values: Mapping[str, Any], *, strict: bool) -> None:
    for name, value in node.items():
        if isinstance(value, dict):
            _fill(value, f"{prefix}{name}.", values, strict=strict)
        elif value == "auto":
            if strict and prefix + name not in values:
                raise DryRunError(
                    f'nothing replaces "auto" at {prefix}{name}', phase="start", fix="write a number there"
                )
            node[name] = values.get(prefix + name, value)


def write_tokenizer(folder: Path, description: Mapping[str, Any]) -> None:
    """A tokenizer of words "0", "1", ...: as many as the model's vocabulary has, at most 1,000; a text of N words has N
    tokens."""
    text: Any = description.get("text_config") or description
    size = min(int(text.get("vocab_size", 1000)), 1000)
    vocabulary = {str(number): number for number in range(size)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"unk_token": "0", "pad_token": "0", "eos_token": "1", "bos_token": "2"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 30, **names})
    )
