"""The folder of a training: the final model, the Trainer's checkpoints, and the records with which it can resume."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...ds_configs.files import read_json_object, write_config
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import from_json
from ...estimators.phrase import phrase
from ...estimators.workload import TORCH_DTYPES, Workload
from ...probes.run import Device
from ...probes.scratch import try_lock
from ...validate.checkpoint import WHOLE, checkpoints_in, newest_usable
from ..question.run import read_ds_config

_REPAIR = "start the training without --resume"


class TrainingFolder:
    """Paths in `--output-dir`: the model and `ds_config.json`, the checkpoints, and the records in `training/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ds_config = path / "ds_config.json"
        self.merged = path / "merged"
        self.records = path / "training"
        self.job = self.records / "job.json"
        self.result = self.records / "result.json"
        self.options = self.records / "asked.json"
        """The options of the command."""
        self.lock = self.records / "lock"
        """Lock file with the name of the process that trains in the folder, which holds the lock."""

    def new_launch(self) -> Path:
        number = 1 + sum(1 for _ in self.records.glob("launch-*"))
        return self.records / f"launch-{number}"

    def complete_checkpoints(self) -> list[Path]:
        """The checkpoints that all ranks have saved, in ascending order of steps."""
        return [path for path in checkpoints_in(self.path) if (path / WHOLE).exists()]

    def newest_whole(self) -> Path | None:
        return next(reversed(self.complete_checkpoints()), None)

    def newest_usable(self, ranks: int, say: Callable[[str], None]) -> Path | None:
        """The last complete checkpoint of a training of `ranks` whose files are intact; None if no checkpoint is
        complete. Later, damaged checkpoints are renamed, so that no training resumes from them. Raises ConfigFileError
        if every complete one is damaged."""
        partitioned = read_ds_config(self.ds_config)["zero_optimization"]["stage"] > 0
        usable, damaged = newest_usable(self.complete_checkpoints(), ranks=ranks if partitioned else None, say=say)
        if usable is None and damaged:
            raise self.without_checkpoint("; ".join(f"{each.folder.name}: {each.problem}" for each in damaged))
        for each in damaged:
            aside = each.folder.with_name(f"damaged-{each.folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            each.folder.rename(aside)
            name, problem = each.folder.name, each.problem
            say(phrase("{name} is damaged: {problem}; it is now {other}", name=name, problem=problem, other=aside.name))
        return usable

    def without_checkpoint(self, why: str) -> ConfigFileError:
        return ConfigFileError(
            phrase("{path} has no whole checkpoint", path=self.path),
            why=why,
            fix="start it again with --force and without --resume",
        )

    def remove_broken(self) -> list[Path]:
        """Remove incomplete checkpoints, which take the room of the next one. Returns the removed paths."""
        broken = [path for path in checkpoints_in(self.path) if not (path / WHOLE).exists()]
        for path in broken:
            shutil.rmtree(path)
        return broken

    def claim(self, *, force: bool) -> None:
        """Make the folder, or take an empty one. With `force` the checkpoints and records of an earlier training are
        removed, so that they are not attributed to this training; other files stay until they are overwritten.

        Raises ConfigFileError for a folder that is not empty without `force`, that another process trains in, or that
        cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.lock.exists():
                with self.lock.open("r+b") as lock:
                    self._take(lock)
            # The records of a training that was refused before its start (a broken row, nothing fits) are not needed.
            unused = self.records if self.options.exists() and not self.job.exists() else None
            used = any(path != unused for path in self.path.iterdir())
            if used and not force:
                advice = "pass --resume to go on with it, " if self.job.exists() else "pass "
                raise ConfigFileError(
                    phrase("{path} is not empty", path=self.path),
                    why="its files may be lost",
                    fix=f"{advice}--force to use it anyway, or another --output-dir",
                )
            for stale in (*checkpoints_in(self.path), self.records, self.merged):
                if stale.exists():
                    shutil.rmtree(stale)
            self.records.mkdir()
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in the folder, including those of other hosts if the file system has
        locks. Raises ConfigFileError if another process trains in the folder or it cannot be written to."""
        try:
            lock = self.lock.open("a+b")
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem
        with lock:
            self._take(lock)
            lock.truncate(0)
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            lock.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}".encode())
            lock.flush()
            try:
                yield
            finally:
                lock.truncate(0)

    def _take(self, lock: BinaryIO) -> None:
        try:
            taken = try_lock(lock.fileno())
        except OSError:  # a file system without locks
            return
        if not taken:
            lock.seek(0)
            holder = lock.read().decode(errors="replace") or "another process"
            raise ConfigFileError(
                phrase("{path} is being trained in: {holder}", path=self.path, holder=holder),
                why="both would write its checkpoints",
                fix="wait for that training or stop it (Ctrl-C saves), or pass another --output-dir",
            )

    def kept_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the training to resume. given: options of this call. Raises ConfigFileError if there is no
        training, or if a given option differs from the training's."""
        if not self.job.exists():
            raise ConfigFileError(
                phrase("{path} holds no training to resume", path=self.path),
                why="it has no training/job.json",
                fix="leave --resume out, or pass the --output-dir of the interrupted training",
            )
        kept = read_json_object(self.options, error=ConfigFileError, what="a training's options", fix=_REPAIR)
        for name, value in given.items():
            if json.loads(json.dumps(value)) != kept.get(name):
                option = f"--{name.replace('_', '-')}"
                raise ConfigFileError(
                    phrase("{option} was {name} in the training to resume", option=option, name=kept.get(name)),
                    fix=phrase("leave {option} out", option=option),
                )
        return kept


def _unwritable(path: Path, problem: OSError) -> ConfigFileError:
    return ConfigFileError(
        phrase("{path}: cannot be written to ({reason})", path=path, reason=os.strerror(problem.errno or 0)),
        why="the model is saved there",
        fix="pass another --output-dir",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The input of every rank. Paths are absolute."""

    model: str
    """The folder with the base model's weights."""
    tokenizer: str
    """The folder of the tokenizer with its chat template. The tokenizer is saved with every model and checkpoint."""
    workload: Workload
    lora_alpha: int
    """LoRA alpha; ignored with method "full"."""
    device: Device
    ranks: int
    tokens: str
    """The folder of the token files (`Tokens`)."""
    samples: str
    """The file with the index into the tokens (`Index`)."""
    evaluation_tokens: str | None
    evaluation_samples: str | None
    packing: bool
    arguments: dict[str, Any]
    """Keyword arguments of TrainingArguments."""
    checkpoint: str | None = None
    """The checkpoint to resume from; None starts from the beginning."""
    mlp_tiles: int = 0
    """Number of tiles of a tiled feed-forward; 0 for no tiling."""
    loss_tiles: int = 0
    """Number of tiles of a tiled loss; 0 for no tiling."""
    gathers: bool = True
    """Whether ZeRO-3 gathers the whole weights when it saves. Other stages always save whole weights."""

    @property
    def dtype(self) -> str:
        return TORCH_DTYPES[self.workload.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """The first rank's report of the end of the training."""

    finished: bool
    """Whether all steps were made and the model is saved; otherwise the training was stopped and can be resumed."""
    step: int
    losses: tuple[tuple[int, float], ...]
    """(step, loss), including the steps before a resumed checkpoint; `evaluations` likewise."""
    evaluations: tuple[tuple[int, float], ...]
    whole: bool
    """Whether the saved weights are whole; otherwise they are ZeRO's shards in the last checkpoint."""


def write_record(record: TrainingJob | TrainingResult, path: Path) -> None:
    write_config(asdict(record), path, force=True)


def read_job(path: Path) -> TrainingJob:
    """The job in a file. Raises ConfigFileError if there is none."""
    values = read_json_object(path, error=ConfigFileError, what="a training's job", fix=_REPAIR)
    try:
        return from_json(TrainingJob, values)
    except (TypeError, ValueError, AttributeError) as problem:
        raise ConfigFileError(
            phrase("{path}: not a training's job", path=path),
            why="another version of ds-advise may have written it",
            fix=_REPAIR,
        ) from problem


def read_result(path: Path) -> TrainingResult | None:
    """The result that the training wrote; None if it wrote none."""
    return from_json(TrainingResult, json.loads(path.read_bytes())) if path.exists() else None
