"""Recordings of the catalogue's models of types without a row, as the package ships them.

    python -m benchmarks.shipped_recordings [TYPE ...] [--write]

TYPE:    only these model types; by default all without a row.
--write: write them to estimators/data/recorded. Otherwise they are compared with what is there.

1 to 3 seconds for each model. The versions of transformers and torch are those installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import FAMILIES
from ds_advise.estimators.models.recordings import FOLDER
from ds_advise.probes.model_recorder import recorded_model


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="shipped_recordings", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    recorded_model.cached = recorded_model.keep = lambda *_: None  # type: ignore[assignment]
    different = 0
    for model_type in options.types or types_without_a_row():
        made, file = recordings(model_type), FOLDER / f"{model_type}.json.gz"
        if options.write:
            FOLDER.mkdir(exist_ok=True)
            file.write_bytes(gzip.compress(json.dumps(made, separators=(",", ":")).encode(), mtime=0))
        is_same = json.loads(json.dumps(made)) == json.loads(gzip.decompress(file.read_bytes()))
        different += not is_same
        print(f"{model_type:12s} {'as shipped' if is_same else 'differs'}, {file.stat().st_size:,} bytes", flush=True)
    return min(different, 1)


def types_without_a_row() -> list[str]:
    return sorted({entry["config"]["model_type"] for entry in catalogue._entries()} - FAMILIES.keys())


def recordings(model_type: str) -> list[tuple[list[str], Any]]:
    """The content of a type's file."""
    shapes = {}
    for entry in catalogue._entries():
        if entry["config"]["model_type"] == model_type:
            shape = recorded_model.recorded_model(entry["config"], name="", source="")
            named = replace(shape, source=shape.source.removeprefix("; "))
            shapes[entry["id"]] = json.loads(json.dumps(to_json(named)))
    return recording_groups(shapes)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
