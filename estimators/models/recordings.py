"""Recordings of catalogue models whose type has no row, so that they are answered without torch.

`benchmarks.shipped_recordings` makes one file for each type with `probes.model_recorder`. Models whose layers run the
same operations share one tree: `ModelShape` as JSON, where a value that differs between them is `{"each": [...]}`, with
one value for each model.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
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
    """Return the content of a type's file."""
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


def recording_groups(shapes: Mapping[str, Any]) -> list[tuple[list[str], Any]]:
    """Return the content of a file, from the shapes as JSON by hub id."""
    groups: dict[str, list[str]] = {}
    for hub_id, shape in shapes.items():
        groups.setdefault(repr(_structure(shape)), []).append(hub_id)
    return [(models, _merge_shapes([shapes[hub_id] for hub_id in models])) for models in groups.values()]


def _structure(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _structure(each) for key, each in value.items()}
    return [_structure(each) for each in value] if isinstance(value, list) else None


def _merge_shapes(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(value == first for value in values):
        return first
    if isinstance(first, list):
        return [_merge_shapes(each) for each in zip(*values, strict=True)]
    if isinstance(first, dict):
        return {key: _merge_shapes([value[key] for value in values]) for key in first}
    return {"each": list(values)}
