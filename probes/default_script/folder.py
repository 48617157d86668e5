"""The folder in which a default script runs: the model's configuration and DeepSpeed's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..run import Run, isolated_config
from .words import CONFIG_FILE

_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def write_folder(run: Run, folder: Path) -> None:
    """Write what `command_words` names: `config.json` of a transformers model and DeepSpeed's configuration."""
    if run.description is not None:
        (folder / "config.json").write_text(json.dumps(run.description))
    (folder / CONFIG_FILE).write_text(json.dumps(script_config(run, str(folder))))


def script_config(run: Run, folder: str) -> dict[str, Any]:
    """The configuration without side effects; the Trainer fills in absent batch sizes."""
    config = isolated_config(run.config, folder)
    if not run.workload.uses_trainer or isinstance(run.model, str):
        return config
    return dict.fromkeys(_BATCH_KEYS, "auto") | config
