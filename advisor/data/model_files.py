"""A model's files on this machine: the tokenizer before the data are read, the weights before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...estimators.errors import ModelConfigError, UnknownModelError
from ...estimators.models.model_shape import ModelShape

_WEIGHTS = "*.safetensors"
_DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.txt")
"""Configuration and tokenizer; never code (*.py) or pickles (*.bin, *.pt)."""


def load_tokenizer(name: str, shape: ModelShape, *, offline: bool) -> Any:
    """The model's tokenizer. Raises ModelConfigError where it has none that can be read without running its code."""
    from transformers import AutoTokenizer

    folder = _folder(name, shape, _DESCRIPTIONS, offline=offline)
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as problem:  # of many kinds: missing and broken files, code that would have to be trusted
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise ModelConfigError(
            f"{name}: no tokenizer that can be read ({lines[0][:150]})",
            why="text must become tokens, and code from the model's folder is not executed",
            fix="put tokenizer.json and tokenizer_config.json beside config.json",
        ) from problem


def weights_folder(name: str, shape: ModelShape, *, offline: bool) -> Path:
    """The folder with configuration and safetensors. Raises ModelConfigError where it has no safetensors."""
    folder = _folder(name, shape, (*_DESCRIPTIONS, _WEIGHTS), offline=offline)
    if not any(folder.glob(_WEIGHTS)):
        raise ModelConfigError(
            f"{name}: no safetensors in {folder}",
            why="training starts from weights, and pickled ones can run code when read",
            fix="give the folder that holds model.safetensors, or convert: model.save_pretrained(folder)",
        )
    return folder


def _folder(name: str, shape: ModelShape, patterns: tuple[str, ...], *, offline: bool) -> Path:
    """The user's folder, or the hub's cache, filled if it may be."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        return path.resolve().parent
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(shape.name, allow_patterns=list(patterns), local_files_only=offline))
    except Exception as problem:  # of the network, the hub, the disk
        raise UnknownModelError(
            f"{shape.name}: cannot be fetched from the hub ({type(problem).__name__})",
            why="training needs its tokenizer and weights",
            fix="give a folder that holds them" if not offline else "leave --offline out, or give a folder",
        ) from problem
