"""The folder of a training: the final model, and in it all that the training needs to go on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ...probes.file_lock import try_lock
from ..question.json_file import read_json_object
from .checkpoints import checkpoints


@dataclass(frozen=True, slots=True)
class TrainingFolder:
    """Where things lie below `path` (`--output-dir`): the model and `ds_config.json` in it, the Trainer's checkpoints
    beside them, everything else in `training/`."""

    path: Path

    @property
    def ds_config(self) -> Path:
        return self.path / "ds_config.json"

    @property
    def records(self) -> Path:
        return self.path / "training"

    @property
    def job(self) -> Path:
        return self.records / "job.json"

    @property
    def result(self) -> Path:
        return self.records / "result.json"

    @property
    def options(self) -> Path:
        return self.records / "asked.json"

    @property
    def lock(self) -> Path:
        """Held by the process that trains in the folder; it says who that is."""
        return self.records / "lock"

    @property
    def merged(self) -> Path:
        return self.path / "merged"

    def new_launch(self) -> Path:
        """The folder of the next launch."""
        number = 1 + sum(1 for _ in self.records.glob("launch-*"))
        return self.records / f"launch-{number}"

    def claim(self, *, force: bool) -> None:
        """Make the folder, or take one that is empty. With `force` an earlier training's checkpoints and records are
        removed from it, so that they are not taken for this one's; other files stay until something of the same name is
        saved.

        Raises ConfigFileError for a folder with anything in it without `force`, for one that another process trains in,
        and for one that cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.lock.exists():
                with self.lock.open("r+b") as lock:
                    self._take(lock)
            # Nobody misses what is left of a training that was refused before it began (a broken row, nothing fits).
            unused = self.records if self.options.exists() and not self.job.exists() else None
            used = any(path != unused for path in self.path.iterdir())
            if used and not force:
                advice = "pass --resume to go on with it, " if self.job.exists() else "pass "
                raise ConfigFileError(
                    f"{self.path} is not empty",
                    why="what is in it may be lost",
                    fix=f"{advice}--force to use it all the same, or another --output-dir",
                )
            for stale in (*checkpoints(self.path), self.records, self.merged):
                if stale.exists():
                    shutil.rmtree(stale)
            self.records.mkdir()
        except OSError as problem:
            raise _unwritable(self.path, problem) from problem

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in the folder, those of other hosts too where the file system has locks.

        Raises ConfigFileError where one does, and where the folder cannot be written to.
        """
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
            who = lock.read().decode(errors="replace") or "another process"
            raise ConfigFileError(
                f"{self.path} is being trained in: {who}",
                why="both would write its checkpoints",
                fix="wait for that training or stop it (Ctrl-C saves), or pass another --output-dir",
            )

    def keep_options(self, options: Mapping[str, Any]) -> None:
        """Keep the options that the training was started with, for --resume."""
        write_config(options, self.options, force=True)

    def kept_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the training that is to go on.

        given: options of this call. Raises ConfigFileError where there is no training, or one of these differs from it.
        """
        if not self.job.exists():
            raise ConfigFileError(
                f"{self.path} holds no training that could go on",
                why="it has no training/job.json",
                fix="leave --resume out, or pass the --output-dir of the one that was interrupted",
            )
        fix = "start the training without --resume"
        kept = read_json_object(self.options, error=ConfigFileError, what="a training's options", fix=fix)
        for name, value in given.items():
            if json.loads(json.dumps(value)) != kept.get(name):
                option = f"--{name.replace('_', '-')}"
                raise ConfigFileError(
                    f"{option} was {kept.get(name)} in the training that is to go on", fix=f"leave {option} out"
                )
        return kept


def _unwritable(path: Path, problem: OSError) -> ConfigFileError:
    return ConfigFileError(
        f"{path}: cannot be written to ({os.strerror(problem.errno or 0)})",
        why="the model is saved there",
        fix="pass another --output-dir",
    )
