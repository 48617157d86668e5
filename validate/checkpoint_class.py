"""The tensors of a model's class in transformers, and those of them that the files of a folder lack.

`from_pretrained` initializes a tensor that its files lack at random, and only logs it. Its own loading on torch's meta
device tells which they are, whatever names it converts (transformers 5.24 modeling_utils.py `from_pretrained`).
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_layout import SavedStates


@dataclass(frozen=True, kw_only=True)
class ClassComparison:
    """The tensors of a folder's safetensors or states, compared with those of the class that its config.json names."""

    name: str
    """The class; "" if config.json names none."""
    missing: tuple[str, ...] = ()
    """Tensors of the class that the files lack."""
    reshaped: tuple[str, ...] = ()
    """Tensors that have another shape in the files."""
    not_compared: str = ""
    """Why they were not compared; "" if they were."""

    @property
    def is_loaded(self) -> bool:
        """Whether a load takes every tensor from the files, as far as it was compared."""
        return not self.missing and not self.reshaped


def compare_with_class(folder: Path) -> ClassComparison:
    """Compare the names and shapes of a folder's tensors with those of the model's class. No memory is allocated for
    weights, and no code of the model is run."""
    config, name, obstacle = _read_config(folder)
    if obstacle:
        return ClassComparison(name=name, not_compared=obstacle)
    kind = _class(config)
    from transformers.utils.logging import get_verbosity, set_verbosity

    verbosity = get_verbosity()
    set_verbosity(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            _, found = kind.from_pretrained(
                folder,
                device_map="meta",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
            )
    except Exception as error:  # transformers raises any: for an unknown quantization, a value of config.json
        return ClassComparison(name=name, not_compared=_stopped(error))
    finally:
        set_verbosity(verbosity)
    reshaped = {each if isinstance(each, str) else each[0] for each in found["mismatched_keys"]}
    return ClassComparison(name=name, missing=tuple(sorted(found["missing_keys"])), reshaped=tuple(sorted(reshaped)))


def compare_states_with_class(folder: Path, saved: SavedStates) -> ClassComparison:
    """Compare the names and shapes of the parameters in the states of ZeRO with those of the model's class, which an
    export needs. No memory is allocated for weights, and no code of the model is run."""
    config, name, obstacle = _read_config(folder)
    if obstacle:
        return ClassComparison(name=name, not_compared=obstacle)
    try:
        own = own_tensors(config)
    except Exception as error:  # as of `from_pretrained`
        return ClassComparison(name=name, not_compared=_stopped(error))
    assert own is not None, "transformers has the class"
    missing = own.keys() - saved.shapes.keys() - saved.other_names
    reshaped = {each for each, shape in own.items() if saved.shapes.get(each, shape) != shape}
    return ClassComparison(name=name, missing=tuple(sorted(missing)), reshaped=tuple(sorted(reshaped)))


def _read_config(folder: Path) -> tuple[dict[str, Any], str, str]:
    """(the folder's config.json, the class that it names, why there is no comparison with it or "")."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        name = _class_name(config)
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}, "", "config.json cannot be read"
    if not name:
        return config, "", "config.json names no class"
    try:
        return config, name, "" if _class(config) is not None else f"transformers has no class {name}"
    except ImportError:
        return config, name, "transformers is not installed"


def _stopped(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")[:200]
    return f"transformers stopped: {first or type(error).__name__}"


def own_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """Shapes of the tensors of the model's class, without aliases of tied weights; None if transformers has no such
    class."""
    kind = _class(config)
    if kind is None:
        return None
    import torch
    import transformers

    with torch.device("meta"):
        model = kind(transformers.AutoConfig.for_model(**config))
    aliases = set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in aliases}


def _class_name(config: Mapping[str, Any]) -> str:
    return str(next(iter(config.get("architectures") or ()), ""))


def _class(config: Mapping[str, Any]) -> Any:
    """The class of transformers that a configuration names; None for a foreign one. Raises ImportError."""
    import transformers

    kind = getattr(transformers, _class_name(config), None)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    return kind if is_model and "auto_map" not in config else None
