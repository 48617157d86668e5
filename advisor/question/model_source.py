"""From a model's name to its `ModelShape`: a local folder, the catalogue, or the Hugging Face hub.

Only a `config.json` is read, or in a folder without one the name of the model that its adapters belong to. No weights,
no code from a model's folder, no pickle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from ...ds_configs.files import read_json_object
from ...estimators.errors import ModelConfigError, UnknownModelError
from ...estimators.models import catalogue
from ...estimators.models.families import UnknownModelTypeError, shape_from_config
from ...estimators.models.model_shape import ModelShape
from ..text.output import to_stderr
from .own_module import is_own_module

_HUB_LIMIT_S, _PATIENCE_S = 20.0, 2.0
"""Time for a configuration from the hub, some kB; time after which it is printed what is waited for."""

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
    return _ConfigFile(_from_hub(name, offline=offline), f"config.json of {name} on the hub")


def _base_of_adapters(folder: Path) -> str:
    """The model of the adapters in a folder, as peft saves them; "" if there are none."""
    try:
        described = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    base = described.get("base_model_name_or_path") if isinstance(described, dict) else None
    return base if isinstance(base, str) else ""


def _from_hub(hub_id: str, *, offline: bool) -> Path:
    """The path of the model's `config.json` in the hub's cache, downloaded unless offline."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    def unknown(what: str, fix: str) -> UnknownModelError:
        near = ", ".join(catalogue.nearest(hub_id))
        return UnknownModelError(f"{hub_id}: {what}", why=f"nearest names: {near}", fix=fix)

    otherwise = "give a catalogue name, or a folder with the model's config.json"
    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:
        raise unknown("not a valid hub id", otherwise) from None
    if isinstance(cached, str):
        return Path(cached)
    if offline:
        raise unknown(
            "neither in the catalogue nor in the hub's cache, and --offline forbids the network",
            f"leave --offline out, or {otherwise}",
        )

    def download() -> Path:
        # First, because it fails at once where `hf_hub_download` retries for half a minute.
        get_hf_file_metadata(hf_hub_url(hub_id, "config.json"), timeout=10)
        return Path(hf_hub_download(hub_id, "config.json"))

    try:
        return _in_time(download, f"asking the hub for the config.json of {hub_id} ...")
    except GatedRepoError:
        raise unknown(
            "the hub shows this model only to users who accepted its terms",
            "accept them on its page and log in with `hf auth login`, or set HF_TOKEN",
        ) from None
    except RepositoryNotFoundError:
        raise unknown("not on the hub, or private and not visible to the token", otherwise) from None
    except EntryNotFoundError:
        raise unknown("its repository on the hub has no config.json", otherwise) from None
    except TimeoutError:
        raise unknown(
            f"not in the catalogue, and the hub did not send its config.json within {_HUB_LIMIT_S:.0f} s",
            f"{otherwise}; --offline does not use the hub",
        ) from None
    except Exception as error:  # the HTTP library's errors differ between versions of huggingface_hub
        raise unknown(
            f"not in the catalogue, and the hub cannot be reached ({type(error).__name__})",
            f"{otherwise}; --offline does not use the hub",
        ) from error


def _in_time(download: Callable[[], Path], waiting: str) -> Path:
    """The result of the download within `_HUB_LIMIT_S`: the limit of the HTTP library starts anew with every byte.

    waiting: what is printed on stderr once it takes longer than `_PATIENCE_S`. Raises what `download` raises, or
    TimeoutError.
    """
    done: SimpleQueue[Path | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            done.put(download())
        except BaseException as error:
            done.put(error)

    Thread(target=run, daemon=True).start()  # one that hangs does not keep the process from ending
    try:
        result = done.get(timeout=_PATIENCE_S)
    except Empty:
        to_stderr(waiting)
        try:
            result = done.get(timeout=_HUB_LIMIT_S - _PATIENCE_S)
        except Empty:
            raise TimeoutError from None
    if isinstance(result, BaseException):
        raise result
    return result


def _read(file: Path) -> dict[str, Any]:
    return read_json_object(
        file, error=ModelConfigError, what="a model's config.json", fix="give a config.json as transformers writes it"
    )
