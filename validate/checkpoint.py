"""Check whether a checkpoint of DeepSpeed or the Trainer is complete, file by file.

torch verifies no checksums when it loads a checkpoint: with a truncated or altered file a training fails late or
continues with wrong numbers. This module unpickles nothing and does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from ..ds_configs.files import write_config
from .checkpoint_layout import CHECKSUMS as CHECKSUMS
from .checkpoint_layout import (
    OPTIMIZER_STATES,
    CheckpointLayout,
    SavedStates,
    checkpoint_layout,
    names_in,
    saved_states,
)
from .checkpoint_steps import mixed_steps
from .checkpoint_structure import TENSOR_FILES, stand_in, structural_damage
from .checkpoint_trainer import (
    RANDOM_STATES,
    TRAINER_STATE,
    ResumedBy,
    is_trainers,
    missing_of_model,
    missing_parts,
    missing_states,
    resumed_by,
)
from .checkpoint_universal import missing_universal

_BLOCK_BYTES = 2**22
_MAX_NAMED = 1000
"""Maximum number of missing files that are listed: a foreign file name may contain a rank of any size."""

CHECKPOINT_LAYOUTS = {0: 0, 1: 1, 2: 1, 3: 3}
"""Layout of the optimizer states in a checkpoint, by ZeRO stage. Stages 1 and 2 share a class and a layout, with or
without offload (0.19.8 runtime/zero/stage_1_and_2.py `state_dict`). Stage 3 partitions each parameter, stage 0
partitions nothing, and neither reads the others' states."""

SHARDED_MODEL_STATES = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt$")
"""Name of a rank's file of model states under ZeRO-3; the group is the rank. Lower stages have one file for all
ranks."""

_RANDOM = re.compile(r"the random states of rank |rng_state(_\d+)?\.pth$")
"""Name of the random states of a rank, of a missing file or in a list of checksums; a training on one GPU writes
`rng_state.pth`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    name: str
    """The path below the checkpoint."""
    size_bytes: int
    """0 if the file is missing."""
    problem: str = ""
    """The damage; "" for an intact file."""
    non_finite: int | None = None
    """Number of values that are NaN, and in optimizer states also of infinite ones; None if they were not examined."""

    @property
    def is_lost_random(self) -> bool:
        """Whether it is a rank's random states, which are missing: the Trainer logs it and resumes (transformers 5.24
        trainer.py `_load_rng_state`)."""
        return self.problem in ("is missing", "are missing") and _RANDOM.match(self.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files of a checkpoint, including expected files that are missing."""

    folder: Path
    """The folder of `latest`, or the folder of states if that was named."""
    files: tuple[CheckpointFile, ...]
    evidence: Literal["checksums", "structure"]
    """"checksums": the files equal the saved ones. "structure": archives and JSON are complete, and the records in
    torch's archives match their checksums; corrupted safetensors, and corrupted or missing tensors in files of torch
    that are no archives, are not detected."""

    has_states: bool = True
    """Whether a training can resume from it, and it is not a model alone."""
    padding: int = 0
    """Largest number of values in the files that belong to no parameter and may be anything."""

    @property
    def non_finite(self) -> int:
        """Number of values that are NaN or infinite and cannot be padding."""
        found = sum(file.non_finite or 0 for file in self.files)
        return found if found > self.padding else 0

    @property
    def non_finite_file(self) -> str:
        """The first file with such a value; "" without."""
        return next((file.name for file in self.files if file.non_finite), "") if self.non_finite else ""

    @property
    def unexamined(self) -> int:
        """Number of files of tensors whose values were not, or could not be, told from NaN."""
        kept = (file for file in self.files if not file.problem and Path(file.name).suffix in TENSOR_FILES)
        return sum(file.non_finite is None or (file.non_finite > 0 and not self.non_finite) for file in kept)

    @property
    def is_usable(self) -> bool:
        return self.is_whole and not self.non_finite

    @property
    def damaged(self) -> tuple[CheckpointFile, ...]:
        return tuple(file for file in self.files if file.problem and not file.is_lost_random)

    @property
    def lost_random(self) -> tuple[str, ...]:
        """Names of random states that are missing."""
        return tuple(file.name for file in self.files if file.is_lost_random)

    @property
    def is_whole(self) -> bool:
        return not self.damaged

    @property
    def problem(self) -> str:
        """The damaged files, or those with NaN, in one phrase; "" for a usable checkpoint."""
        if self.is_whole and self.non_finite:
            return f"{self.non_finite_file} holds values that are NaN or infinite"
        first = [f"{file.name} {file.problem}" for file in self.damaged[:1]]
        more = len(self.damaged) - 1
        return "; ".join([*first, *([f"{more} more file{'s' * (more > 1)}"] if more > 0 else [])])


def is_only_latest(damaged: Iterable[CheckpointFile]) -> bool:
    """Whether nothing is wrong but the file that names the folder of states, so that the states are whole."""
    return all(file.name in ("latest", "latest_universal") for file in damaged)


def checkpoint_step(checkpoint: Path) -> int:
    """The optimizer step of a Trainer's checkpoint, from its name `checkpoint-STEP`."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def checkpoints_in(folder: Path) -> list[Path]:
    """The Trainer's checkpoints in its output folder, in ascending order of steps."""
    found = (path for path in folder.glob("checkpoint-*") if path.is_dir())
    return sorted((path for path in found if path.name.removeprefix("checkpoint-").isdigit()), key=checkpoint_step)


def newest_usable(
    checkpoints: Iterable[Path], *, ranks: int | None = None, by_deepspeed: bool = True, say: Callable[[str], None]
) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """(the newest usable checkpoint, if none has states to resume from the newest model, or None; the newer ones, which
    are damaged or hold NaN). Arguments as in `read_checkpoint`."""
    damaged: list[Checkpoint] = []
    model: Checkpoint | None = None
    for folder in reversed(list(checkpoints)):
        say(f"checking {folder.name} ...")
        checkpoint = read_checkpoint(folder, ranks=ranks, by_deepspeed=by_deepspeed)
        if not checkpoint.is_usable:
            damaged.append(checkpoint)
        elif checkpoint.has_states:
            return checkpoint, damaged
        else:
            model = model or checkpoint
    return model, damaged


def read_checkpoint(folder: Path, *, ranks: int | None = None, by_deepspeed: bool = True) -> Checkpoint:
    """Read every file of a checkpoint and verify it by the stored checksums, or by its structure if there are none;
    files of tensors with a checksum are read twice, for their values.

    folder: the folder of `latest`, or a folder of states in it.
    ranks: number of ranks with a file of optimizer states each (ZeRO 1 to 3); None to infer it from the files.
    by_deepspeed: whether DeepSpeed is to resume from it, so that its states must be there. Otherwise a folder without
        them is judged by what it holds: the states of the Trainer or accelerate, or a model alone.
    """
    layout = checkpoint_layout(folder)
    folder, saved = layout.folder, saved_states(layout)
    named = folder / layout.tag if layout.is_tag_named else folder
    padding = _padding(saved)
    listed = None if layout.is_tag_named else _stored_checksums(folder)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        if listed is not None:
            files = [*pool.map(lambda name: _verify_checksum(folder, name, listed[name]), listed)]
            return Checkpoint(
                folder=named,
                files=tuple(files),
                evidence="checksums",
                has_states=bool(resumer(layout, listed)),
                padding=padding,
            )
        files = [*pool.map(lambda name: _verify_structure(folder, name), layout.names())]
        mixed = mixed_steps(folder, [file.name for file in files if not file.problem], saved.step, pool)
    names = [file.name for file in files]
    files = [replace(file, problem=file.problem or mixed.get(file.name, "")) for file in files]
    missing = _missing(layout, saved, names, ranks, by_deepspeed=by_deepspeed)
    return Checkpoint(
        folder=named,
        files=(*files, *(CheckpointFile(name=name, size_bytes=0, problem=problem) for name, problem in missing)),
        evidence="structure",
        has_states=by_deepspeed or bool(resumer(layout, names)),
        padding=padding,
    )


def resumer(layout: CheckpointLayout, names: Collection[str]) -> ResumedBy:
    """What resumes from the states in a folder with these files; "" without states."""
    return "deepspeed" if layout.is_deepspeeds else resumed_by(names)


def _padding(saved: SavedStates) -> int:
    """ZeRO-3 pads each parameter to a multiple of the ranks with memory that it does not set (0.19.8
    runtime/zero/partition_parameters.py `_partition_param`), in the master weights and in both states of Adam."""
    return 3 * sum(-size % saved.ranks for size in saved.parameter_sizes) if saved.stage == 3 and saved.ranks else 0


def write_checksums(folder: Path) -> None:
    """Store the size and the checksum of each file in a checkpoint that all ranks have saved.

    Raises OSError if a file cannot be read, ConfigFileError if the list cannot be written.
    """
    sums = {name: _size_and_crc(folder / name) for name in names_in(folder)}
    times = folder.stat()
    write_config(sums, folder / CHECKSUMS, force=True)
    # The Trainer removes the folders with the oldest times (`save_total_limit`).
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))


def file_size(path: Path) -> int:
    """The size of a regular file in bytes. Raises OSError for anything else (a folder, a pipe): reading a pipe may
    never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    return found.st_size


def _stored_checksums(folder: Path) -> Mapping[str, list[int]] | None:
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):
        listed: dict[str, list[int]] = json.loads((folder / CHECKSUMS).read_bytes())
        kinds = {tuple(map(type, kept)) for kept in listed.values()}
        if kinds <= {(int, int)}:
            return listed
    return None


def _size_and_crc(path: Path) -> list[int]:
    size = checksum = 0
    file_size(path)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return [size, checksum]


def _verify_checksum(folder: Path, name: str, kept: list[int]) -> CheckpointFile:
    try:
        found = _size_and_crc(folder / name)
    except OSError as error:
        return CheckpointFile(name=name, size_bytes=0, problem=_unreadable(error))
    if found == kept:
        is_tensors = Path(name).suffix in TENSOR_FILES
        non_finite = _verify_structure(folder, name).non_finite if is_tensors else None
        return CheckpointFile(name=name, size_bytes=found[0], non_finite=non_finite)
    problem = "has changed since it was saved"
    if found[0] < kept[0]:
        problem = f"is cut off after {found[0]:,} of {kept[0]:,} bytes"
    with contextlib.suppress(OSError):
        problem = stand_in(folder / name) or problem
    return CheckpointFile(name=name, size_bytes=found[0], problem=problem)


def _unreadable(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def _verify_structure(folder: Path, name: str) -> CheckpointFile:
    path, size, non_finite = folder / name, 0, None
    try:
        size = file_size(path)
        problem, non_finite = structural_damage(path)
    except OSError as error:
        problem = _unreadable(error)
    return CheckpointFile(name=name, size_bytes=size, problem=problem, non_finite=non_finite)


def ranks_in(names: Iterable[str], kind: re.Pattern[str]) -> set[int]:
    return {int(match[1]) for name in names if (match := kind.search(name))}


def _missing(
    layout: CheckpointLayout, saved: SavedStates, names: Sequence[str], ranks: int | None, *, by_deepspeed: bool
) -> list[tuple[str, str]]:
    """(name, problem) of expected files that are missing. Of DeepSpeed's states those of every rank, the file that
    names the tag, the folder that it names, and the Trainer's state, which it writes last."""
    absent = list(missing_parts(names))
    if not layout.is_deepspeeds and not by_deepspeed:
        if kind := resumed_by(names):
            return absent + (list(missing_states(names)) if kind == "trainer" else [])
        return list(dict.fromkeys(absent + [(name, "is missing") for name in missing_of_model(names)]))
    if layout.is_universal:
        absent += missing_universal(layout.tag, saved, names)
    else:
        absent += _missing_ranks(layout, saved, names, ranks)
    if not layout.is_tag_named and TRAINER_STATE not in names and is_trainers(layout.folder.resolve().name, names):
        absent.append((TRAINER_STATE, "is missing"))
    if not layout.is_tag_named and not layout.latest:
        is_empty = (layout.folder / layout.latest_name).is_file()
        absent.append((layout.latest_name, "is empty" if is_empty else "is missing"))
    elif not layout.is_tag_named and layout.latest != layout.tag:
        lack = "holds no states" if (layout.folder / layout.latest).is_dir() else "is missing"
        absent.append((layout.latest_name, f"names {layout.latest}, which {lack}"))
    return absent


def _missing_ranks(
    layout: CheckpointLayout, saved: SavedStates, names: Sequence[str], ranks: int | None
) -> list[tuple[str, str]]:
    kinds = {"optimizer": OPTIMIZER_STATES, "model": SHARDED_MODEL_STATES, "random": RANDOM_STATES}
    have = {kind: ranks_in(names, pattern) for kind, pattern in kinds.items()}
    expected = {"optimizer"} | ({"model"} if saved.stage == 3 else set())
    count = max(have["optimizer"] | have["model"], default=-1) + 1
    if saved.has_shards or have["optimizer"]:
        count = max(count, saved.ranks)
    count = count if ranks is None else ranks
    absent = [
        (f"the {kind} states of rank {rank}", "are missing")
        for kind, found in have.items()
        if found or kind in expected
        for rank in islice((rank for rank in range(count) if rank not in found), _MAX_NAMED)
    ]
    if have["model"] or "model" in expected:
        return absent
    split = sorted({match[2] for name in names if (match := OPTIMIZER_STATES.search(name))})
    split = split or ["00"] * bool(layout.tag)  # a training may remove the states meanwhile
    models = [f"{layout.tag}/mp_rank_{rank}_model_states.pt" for rank in split]
    return [*((name, "is missing") for name in models if name not in names), *absent]
