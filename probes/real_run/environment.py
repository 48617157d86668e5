"""The environment of an observed command. The observation needs no word in the command: `PYTHONPATH` begins with the
folder `bootstrap`, whose `sitecustomize` Python runs at its start, and one variable holds the settings.

The deepspeed launcher passes variables whose names begin with PYTHON to nodes that it reaches by ssh (deepspeed 0.19.8
launcher/runner.py EXPORT_ENVS).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

_SETTINGS = "PYTHON_DS_ADVISE"
_RANK_PROCESS = "PYTHON_DS_ADVISE_RANK"
"""Process id of the rank above a process: what a rank starts is no rank."""

_BOOTSTRAP = Path(__file__).with_name("bootstrap")


@dataclass(frozen=True, kw_only=True)
class Solo:
    """One rank of a job that runs alone."""

    rank: int
    world_size: int
    ranks_per_node: int


@dataclass(frozen=True)
class Settings:
    """What an observed process is told."""

    folder: str
    """Folder of the records, on every node: `rank<R>.log` and `rank<R>.jsonl`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Set in every process: for launchers that do not pass the environment to other nodes."""
    config_file: str | None = None
    """A DeepSpeed configuration for a script that names none."""
    steps: int | None = None
    """Optimizer steps after which a rank reports and waits for its end; None trains to the end."""
    memory_limit_bytes: int | None = None
    """Memory of each rank in addition to its libraries; None for no limit."""
    solo: Solo | None = None


def observed_environment(settings: Settings, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` for a command whose ranks are observed."""
    path = os.pathsep.join(filter(None, (str(_BOOTSTRAP), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path, _SETTINGS: json.dumps(asdict(settings))}


def own_settings() -> Settings | None:
    """The settings of this process; None if it is not observed, or was started by a rank."""
    text = os.environ.get(_SETTINGS)
    if text is None or os.environ.get(_RANK_PROCESS, str(os.getpid())) != str(os.getpid()):
        return None
    given = json.loads(text)
    return Settings(**{**given, "solo": given["solo"] and Solo(**given["solo"])})


def mark_as_rank() -> None:
    os.environ[_RANK_PROCESS] = str(os.getpid())
