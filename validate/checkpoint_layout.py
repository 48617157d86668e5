"""The folders of a checkpoint of DeepSpeed, and what its model states say about their saving.

A checkpoint is a folder with the file `latest` and, for each saved tag, a folder of states. `ds_to_universal` writes
such a folder of states too, with `latest_universal`. Nothing is unpickled, and torch is not imported.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ..probes.real_run.trainer import CHECKSUMS as CHECKSUMS
from .checkpoint_pickles import Operation, named_shapes, names_between, readable_pickles, values
from .checkpoint_trainer import TRAINERS_NAME

MODEL_STATES = re.compile(r"^(zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt$")
"""Name of a file of model states; the groups are the prefix under ZeRO-3, its rank, and the tensor-parallel rank."""

_STEP = re.compile(r"(checkpoint|ckpt|step|epoch|iter|iteration)s?[-_.=]?\d+", re.IGNORECASE)
"""The step or epoch in the name of a folder, as the Trainer, accelerate, Lightning and scripts write it."""

UNIVERSAL_STATES = "zero/optimizer_state.pt"
"""The file of what the parameters of universal states share (0.19.8 checkpoint/ds_to_universal.py
`_save_optimizer_state`); no load goes on without it (runtime/base_optimizer.py)."""

OPTIMIZER_STATES = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
"""Name of a rank's file of optimizer states; the groups are the rank and the tensor-parallel rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """Where the states of a checkpoint lie."""

    folder: Path
    """The folder of `latest`."""
    tag: str
    """The folder of states in `folder`; "" if there is none."""
    is_universal: bool
    """Whether `ds_to_universal` wrote the states."""
    is_tag_named: bool
    """Whether the folder of states was named, and not the folder of `latest`."""
    latest: str
    """The tag that `latest` (for universal states `latest_universal`) names; "" without that file, or if it is
    empty."""
    other_tags: tuple[str, ...]
    """Further folders of states in `folder`."""

    @property
    def is_deepspeeds(self) -> bool:
        """Whether DeepSpeed saved it, even if its states are lost."""
        return bool(self.tag or self.latest)

    @property
    def latest_name(self) -> str:
        """The file that names the tag to load (0.19.8 runtime/engine.py `load_checkpoint`)."""
        return "latest_universal" if self.is_universal else "latest"

    def names(self) -> list[str]:
        """The files of this checkpoint, and not of the other tags or of checkpoints in other folders, as paths below
        `folder`."""
        if self.is_tag_named:
            return [f"{self.tag}/{name}" for name in names_in(self.folder / self.tag)]
        names = names_in(self.folder)
        inside = {name.partition("/")[0] for name in names if "/" in name} - {self.tag}
        others = {each for each in inside if each in self.other_tags or _tags(self.folder / each)}
        return [name for name in names if name.partition("/")[0] not in others]

    @property
    def other_states(self) -> list[Path]:
        """The other folders of states of the same format, in ascending order of steps."""
        found = (self.folder / each for each in self.other_tags)
        return [each for each in found if _is_universal(each) == self.is_universal]

    @property
    def converted(self) -> str:
        """The tag of universal states that the command of this program's answer has made of these; "" without."""
        tag = f"{self.tag}_universal"
        return tag if tag in self.other_tags and _is_universal(self.folder / tag) else ""


def names_in(folder: Path) -> list[str]:
    """The files of a folder as paths relative to it, without those that this program adds."""
    # `os.walk`, because a training may remove the checkpoint meanwhile, where `rglob` raises
    walked = (
        (at, [*names, *(each for each in folders if each.endswith(".pt"))]) for at, folders, names in os.walk(folder)
    )
    paths = sorted(Path(at, name) for at, names in walked for name in names)
    return [str(path.relative_to(folder)) for path in paths if path.name != CHECKSUMS]


def checkpoint_layout(folder: Path) -> CheckpointLayout:
    """The layout of a checkpoint, whose folder of `latest` or folder of states is named. With several tags, it is the
    one that `latest` names, or without it the one of the largest step, which the states say and the names may not."""
    is_tag_named = _holds_states(folder)
    if folder.name in ("", ".."):
        folder = Path(os.path.relpath(folder.resolve()))
    root = Path(os.path.normpath(folder / "..")) if is_tag_named else folder
    tags = _tags(root)
    if len(tags) > 1:
        tags.sort(key=lambda tag: saved_step(root / tag) or -1)  # stable: by the names where the states do not say it
    plain = [tag for tag in tags if not _is_universal(root / tag)]
    latest = _read(root / "latest")
    tag = latest if latest in tags else (plain or tags or [""])[-1]
    tag = folder.resolve().name if is_tag_named else tag
    universal = bool(tag) and _is_universal(root / tag)
    return CheckpointLayout(
        folder=root,
        tag=tag,
        is_universal=universal,
        is_tag_named=is_tag_named,
        latest=_read(root / "latest_universal") if universal else latest,
        other_tags=tuple(each for each in tags if each != tag),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStates:
    """What a file of model states says about the checkpoint (0.19.8 runtime/engine.py `_common_checkpoint_state`)."""

    ranks: int
    """Data-parallel ranks, which `load_checkpoint` compares with its own; 0 if the file does not say it."""
    has_shards: bool
    """Whether each rank saved its optimizer states in a file."""
    stage: int | None
    """The ZeRO stage of the optimizer states; None if no file of them says it."""
    step: int | None
    """The optimizer step; None if the file does not say it."""
    version: str
    """The DeepSpeed version that saved them; "" if the file does not say it."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each parameter under ZeRO, by its name; empty if the file does not say it."""
    other_names: frozenset[str]
    """The names of buffers and of parameters that are others' under a second name."""

    @property
    def parameter_sizes(self) -> tuple[int, ...]:
        """The number of values of each parameter."""
        return tuple(map(prod, self.shapes.values()))

    @property
    def has_adapters(self) -> bool:
        """Whether some parameters are peft's adapters."""
        return has_adapters(self.shapes)


def has_adapters(names: Iterable[str]) -> bool:
    """Whether some of the tensors of these names are peft's adapters."""
    return any(".lora_A." in name for name in names)


def saved_states(layout: CheckpointLayout) -> SavedStates:
    """The statements of the first readable file of model states, and of the first of optimizer states."""
    folder = layout.folder / layout.tag
    names = names_in(folder) if layout.tag else []
    said: dict[str, Operation] = {}
    shapes: Mapping[str, tuple[int, ...]] = {}
    others = frozenset[str]()
    for name in filter(MODEL_STATES.match, names):
        said, shapes, others = _read_states(folder / name)
        if isinstance(said.get("dp_world_size", ("", None))[1], int):
            break
    stage: object = None
    for name in (each for each in names if OPTIMIZER_STATES.search(each) or each == UNIVERSAL_STATES):
        _, stage = _read_states(folder / name)[0].get("zero_stage", ("", None))
        if isinstance(stage, int):
            break
    keys = ("dp_world_size", "ds_version", "global_steps")
    (_, ranks), (_, version), (_, step) = (said.get(key, ("", None)) for key in keys)
    return SavedStates(
        ranks=ranks if isinstance(ranks, int) else 0,
        has_shards=isinstance(ranks, int) and said.get("param_shapes", ("NONE", None))[0] != "NONE",
        stage=stage if isinstance(stage, int) else None,
        step=step if isinstance(step, int) else None,
        version=version if isinstance(version, str) else "",
        shapes=shapes,
        other_names=others,
    )


def saved_step(states: Path) -> int | None:
    """The optimizer step of a folder of states, as they say it, or else as its name does; None if neither does."""
    for name in filter(MODEL_STATES.match, names_in(states)):
        _, step = _read_states(states / name)[0].get("global_steps", ("", None))
        if isinstance(step, int):
            return step
        break
    numbers, _ = _order(states.name)
    return numbers[-1] if numbers else None


def _read_states(path: Path) -> tuple[dict[str, Operation], Mapping[str, tuple[int, ...]], frozenset[str]]:
    """(what a file of states says, the shapes of its parameters, its other names as in `SavedStates`); nothing for an
    unreadable file."""
    said: dict[str, Operation] = {}
    shapes: Mapping[str, tuple[int, ...]] = {}
    others = frozenset[str]()
    for read in readable_pickles(path):
        said = values(read, ("dp_world_size", "param_shapes", "ds_version", "zero_stage", "global_steps")) | said
        shapes = shapes or named_shapes(read, "param_shapes", "shared_params")
        others |= names_between(read, "buffer_names", "optimizer")
        others |= names_between(read, "shared_params", "frozen_param_fragments")
    return said, shapes, others


def _holds_states(folder: Path) -> bool:
    """Whether files of states lie directly in a folder: those of the model may be lost."""
    with contextlib.suppress(OSError):
        return any(MODEL_STATES.match(each.name) or OPTIMIZER_STATES.search(each.name) for each in folder.iterdir())
    return False


def checkpoints_below(folder: Path) -> list[Path]:
    """The checkpoints in folders of a folder that is none itself, in ascending order of the numbers in their names:
    a training may save each into a folder of its own (the Trainer's `checkpoint-500`, accelerate's `checkpoint_0`)."""
    if checkpoint_layout(folder).tag:
        return []
    with contextlib.suppress(OSError):
        found = (each for each in folder.iterdir() if each.is_dir())
        named = (each for each in found if TRAINERS_NAME.match(each.name) or checkpoint_layout(each).tag)
        return sorted(named, key=lambda each: _order(each.name))
    return []


def earlier_and_later(checkpoint: Path) -> list[Path]:
    """The other checkpoints beside one that are of the same training, in ascending order of the numbers in their
    names: those whose names differ in the step or epoch alone, without parameters of other sizes. Empty for a name
    without a step or epoch, such as `run1`: the folders beside it may be other trainings."""
    checkpoint = checkpoint.absolute()
    series = _series(checkpoint.name)
    if not series:
        return []
    sizes = _sizes(checkpoint)
    found = (each for each in checkpoints_below(checkpoint.parent) if each.name != checkpoint.name)
    named = (each for each in found if _series(each.name) == series)
    return [each for each in named if not sizes or _sizes(each) in ((), sizes)]


def _sizes(checkpoint: Path) -> tuple[int, ...]:
    return saved_states(checkpoint_layout(checkpoint)).parameter_sizes


def _series(name: str) -> str:
    """A name without its step or epoch; "" if it has none."""
    return _STEP.sub(r"\1", name) if _STEP.search(name) else ""


def _is_universal(states: Path) -> bool:
    """`ds_to_universal` writes a folder per parameter into `zero`, and there `UNIVERSAL_STATES`."""
    return (states / "zero").is_dir()


def _tags(folder: Path) -> list[str]:
    """The folders of states in a folder, in ascending order of steps."""
    with contextlib.suppress(OSError):
        return sorted((each.name for each in folder.iterdir() if each.is_dir() and _holds_states(each)), key=_order)
    return []


def _order(name: str) -> tuple[list[int], str]:
    """The order of names with numbers: the step or epoch, whatever stands before it."""
    return [int(part) for part in re.findall(r"\d+", name)], name


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
