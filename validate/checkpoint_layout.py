"""The folders of a checkpoint of DeepSpeed, and what its model states say about their saving.

A checkpoint is a folder with the file `latest` and, for each saved tag, a folder of states. `ds_to_universal` writes
such a folder of states too, with `latest_universal`. Nothing is unpickled, and torch is not imported.
"""

from __future__ import annotations

import contextlib
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..probes.real_run.trainer import CHECKSUMS as CHECKSUMS

PICKLE = b"\x80"
"""First byte of files that `torch.save` writes without a zip archive, as before torch 1.6 and DeepSpeed's fast writer
do (0.19.8 runtime/checkpoint_engine/fast_checkpoint_engine.py)."""

PICKLES = 5
"""Number of the pickles of such a file; the tensors follow (torch 2.13 serialization.py `_legacy_save`)."""

MODEL_STATES = re.compile(r"^(zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt$")
"""Name of a file of model states; the groups are the prefix under ZeRO-3, its rank, and the tensor-parallel rank."""

_MEMO = frozenset(("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"))


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
    """The tag that `latest` (for universal states `latest_universal`) names; "" without that file."""
    other_tags: tuple[str, ...]
    """Further folders of states in `folder`."""

    @property
    def latest_name(self) -> str:
        """The file that names the tag to load (0.19.8 runtime/engine.py `load_checkpoint`)."""
        return "latest_universal" if self.is_universal else "latest"

    def names(self) -> list[str]:
        """The files of this checkpoint, and not of the other tags, as paths below `folder`."""
        if self.is_tag_named:
            return [f"{self.tag}/{name}" for name in names_in(self.folder / self.tag)]
        return [name for name in names_in(self.folder) if name.partition("/")[0] not in self.other_tags]


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
    one that `latest` names, or without it the one of the largest step."""
    is_tag_named = _holds_states(folder)
    if folder.name in ("", ".."):
        folder = Path(os.path.relpath(folder.resolve()))
    root = Path(os.path.normpath(folder / "..")) if is_tag_named else folder
    tags = [folder.resolve().name] if is_tag_named else _tags(root)
    plain = [tag for tag in tags if not _is_universal(root / tag)]
    latest = _read(root / "latest")
    tag = latest if latest in tags else (plain or tags or [""])[-1]
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


def saved_states(layout: CheckpointLayout) -> SavedStates:
    """The statements of the first readable file of model states."""
    for path in sorted((layout.folder / layout.tag).glob("*_model_states.pt")) if layout.tag else ():
        if not MODEL_STATES.match(path.name):
            continue
        said: dict[str, tuple[str, object]] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError, RuntimeError):
            for stream in _object_pickles(path):
                said = _values(stream, ("dp_world_size", "param_shapes")) | said
        _, ranks = said.get("dp_world_size", ("", None))
        if isinstance(ranks, int):
            shapes, _ = said.get("param_shapes", ("NONE", None))
            return SavedStates(ranks=ranks, has_shards=shapes != "NONE")
    return SavedStates(ranks=0, has_shards=False)


def _holds_states(folder: Path) -> bool:
    """Whether files of model states lie directly in a folder."""
    with contextlib.suppress(OSError):
        return any(MODEL_STATES.match(path.name) for path in folder.iterdir())
    return False


def _is_universal(states: Path) -> bool:
    """`ds_to_universal` writes a folder per parameter into `zero`, and there the file of what they share (0.19.8
    checkpoint/ds_to_universal.py `_save_optimizer_state`)."""
    return (states / "zero").is_dir()


def _tags(folder: Path) -> list[str]:
    """The folders of states in a folder, in ascending order of steps."""
    with contextlib.suppress(OSError):
        found = [each.name for each in folder.iterdir() if each.is_dir() and _holds_states(each)]
        return sorted(found, key=lambda tag: [(part.isdigit(), part.zfill(20)) for part in re.split(r"(\d+)", tag)])
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _object_pickles(path: Path) -> Iterator[IO[bytes]]:
    """The pickle of an archive; of a file that is none, its pickles one after another."""
    with path.open("rb") as stream:
        if stream.read(1) == PICKLE:
            stream.seek(0)
            for _ in range(PICKLES):
                yield stream
            return
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "data.pkl")
        with archive.open(name) as stream:
            yield stream


def _values(stream: IO[bytes], keys: tuple[str, ...]) -> dict[str, tuple[str, object]]:
    """(operation, argument) of the value after the first string of each of the keys in a pickle."""
    found: dict[str, tuple[str, object]] = {}
    before: object = None
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name in _MEMO:
            continue
        if isinstance(before, str) and before in keys:
            found.setdefault(before, (operation.name, argument))
        before = argument
    return found
