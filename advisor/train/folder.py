"""The folder of a training: the final model, the Trainer's checkpoints, and the records with which it can resume."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...ds_configs.files import CONFIG_NAME, read_json_object, write_config
from ...ds_configs.read import zero_stage_in
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import from_json
from ...estimators.workload import Workload
from ...probes.default_script import words
from ...probes.run import Device
from ...probes.scratch import try_lock
from ...validate.checkpoint import CHECKPOINT_LAYOUTS, checkpoint_step, checkpoints_in, newest_usable
from ..question.run import read_ds_config

_REPAIR = "start the training without --resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The settings of the last launch that are not in its configuration."""

    arguments: tuple[str, ...]
    """The arguments of the training script, without the configuration and the paths in the output folder, so that a
    copied or moved folder is resumed in its own files."""
    workload: Workload
    device: Device
    ranks: int
    zero_stage: int | None = None
    """Stage of the configuration; None in the folder of an earlier version."""

    @property
    def evaluates(self) -> bool:
        return "--eval_strategy" in self.arguments


class TrainingFolder:
    """Paths in `--output-dir`: the model and `ds_config.json`, the checkpoints, and the records in `training/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ds_config = path / CONFIG_NAME
        self.merged = path / "merged"
        self.state = path / "trainer_state.json"
        """The Trainer's state at the end of the training; missing until all steps are made and the model is saved."""
        self.records = path / "training"
        self.script = self.records / "train.py"
        """The training script, which can be run without this package."""
        self.job = self.records / "job.json"
        self.options = self.records / "asked.json"
        """The options of the command."""
        self.lock = self.records / "lock"
        """Lock file with the name of the process that trains in the folder, which holds the lock."""

    def script_paths(self, *, evaluates: bool = True) -> dict[str, Path]:
        """The arguments of the training script that are paths in the folder."""
        return {
            "output_dir": self.path,
            "deepspeed": self.ds_config,
            "tokenizer_name": self.records / "tokenizer",
            "train_file": self.records / "train.arrow",
            **({"eval_file": self.records / "evaluation.arrow"} if evaluates else {}),
        }

    def write_script(self) -> None:
        """Write the training script, unless the folder has one."""
        if not self.script.exists():
            shutil.copy(words.TRAINER, self.script)

    def check_files(self, job: TrainingJob) -> None:
        """Raise ConfigFileError if a file that the job reads is missing or cut off, as in a folder that was copied in
        part, or if the configuration cannot read the job's checkpoints."""
        for path in self.script_paths(evaluates=job.evaluates).values():
            problem = "is missing" if not path.exists() else "is cut off" if _is_cut_off(path) else ""
            if problem:
                raise ConfigFileError(
                    f"{path} {problem}", why="the training needs it", fix=f"copy the whole folder, or {_REPAIR}"
                )
        stage = zero_stage_in(read_ds_config(self.ds_config))
        if job.zero_stage is not None and CHECKPOINT_LAYOUTS.get(stage) != CHECKPOINT_LAYOUTS[job.zero_stage]:
            raise ConfigFileError(
                f"{self.ds_config} has ZeRO stage {stage}, the training to resume {job.zero_stage}",
                why="its checkpoints have another layout",
                fix=f'set "stage": {job.zero_stage} again',
            )

    def new_launch(self) -> Path:
        return self.records / f"launch-{1 + sum(1 for _ in self.records.glob('launch-*'))}"

    def logged(self, name: str) -> tuple[tuple[int, float], ...]:
        """(step, value) of what a finished training logged under this name, such as `loss` and `eval_loss`, including
        the steps before a resumed checkpoint."""
        history = json.loads(self.state.read_bytes())["log_history"] if self.state.exists() else []
        return tuple((entry["step"], float(entry[name])) for entry in history if name in entry)

    def newest_checkpoint(self) -> Path | None:
        return next(reversed(checkpoints_in(self.path)), None)

    def newest_usable(self, ranks: int, say: Callable[[str], None]) -> Path:
        """The last checkpoint of a training of `ranks` whose files are there and intact. Later, damaged checkpoints are
        renamed, so that no training resumes from them. Raises ConfigFileError if there is none."""
        partitioned = read_ds_config(self.ds_config)["zero_optimization"]["stage"] > 0
        usable, damaged = newest_usable(checkpoints_in(self.path), ranks=ranks if partitioned else None, say=say)
        if usable is None:
            problems = "; ".join(f"{each.folder.name}: {each.problem}" for each in damaged)
            raise ConfigFileError(
                f"{self.path} has no whole checkpoint",
                why=problems or "the training ended before the first one",
                fix="start it again with --force instead of --resume",
            )
        for each in damaged:
            aside = _renamed(each.folder, "damaged")
            say(f"{each.folder.name} is damaged: {each.problem}; it is now {aside.name}")
        return usable.folder

    def set_aside(self, step: int, say: Callable[[str], None]) -> None:
        """Rename the checkpoints of this step and later ones, whose weights may be NaN."""
        for checkpoint in checkpoints_in(self.path):
            if checkpoint_step(checkpoint) >= step:
                aside = _renamed(checkpoint, "nan")
                say(f"{checkpoint.name} may hold weights that are NaN; it is now {aside.name}")

    def in_use(self) -> ConfigFileError | None:
        """Why a new training without --force is refused the folder: it is not empty. None if it is not refused."""
        # The records of a training that was refused before its start (a broken row, nothing fits) are not needed.
        unused = self.records if self.options.exists() and not self.job.exists() else None
        if not self.path.is_dir() or all(path == unused for path in self.path.iterdir()):
            return None
        advice = "pass --resume to continue it, " if self.job.exists() else "pass "
        return ConfigFileError(
            f"{self.path} is not empty",
            why="its files may be lost",
            fix=f"{advice}--force to use it anyway, or another --output-dir",
        )

    def claim(self, *, force: bool, inputs: Collection[Path] = ()) -> None:
        """Make the folder, or take an empty one. With `force` the checkpoints and records of an earlier training are
        removed, so that they are not attributed to this training; other files stay until they are overwritten.

        inputs: files and folders that the training reads.

        Raises ConfigFileError for a folder that is not empty without `force`, that another process trains in, or that
        cannot be written to, and if an input would be removed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.lock.exists():
                with self.lock.open("r+b") as lock:
                    self._acquire(lock)
            used = None if force else self.in_use()
            if used is not None:
                raise used
            earlier = [path for path in (*checkpoints_in(self.path), self.records, self.merged) if path.exists()]
            for path in inputs:
                if any(path.resolve().is_relative_to(stale.resolve()) for stale in earlier):
                    raise ConfigFileError(
                        f"--force would remove {path}",
                        why=f"the checkpoints and results of the earlier training in {self.path} are removed",
                        fix="move it to another folder, or pass another --output-dir",
                    )
            for stale in earlier:
                if stale.is_symlink():  # to a larger disk, whose files stay
                    stale.unlink()
                else:
                    shutil.rmtree(stale)
            self.records.mkdir()
            self.write_script()
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder, including those of other hosts if the file system has
        locks. Raises ConfigFileError if another process trains in the folder or it cannot be written to."""
        try:
            lock = self.lock.open("a+b")
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem
        with lock:
            self._acquire(lock)
            lock.truncate(0)
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            lock.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}".encode())
            lock.flush()
            try:
                yield
            finally:
                lock.truncate(0)

    def _acquire(self, lock: BinaryIO) -> None:
        try:
            taken = try_lock(lock.fileno())
        except OSError:  # a file system without locks
            return
        if not taken:
            lock.seek(0)
            holder = lock.read().decode(errors="replace") or "another process"
            raise ConfigFileError(
                f"{self.path} is being trained in: {holder}",
                why="both would write its checkpoints",
                fix="wait for that training or stop it (Ctrl-C saves), or pass another --output-dir",
            )

    def kept_options(self, passed: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the training to resume. passed: options of this call. Raises ConfigFileError if there is no
        training, or if a passed option differs from the training's."""
        if not self.job.exists():
            raise ConfigFileError(
                f"{self.path} holds no training to resume",
                why="it has no training/job.json",
                fix="leave --resume out, or pass the --output-dir of the interrupted training",
            )
        kept = read_json_object(self.options, error=ConfigFileError, what="a training's options", fix=_REPAIR)
        for name, value in passed.items():
            if json.loads(json.dumps(value)) != kept.get(name):
                option = f"--{name.replace('_', '-')}"
                what = f"{option} was {kept.get(name)} in the training to resume"
                raise ConfigFileError(what, fix=f"leave {option} out")
        return kept

    def write_job(self, job: TrainingJob) -> None:
        write_config(asdict(job), self.job, force=True)

    def read_job(self) -> TrainingJob:
        """Raises ConfigFileError if the file does not hold a job."""
        values = read_json_object(self.job, error=ConfigFileError, what="a training's job", fix=_REPAIR)
        try:
            return from_json(TrainingJob, values)
        except (TypeError, ValueError, AttributeError) as problem:
            raise self.not_understood(self.job) from problem

    @staticmethod
    def not_understood(path: Path) -> ConfigFileError:
        return ConfigFileError(
            f"{path}: not a record of a training", why="another version of ds-advise may have written it", fix=_REPAIR
        )


def _renamed(checkpoint: Path, why: str) -> Path:
    """The new path of a checkpoint that no training may resume from."""
    aside = checkpoint.with_name(f"{why}-{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of an Arrow stream, which is the format of `datasets` (Arrow columnar format, IPC streaming format)."""


def _is_cut_off(path: Path) -> bool:
    if path.suffix != ".arrow":
        return False
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - len(_END_OF_STREAM)))
        return stream.read() != _END_OF_STREAM


def _unwritable(path: Path, problem: OSError) -> ConfigFileError:
    return ConfigFileError(
        f"{path}: cannot be written to ({os.strerror(problem.errno or 0)})",
        why="the model is saved there",
        fix="pass another --output-dir",
    )
