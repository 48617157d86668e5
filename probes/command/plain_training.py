"""Trainings without DeepSpeed, noticed where they begin: a dry run refuses them, and an observed command notes them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NoReturn

from ...estimators.errors import DsAdviseError
from ..run_errors import way_to_deepspeed
from .imports import Change, on_import

Noticed = Callable[[str, bool], None]
"""Called with the name of torch's function, and whether accelerate or a Trainer calls it, which would use a
configuration of DeepSpeed that the command does not name."""


class PlainTrainingError(DsAdviseError):
    """The script trains with torch's own data parallelism. called, takes_config: as in `Noticed`."""

    def __init__(self, called: str, *, takes_config: bool) -> None:
        why, fix = way_to_deepspeed(takes_config=takes_config)
        super().__init__(f"the script trains without DeepSpeed, by torch's {called}", why=why, fix=fix)
        self.takes_config = takes_config


def refuse(called: str, takes_config: bool) -> NoReturn:
    raise PlainTrainingError(called, takes_config=takes_config)


def follow(noticed: Noticed, change: Callable[[str, Change], None] = on_import) -> None:
    """Call `noticed` before torch's own data parallelism takes a module. change: how a module is changed."""
    change("torch.nn.parallel", lambda module: _follow(noticed, module.DistributedDataParallel, "__init__"))
    change("torch.distributed.fsdp", lambda module: _follow_fsdp(noticed, module))


def _follow_fsdp(noticed: Noticed, module: ModuleType) -> None:
    _follow(noticed, module.FullyShardedDataParallel, "__init__")
    if hasattr(module, "fully_shard"):  # torch 2.6
        _follow(noticed, module, "fully_shard")


def _follow(noticed: Noticed, owner: Any, name: str) -> None:
    called, method = owner.__name__ if name == "__init__" else name, getattr(owner, name)

    @functools.wraps(method)
    def run(*arguments: Any, **options: Any) -> Any:
        noticed(called, any("/accelerate/" in file for file in _callers()))
        return method(*arguments, **options)

    setattr(owner, name, run)


def _callers() -> Iterator[str]:
    """Files of the functions that are running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
