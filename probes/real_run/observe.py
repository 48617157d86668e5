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
from ..command.plain_training import follow
from ..command.words import launcher_of, program_of
from ..recording.engine_hooks import PHASES
from . import cpu, environment, extension_lock, trainer, weights
from .engine import RankObserver
from .process import ObservedProcess
from .solo import join_alone


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
    observer = RankObserver(process, settings)
    process.on_end = observer.close
    if "RANK" in os.environ and not _is_launcher():
        process.become_rank(int(os.environ["RANK"]))
        observer.enter("load", iteration=0)
    else:
        on_import("subprocess", process.report_children)
    _change("deepspeed.runtime.engine", observer.install)
    _change("deepspeed.runtime.pipe.engine", observer.install_pipeline)
    for name in PHASES:
        _change(name, observer.install_phases)
    follow(lambda called, takes_config: process.note({"plain": called, "takes_config": takes_config}), _change)
    _change("torch.utils.file_baton", lambda _: extension_lock.install(process.note))
    if settings.solo is not None:
        solo = settings.solo
        _change("torch.distributed.distributed_c10d", lambda module: join_alone(module, solo))
    if settings.steps is None:
        _change("transformers.trainer", lambda module: trainer.add_callback(module, process.note, process.folder))
    else:
        _change("torch._tensor", weights.draw_once)
        _change("transformers.modeling_utils", weights.build_without_files)
        _change(
            "torch.nn.modules.module",
            lambda module: module.register_module_parameter_registration_hook(observer.first_parameter),
        )
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        if settings.solo is None:
            _change("torch.distributed", observer.collectives.install)
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


def _change(name: str, change: Callable[[ModuleType], None]) -> None:
    """Change a module when it is imported."""

    def changed(module: ModuleType) -> None:
        with contextlib.suppress(Exception):
            change(module)

    on_import(name, changed)
