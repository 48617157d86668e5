"""Recordings of catalogue models whose type has no row, so that they are answered without torch.

`benchmarks.shipped_recordings` makes one file for each type with `probes.model_recorder`. Models whose layers run the
same operations share one tree: `ModelShape` as JSON, where a value that differs between them is `{"each": [...]}`, with
one value for each model.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from ..json_form import from_json
from .model_shape import ModelShape

FOLDER = Path(__file__).parents[1] / "data" / "recorded"


@cache
def recording(model_type: str, hub_id: str) -> ModelShape:
    """Return the recording of a catalogue entry whose type has no row."""
    models, tree = next((models, tree) for models, tree in _groups(model_type) if hub_id in models)
    return from_json(ModelShape, _select_model(tree, models.index(hub_id)))


@cache
def _groups(model_type: str) -> list[tuple[list[str], Any]]:
    groups: list[tuple[list[str], Any]] = json.loads(gzip.decompress((FOLDER / f"{model_type}.json.gz").read_bytes()))
    return groups


def _select_model(tree: Any, index: int) -> Any:
    if isinstance(tree, list):
        return [_select_model(each, index) for each in tree]
    if isinstance(tree, dict):
        return (
            tree["each"][index] if "each" in tree else {key: _select_model(each, index) for key, each in tree.items()}
        )
    return tree
