"""The request for a dry run of a command, which is pickled for the subprocess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...estimators.hardware import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedSettings:
    """Settings in place of the script's own, for changes that the user would make in its code."""

    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainingArguments."""
    ds_config: Mapping[str, Any] | None = None
    """DeepSpeed's configuration, for one that the code makes."""
    loader_batches: Mapping[str, int] = field(default_factory=dict)
    """Batch size of a loader that the script makes -> the new one."""
    checkpointing: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command of the user on a simulated cluster."""

    words: tuple[str, ...]
    """The command as it is typed behind `--`."""
    folder: Path
    """The user's working folder."""
    cluster: Cluster
    config_file: Path | None = None
    """A DeepSpeed configuration for a script that names none."""
    is_default_config: bool = False
    """Whether the user did not name `config_file`: a script that names another one is then no error."""
    rank: int | None = None
    """None for the rank with the fullest GPU."""
    iterations: int = 8
    """Maximum number of optimizer steps; the run stops after a step that repeats."""
    expandable_segments: bool = True
    longest: bool = False
    """Train the longest batch of the data."""
    rows: int | None = None
    """Rows of each data set that are read; None for a number that suffices."""
    offline: bool = False
    evaluated_batches: int = 3
    """Batches of an evaluation: logits kept for metrics show how they grow."""
    is_default_script: bool = False
    """Whether the command is one of `default_script`. Completions then have full length at once, and Liger's losses are
    simulated without the package."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of files that the command finds in addition to the user's, by absolute path."""
    forced: ForcedSettings | None = None
    variables: Mapping[str, str] | None = None
    """The environment of a process that the command started for the training; None for the user's own."""

    @property
    def data_rows(self) -> int | None:
        """Rows of each data set that are read: enough for some steps of all ranks, and not the millions of a corpus;
        None for all, among which the longest batch is looked for."""
        if self.longest and self.rows is None:
            return None
        return self.rows or max(2_000, 64 * self.cluster.world_size)
