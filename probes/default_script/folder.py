"""The folder in which a default script runs: the model's configuration and DeepSpeed's."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...estimators.plan import PLAN_FIELDS
from ..run import Run, isolated_config
from .words import CONFIG_FILE, run_plan, script_of

_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def write_folder(run: Run, folder: Path) -> None:
    """Write what `command_words` names: `config.json` of a transformers model and DeepSpeed's configuration."""
    if run.description is not None:
        (folder / "config.json").write_text(json.dumps(run.description))
    config = isolated_config(run.config, str(folder))
    config = filled_config(run, config) if script_of(run).name == "engine.py" else _with_batch_keys(config)
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def _with_batch_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer fills in batch sizes that are `auto`, not those that are absent."""
    return dict.fromkeys(_BATCH_KEYS, "auto") | dict(config)


def filled_config(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for plain DeepSpeed: with the batch sizes, and with the values for `auto` that follow from the
    hidden size, as the Trainer has them. Another `auto` stays: DeepSpeed treats it as an absent key, or rejects it."""
    filled: dict[str, Any] = copy.deepcopy(dict(config))
    plan, total = run_plan(run), filled.get("train_batch_size")
    if total == "auto":
        del filled["train_batch_size"]
    sizes = (
        (run.micro_batch_size, plan.micro_batch_size),
        (run.gradient_accumulation_steps, plan.gradient_accumulation_steps),
    )
    for name, (requested, size) in zip(_BATCH_KEYS, sizes, strict=True):
        if filled.get(name, "auto") == "auto":
            filled.pop(name, None)
            if requested is not None or not isinstance(total, int):  # otherwise DeepSpeed derives it
                filled[name] = size
    hidden_size = run.shape.hidden_size if run.shape is not None else 0
    values: dict[str, Any] = {"bf16.enabled": run.workload.precision == "bf16"}
    values["fp16.enabled"] = run.workload.precision == "fp16"
    for known in PLAN_FIELDS.values():
        if known.filled_from_hidden_size is not None and hidden_size:
            values[known.path] = known.filled_from_hidden_size(hidden_size)
    for path, value in values.items():
        block, _, name = path.rpartition(".")
        if isinstance(filled.get(block), dict) and filled[block].get(name) == "auto":
            filled[block][name] = value
    return filled
