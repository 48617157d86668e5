"""Whether a model was trained in bf16, whose range fp16 does not have: 6e4 instead of 3e38."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .model_shape import ModelShape

_DATA = Path(__file__).parents[1] / "data" / "bf16_models.csv"

_BF16 = "bfloat16"


def published_dtype(config: Mapping[str, Any]) -> str:
    """Return the type of the published weights by a `config.json`; "" if it does not state one. transformers 5 writes
    `dtype`, earlier versions `torch_dtype`; a model of several parts may state it for the text model alone."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return str(part[key]).removeprefix("torch.")
    return ""


def trained_in_bf16(model: ModelShape) -> bool:
    """Return whether a model is known to be trained in bf16: by its `config.json`, or by a source for its family."""
    of_family = (names for model_type, names in _families() if model_type == model.model_type)
    return model.dtype == _BF16 or any(model.name.startswith(names) for names in of_family)


@cache
def _families() -> tuple[tuple[str, str], ...]:
    """Return pairs of a model type and how the names begin for which its source holds; "" for all."""
    with _DATA.open(encoding="utf-8", newline="") as file:
        return tuple((row["model_type"], row["names"]) for row in csv.DictReader(file))
