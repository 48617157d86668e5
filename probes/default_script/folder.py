"""The folder in which a default script runs: the model's configuration, a tokenizer and DeepSpeed's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..run import Run, isolated_config
from .words import CONFIG_FILE, script_of

_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def write_folder(run: Run, folder: Path) -> None:
    """Write what `command_words` names: `config.json` of a transformers model, DeepSpeed's configuration, and for TRL,
    which tokenizes its rows, a tokenizer with as many tokens as the model."""
    if run.description is not None:
        (folder / "config.json").write_text(json.dumps(run.description))
        if script_of(run).name == "objective.py":
            write_tokenizer(folder, run.description)
    (folder / CONFIG_FILE).write_text(json.dumps(script_config(run, str(folder))))


def script_config(run: Run, folder: str) -> dict[str, Any]:
    """The configuration without side effects; the Trainer fills in absent batch sizes."""
    config = isolated_config(run.config, folder)
    if not run.workload.uses_trainer or isinstance(run.model, str):
        return config
    return dict.fromkeys(_BATCH_KEYS, "auto") | config


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
