"""From a model's name to its `ModelShape`: a local folder, the catalogue, or the Hugging Face hub.

Only a `config.json` is read, or in a folder without one the name of the model that its adapters belong to. No weights,
no code from a model's folder, no pickle.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ...ds_configs.files import read_json_object
from ...estimators.errors import ModelConfigError, UnknownModelError
from ...estimators.models import catalogue
from ...estimators.models.families import UnknownModelTypeError, shape_from_config
from ...estimators.models.model_shape import ModelShape
from .own_module import is_own_module

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load_model(name_or_path: str, *, offline: bool = False) -> ModelShape:
    """The model of a name, a folder, a `config.json` or a hub id.

    Tried in this order: a folder with a `config.json`, or such a file itself; the catalogue; the hub, its local cache
    first. `offline` forbids the network, not the cache. Parameters are counted from the configuration, not the weights.

    Raises UnknownModelError if there is no such model or the hub cannot be reached, and ModelConfigError for an invalid
    `config.json`.
    """
    found = _resolve(name_or_path, offline=offline)
    if isinstance(found, ModelShape):
        return found
    return shape_of(_read(found.file), name=name_or_path.strip(), source=found.source)


def shape_of(config: dict[str, Any], *, name: str, source: str = "") -> ModelShape:
    """The shape of the model of a `config.json`, by the row of its type, else recorded from transformers' code. Raises
    ModelConfigError."""
    try:
        return shape_from_config(config, name=name, source=source)
    except UnknownModelTypeError:
        # Here: what it imports takes milliseconds that most answers do not need.
        from ...probes.model_recorder.recorded_model import recorded_model

        return recorded_model(config, name=name, source=source)


def load_config(name_or_path: str, *, offline: bool = False) -> dict[str, Any]:
    """The `config.json` of `load_model(name_or_path)`; the same errors."""
    found = _resolve(name_or_path, offline=offline)
    return catalogue.config(found.name) if isinstance(found, ModelShape) else _read(found.file)


class _ConfigFile(NamedTuple):
    file: Path
    source: str


def _resolve(name_or_path: str, *, offline: bool) -> ModelShape | _ConfigFile:
    name = name_or_path.strip()
    if is_own_module(name):
        raise UnknownModelError(
            f"{name[:80]} is a module of your own, which this command does not record",
            fix=f"ask ds-advise {name[:80]} --input-shape 3,32,32, or ds-advise dry-run",
        )
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
        file = path / "config.json" if is_folder else path
        if name and file.is_file():
            return _ConfigFile(file, str(file))
    except (OSError, RuntimeError, ValueError):  # too long for a path, the home of an unknown user, a null byte
        is_folder = False
    can_only_be_a_path = name.startswith(("/", "./", "../", "~")) or name in (".", "..")
    if can_only_be_a_path or name.endswith(".json") or name.count("/") > 1:
        base = _base_of_adapters(path) if is_folder else ""
        raise UnknownModelError(
            f"{name}: {'no config.json in this folder' if is_folder else 'no such file or folder'}",
            why=f"it holds adapters of {base}" if base else "",
            fix=f"give {base}, with --method lora to train such adapters"
            if base
            else "give the folder that holds the model's config.json, a catalogue name, or a hub id",
        )
    try:
        return catalogue.find(name)
    except UnknownModelError:
        if not _HUB_ID.fullmatch(name):
            raise
    from .hub import config_from_hub  # here: its imports take milliseconds that most answers do not need

    return _ConfigFile(config_from_hub(name, offline=offline), f"config.json of {name} on the hub")


def _base_of_adapters(folder: Path) -> str:
    """The model of the adapters in a folder, as peft saves them; "" if there are none."""
    try:
        described = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    base = described.get("base_model_name_or_path") if isinstance(described, dict) else None
    return base if isinstance(base, str) else ""


def _read(file: Path) -> dict[str, Any]:
    return read_json_object(
        file, error=ModelConfigError, what="a model's config.json", fix="give a config.json as transformers writes it"
    )
