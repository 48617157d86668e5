"""Observation of one process of a command, started by `bootstrap/sitecustomize.py`.

A process with RANK, or that makes a DeepSpeed engine, is a rank: its output goes to `rank<R>.log` in the records'
folder, and its events to `rank<R>.jsonl`. A launcher reports how the ranks that it started ended. Modules are changed
when the command imports them; nothing is imported for this, and a script that uses none of them is not observed. An
error in the observation must not make the script fail.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ...estimators.errors import DsAdviseError
from ..command.imports import on_import
from ..command.words import launcher_of, program_of
from . import cpu, environment, extension_lock, trainer
from .process import ObservedProcess


def start() -> None:
    """Observe this process, if its environment asks for it."""
    settings = environment.own_settings()
    if settings is None:
        return
    os.environ.update(settings.variables)
    if settings.config_file is not None:
        with contextlib.suppress(Exception):
            _give_config(Path(settings.config_file))
    process = ObservedProcess(settings)
    if "RANK" in os.environ and not _is_launcher():
        process.become_rank(int(os.environ["RANK"]))
    else:
        on_import("subprocess", process.report_children)
    _change("deepspeed.runtime.engine", lambda module: _observe_engine(module, process))
    _change("transformers.trainer", lambda module: trainer.add_callback(module, process.note, process.folder))
    _change("torch.utils.file_baton", lambda _: extension_lock.install())
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        _change("accelerate.state", cpu.count_ranks)
        _change("transformers.training_args", cpu.train_on_cpu)


def _give_config(file: Path) -> None:
    from ..command.given_config import give_config  # few commands need it

    give_config(file)


def _is_launcher() -> bool:
    """Whether this process only starts ranks: it may have RANK as well, the number of a node."""
    with contextlib.suppress(DsAdviseError):
        program = program_of(sys.orig_argv)
        return launcher_of(program) is not None or program.target == f"{__package__}.supervisor"
    return False


def _observe_engine(module: ModuleType, process: ObservedProcess) -> None:
    from . import engine  # imports torch

    engine.observe(module, process)


def _change(name: str, change: Callable[[ModuleType], None]) -> None:
    """Change a module when it is imported."""

    def changed(module: ModuleType) -> None:
        with contextlib.suppress(Exception):
            change(module)

    on_import(name, changed)
