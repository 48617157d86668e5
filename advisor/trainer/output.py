"""The output folder: the final model, and in it all that a training needs to go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ..question.json_file import read_json_object
from .checkpoints import checkpoints
from .rank import RESULT


@dataclass(frozen=True, slots=True)
class Output:
    """Where things lie below `path`: the model and `ds_config.json` in it, the Trainer's checkpoints beside them,
    everything else in `training/`."""

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
        return self.records / RESULT

    @property
    def asked(self) -> Path:
        return self.records / "asked.json"

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

        Raises ConfigFileError for a folder with anything in it without `force`, and for one that cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # What a training leaves that was refused before it began (a broken row, nothing that fits) is nobody's
            # loss.
            unused = self.records if self.asked.exists() and not self.job.exists() else None
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
            raise ConfigFileError(
                f"{self.path}: cannot be written to ({os.strerror(problem.errno or 0)})",
                why="the model is saved there",
                fix="pass another --output-dir",
            ) from problem

    def write_asked(self, asked: Mapping[str, Any]) -> None:
        write_config(asked, self.asked, force=True)

    def read_asked(self) -> dict[str, Any]:
        """The options of the training that is to go on. Raises ConfigFileError where there is none."""
        if not self.job.exists():
            raise ConfigFileError(
                f"{self.path} holds no training that could go on",
                why="it has no training/job.json",
                fix="leave --resume out, or pass the --output-dir of the one that was interrupted",
            )
        return read_json_object(
            self.asked, error=ConfigFileError, what="a training's options", fix="start the training without --resume"
        )


def differing(asked: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(option, what it was) of those given `now` that differ from the training's own."""
    return [(name, asked.get(name)) for name, value in now.items() if json.loads(json.dumps(value)) != asked.get(name)]
