"""Checkpoints without DeepSpeed: the states from which the Trainer or accelerate resumes, and the files without which
`from_pretrained` loads no weights. Files are told by their names; nothing is unpickled.

Source: transformers 5.24 trainer.py (`_load_from_checkpoint`, `_load_optimizer_and_scheduler`, `_load_rng_state`,
`train`); accelerate 1.15 utils/fsdp_utils.py and checkpointing.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

from .checkpoint_pickles import operations

ResumedBy = Literal["", "deepspeed", "trainer", "accelerate"]
"""What resumes from a checkpoint; "" for a model alone."""

TRAINER_STATE = "trainer_state.json"

RANDOM_STATES = re.compile(r"^rng_state_(\d+)\.pth$")
"""Name of a rank's file of random states, which the Trainer writes last but its own state; the group is the rank."""

_OPTIMIZER = re.compile(r"^optimizer(\.pt|\.bin|_\d+(_rank\d+)?\.bin|_rank\d+\.bin|_\d+/.+)$")
"""The optimizer's states: the Trainer's, accelerate's, or FSDP's, of which each rank may have a file."""

_OF_TRAINER = re.compile(r"^(optimizer\.pt|scheduler\.pt|rng_state(_\d+)?\.pth)$")
_OF_ACCELERATE = re.compile(r"^(scheduler(_\d+)?\.bin|random_states_\d+\.pkl)$")
_FSDP = re.compile(r"^pytorch_model_fsdp(_\d+)?(/|\.bin$|_rank\d+\.bin$)")
_WEIGHTS = re.compile(r"^(.+/)?(model|pytorch_model|adapter_model)(-\d+-of-\d+)?\.(safetensors|bin)$")
_SHARD = re.compile(r"^((?:model|pytorch_model|adapter_model))-\d+-of-\d+(\.safetensors|\.bin)$")

TRAINERS_NAME = re.compile(r"^checkpoint-\d+$")
"""Name of a checkpoint of the Trainer (transformers 5.24 trainer.py `_save_checkpoint`); other scripts use it too."""

_TRAINERS_ARGUMENTS = "training_args.bin"
"""What the Trainer writes with every model, into a checkpoint first."""

DISTRIBUTED_METADATA = ".metadata"
"""The file that says what lies where in a folder of torch.distributed.checkpoint (torch 2.13
distributed/checkpoint/filesystem.py)."""


def resumed_by(names: Collection[str]) -> Literal["", "trainer", "accelerate"]:
    """What resumes from a checkpoint without DeepSpeed's states, by the names of its files."""
    if any(map(_OF_ACCELERATE.match, names)):
        return "accelerate"
    is_trainers = any(map(_OF_TRAINER.match, names)) or (TRAINER_STATE in names and any(map(_OPTIMIZER.match, names)))
    if is_trainers:
        return "trainer"
    return "accelerate" if any(map(_OPTIMIZER.match, names)) else ""


def is_trainers(folder_name: str, names: Collection[str]) -> bool:
    """Whether the Trainer saved a checkpoint with DeepSpeed's states, as what it writes beside them says. Its arguments
    alone, in a folder of another name, may be those of a model (`save_model` without a gathered model saves the states
    too)."""
    return any(map(_OF_TRAINER.match, names)) or (
        TRAINERS_NAME.match(folder_name) is not None and _TRAINERS_ARGUMENTS in names
    )


def is_optimizer(name: str) -> bool:
    """Whether a file holds states of an optimizer without DeepSpeed."""
    return _OPTIMIZER.match(name) is not None


def is_fsdp(name: str) -> bool:
    """Whether a file holds weights as FSDP saves them."""
    return _FSDP.match(name) is not None


def missing_states(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, problem) of what the Trainer needs to resume without DeepSpeed, and lacks. It loads the optimizer and the
    scheduler only together, and otherwise starts new ones without a word."""
    if not any(map(is_optimizer, names)):
        yield "the optimizer states", "are missing"
    if not any(map(_WEIGHTS.match, names)) and not any(map(is_fsdp, names)):
        yield "the weights", "are missing"
    yield from ((name, "is missing") for name in ("scheduler.pt", TRAINER_STATE) if name not in names)
    ranks = {int(match[1]) for name in names if (match := RANDOM_STATES.match(name))}
    lost = set(range(max(ranks, default=0))) - ranks
    yield from ((f"the random states of rank {rank}", "are missing") for rank in sorted(lost))


def missing_parts(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, problem) of the lists of parts that weights in several files need."""
    indexes = {f"{match[1]}{match[2]}.index.json" for name in names if (match := _SHARD.match(name))}
    folders = {name.rpartition("/")[0] for name in names if name.endswith(".distcp")}
    needed = sorted(indexes) + [f"{folder}/{DISTRIBUTED_METADATA}" for folder in sorted(folders)]
    return ((name, "is missing") for name in needed if name not in names)


def weights_in(names: Iterable[str]) -> tuple[str, ...]:
    """The files of a model's weights directly in a folder: its safetensors, or without them those of `torch.save`, as
    `engine.save_16bit_model` and `zero_to_fp32.py` write them. `from_pretrained` prefers them in this order
    (transformers 5.24 modeling_utils.py `_get_resolved_checkpoint_files`)."""
    here = [name for name in names if "/" not in name]
    safe = tuple(name for name in here if name.endswith(".safetensors"))
    return safe or tuple(name for name in here if name.endswith(".bin") and _WEIGHTS.match(name))


def missing_to_load(names: Collection[str]) -> tuple[str, ...]:
    """The files that `from_pretrained` needs for the weights of a folder, and that are missing."""
    here = {name for name in names if "/" not in name}
    kept = weights_in(here)
    stem, ending = ("pytorch_model", ".bin") if _are_of_torch(kept) else ("model", ".safetensors")
    if f"adapter_model{ending}" in here and not any(name.startswith(stem) for name in here if ending in name):
        return tuple({"adapter_config.json"} - here)
    index = f"{stem}{ending}.index.json"
    shards = any(_SHARD.match(name) for name in kept)
    weights = index if shards or index in here else f"{stem}{ending}"
    return tuple(name for name in (weights, "config.json") if name not in here)


def missing_of_model(names: Collection[str]) -> tuple[str, ...]:
    """The missing files of a model alone: those that `from_pretrained` needs. DeepSpeed writes `pytorch_model.bin`
    without config.json (0.19.8 runtime/engine.py `save_16bit_model`, utils/zero_to_fp32.py)."""
    without_config = _are_of_torch(weights_in(names))
    return tuple(name for name in missing_to_load(names) if name != "config.json" or not without_config)


def _are_of_torch(weights: Iterable[str]) -> bool:
    """Whether `torch.save` wrote the files of `weights_in`."""
    return any(name.endswith(".bin") for name in weights)


def distributed_damage(metadata: Path) -> str:
    """The damage of a folder of torch.distributed.checkpoint, by the places that its metadata names; "" without. Raises
    ValueError for metadata that is cut off, OSError."""
    ends: dict[str, int] = {}
    with metadata.open("rb") as stream:
        said = [value for _, value in operations(stream) if value is not None]
    for key, name, offset_key, offset, length_key, length in zip(*(said[at:] for at in range(6)), strict=False):
        if (key, offset_key, length_key) == ("relative_path", "offset", "length") and isinstance(name, str):
            end = (offset if isinstance(offset, int) else 0) + (length if isinstance(length, int) else 0)
            ends[name] = max(end, ends.get(name, 0))
    for name, end in sorted(ends.items()):
        part = metadata.with_name(Path(name).name)
        if not part.is_file():
            return f"names {part.name}, which is missing"
        if part.stat().st_size < end:
            return f"names {part.name}, which is cut off after {part.stat().st_size:,} of {end:,} bytes"
    return ""
