"""The folder in which a default script runs: the model's configuration and DeepSpeed's."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.emit import GRADIENT_CLIPPING, OPTIMIZER_PARAMS
from ...estimators.plan import PLAN_FIELDS
from ..run import Run, isolated_config
from ..run_errors import DryRunError
from .words import CONFIG_FILE, run_plan, script_of

_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def write_folder(run: Run, folder: Path, *, nvme_folder: str = "") -> None:
    """Write what `command_words` names: `config.json` of a transformers model and DeepSpeed's configuration.

    nvme_folder: the parent of DeepSpeed's swap folders, by default `folder`."""
    if run.description is not None:
        (folder / "config.json").write_text(json.dumps(run.description))
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
