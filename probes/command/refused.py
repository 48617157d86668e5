"""Trainings without DeepSpeed are refused where they begin: what the answer would be about does not exist there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any, NoReturn

from ...estimators.errors import DsAdviseError
from ..run_errors import way_to_deepspeed
from .imports import on_import


class PlainTrainingError(DsAdviseError):
    """The script trains with torch's own data parallelism."""


def _callers() -> Iterator[str]:
    """Files of the functions that are running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def install() -> None:
    """Let torch's own data parallelism raise DsAdviseError."""
    on_import("torch.nn.parallel", lambda module: _refuse(module.DistributedDataParallel, "__init__"))
    on_import("torch.distributed.fsdp", _refuse_fsdp)


def _refuse_fsdp(module: ModuleType) -> None:
    _refuse(module.FullyShardedDataParallel, "__init__")
    if hasattr(module, "fully_shard"):  # torch 2.6
        _refuse(module, "fully_shard")


def _refuse(owner: Any, name: str) -> None:
    called = owner.__name__ if name == "__init__" else name

    def refuse(*_: Any, **__: Any) -> NoReturn:
        why, fix = way_to_deepspeed(takes_config=any("/accelerate/" in file for file in _callers()))
        raise PlainTrainingError(f"the script trains without DeepSpeed, by torch's {called}", why=why, fix=fix)

    setattr(owner, name, refuse)
