"""What a DeepSpeed version knows, put together from its classes, its look-ups and its optimizers."""

from __future__ import annotations

from pathlib import Path

from .classes import _CLASS_FILES, class_blocks
from .lookups import _LOOKUP_FILES, looked_up_keys, removed_keys
from .facts import ConfigBlock, DeepSpeedFacts
from .parsed import ParsedSources
from .signatures import deepspeed_optimizers, signatures, torch_optimizers, torch_schedulers

_SCHEDULERS = "runtime/lr_schedules.py"

_OPEN = (
    "autotuning.model_info",
    "data_efficiency",
    "pipeline",
    "expert_parallel",
    "datastates_ckpt",
    "optimizer.params",
    "scheduler.params",
    "autotuning.arg_mappings",
    "elasticity",
    "nebula",
    "compression_training",
    "curriculum_learning",
)
"""Blocks whose keys are somebody else's: a class's arguments, or nested further than is read here."""


def read_facts(folder: Path, version: str, torch_folder: Path | None = None) -> DeepSpeedFacts:
    """The facts of the version whose sources are in `folder`, and the optimizers of the torch whose sources are in
    `torch_folder`. A file that a version lacks contributes nothing."""
    sources = ParsedSources(folder, _CLASS_FILES | _LOOKUP_FILES | {_SCHEDULERS})
    blocks = class_blocks(sources)
    keys = looked_up_keys(sources)
    keys[""] |= {path for path in blocks if "." not in path}
    for path in (*keys, *blocks):
        owner, _, name = path.rpartition(".")
        if name and owner not in blocks:
            keys.setdefault(owner, set()).add(name)
    removed = removed_keys(sources)
    for path, names in keys.items():
        if path not in blocks and not _is_open(path):
            left = sorted(name for name in names if (f"{path}.{name}" if path else name) not in removed)
            blocks[path] = ConfigBlock(path=path, strict=False, keys=tuple(left))
    return DeepSpeedFacts(
        version=version,
        blocks=tuple(blocks.values()),
        removed=removed,
        optimizers=tuple(sources.constants.get("DEEPSPEED_OPTIMIZERS", ())),
        optimizer_classes=deepspeed_optimizers(folder),
        schedulers=signatures(folder / _SCHEDULERS),
        torch_optimizers=torch_optimizers(torch_folder) if torch_folder else {},
        torch_schedulers=torch_schedulers(torch_folder) if torch_folder else {},
    )


def _is_open(path: str) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in _OPEN)
