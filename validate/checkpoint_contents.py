"""The contents of a DeepSpeed checkpoint, determined from file names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..estimators.errors import ConfigFileError
from .checkpoint import SHARDED_MODEL_STATES, file_size, ranks_in, resumer
from .checkpoint_layout import (
    MODEL_STATES,
    OPTIMIZER_STATES,
    CheckpointLayout,
    SavedStates,
    checkpoint_layout,
    saved_states,
)
from .checkpoint_trainer import TRAINER_STATE, ResumedBy, is_fsdp, is_optimizer, missing_to_load, weights_in


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """Contents of a checkpoint, determined from the names and sizes of its files."""

    folder: str
    tag: str
    """The folder of DeepSpeed's states; "" if there is none."""
    latest: str
    """The tag that `latest` names, or for a universal checkpoint `latest_universal`; "" without that file."""
    is_tag_named: bool
    """Whether the question named the folder of states, and not the one of `latest`."""
    is_universal: bool
    """Whether `ds_to_universal` wrote it, for any number of ranks."""
    resumed_by: ResumedBy
    """What resumes from it; "" for a model alone."""
    is_fsdp: bool
    """Whether FSDP saved its weights, which only FSDP loads."""
    step: int | None
    stage: Literal["none", "0", "1", "2", "1 or 2", "3"]
    """The ZeRO stage, which the optimizer states say; "1 or 2" if they do not; "none" if there are no states of
    DeepSpeed."""
    version: str
    """The DeepSpeed version that saved it; "" if it is unknown."""
    parameters: int | None
    """Number of the parameters under ZeRO; None if it is unknown, as without ZeRO and under tensor parallelism."""
    has_adapters: bool
    """Whether parameters of the states are peft's adapters."""
    converted: str
    """The folder of universal states that were converted from these; "" without."""
    ranks: int
    """Number of data-parallel ranks; 0 if the states are not those of ranks."""
    model_ranks: int
    """Number of tensor-parallel ranks."""
    size_bytes: int
    optimizer_bytes: int
    weights_bytes: int
    """Files of model states and of `weights`."""
    weights: tuple[str, ...]
    """Files of weights for `from_pretrained`: safetensors, or without them `pytorch_model.bin`; empty if ZeRO-3 or
    FSDP saved the weights as shards."""
    missing_to_load: tuple[str, ...]
    """Files that `from_pretrained` needs for `weights`, and that are missing."""

    @property
    def joins_partitions(self) -> bool:
        """Whether the states are those of stage 1 or 2, which load each other's."""
        return self.stage in ("1", "2", "1 or 2")

    @property
    def has_zero_states(self) -> bool:
        return self.joins_partitions or self.stage == "3"

    @property
    def is_model(self) -> bool:
        """Whether the folder holds a model alone, without states of a training."""
        return not self.resumed_by

    @property
    def loads_weights(self) -> bool:
        """Whether the files of `weights` are those that `from_pretrained` looks for."""
        return bool(self.weights) and not self.missing_to_load

    @property
    def can_export(self) -> bool:
        """Whether `write_model` assembles the weights of the states, which no file for `from_pretrained` holds."""
        is_merged = self.is_universal or self.resumed_by != "deepspeed" or self.stage == "none"
        return not (self.weights or is_merged or self.has_adapters) and self.model_ranks == 1

    @property
    def is_adapter(self) -> bool:
        """Whether its weights are those of an adapter, as peft saves them."""
        return bool(self.weights) and all(name.startswith("adapter_model") for name in self.weights)


def read_contents(folder: Path) -> CheckpointContents:
    """The contents of a checkpoint, whose folder of `latest` or folder of states is given. Of the files, only a
    description in the model states is read. Raises ConfigFileError if it is not a checkpoint."""
    layout = checkpoint_layout(folder)
    names = {name: size for name in layout.names() if (size := _size_bytes(layout.folder / name))}
    saved, tag = saved_states(layout), layout.tag
    states = [name for name in names if OPTIMIZER_STATES.search(name)]
    models = [match for name in names if (match := MODEL_STATES.search(Path(name).name))]
    resumed = resumer(layout, names)
    sharded = any(match[1] for match in models)
    weights = weights_in(names)
    if not resumed and not weights:
        fix = "name the folder that holds `latest`, safetensors or pytorch_model.bin"
        raise ConfigFileError(f"{folder} holds no checkpoint", fix=fix)
    has_states = bool(states) or saved.has_shards or layout.is_universal
    kind: Literal["none", "0", "1", "2", "1 or 2", "3"] = "3" if sharded else "1 or 2"
    if saved.stage in (1, 2, 3):
        kind = ("1", "2", "3")[saved.stage - 1]
    model_ranks = len({match[3] for match in models})
    ranks = max(ranks_in(names, OPTIMIZER_STATES) | ranks_in(names, SHARDED_MODEL_STATES), default=-1) + 1
    return CheckpointContents(
        folder=str(layout.folder),
        tag=tag,
        latest=layout.latest,
        is_tag_named=layout.is_tag_named,
        is_universal=layout.is_universal,
        resumed_by=resumed,
        is_fsdp=any(map(is_fsdp, names)),
        step=_step(layout, saved, folder),
        stage=kind if has_states else "0" if models else "none",
        version=saved.version,
        parameters=sum(saved.parameter_sizes) or None if model_ranks == 1 else None,
        has_adapters=saved.has_adapters,
        converted=layout.converted,
        # What the states say counts: a copied file may have a rank of its own in its name.
        ranks=0 if layout.is_universal else saved.ranks or ranks if has_states else ranks,
        model_ranks=model_ranks,
        size_bytes=sum(names.values()),
        optimizer_bytes=sum(
            size
            for name, size in names.items()
            if OPTIMIZER_STATES.search(name) or name.startswith(f"{tag}/zero/") or is_optimizer(name)
        ),
        weights_bytes=sum(
            size
            for name, size in names.items()
            if MODEL_STATES.search(Path(name).name) or name in weights or is_fsdp(name)
        ),
        weights=weights,
        missing_to_load=missing_to_load(names) if weights else (),
    )


def _step(layout: CheckpointLayout, saved: SavedStates, folder: Path) -> int | None:
    """The optimizer step, as the states or the Trainer's own state say it, or else as the name does."""
    if saved.step is not None:
        return saved.step
    step = None if layout.tag else json_object(layout.folder / TRAINER_STATE).get("global_step")
    if isinstance(step, int):
        return step
    named = re.search(r"(\d+)(_universal)?$", layout.tag or folder.name)
    return int(named[1]) if named and (layout.tag or folder.name.startswith("checkpoint-")) else None


def _size_bytes(path: Path) -> int:
    """The size of a file; 0 if a training has removed it meanwhile."""
    try:
        return file_size(path)
    except OSError:
        return 0


def json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
