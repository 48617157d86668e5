"""Trainings without DeepSpeed are refused where they begin: what the answer would be about does not exist there."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from ...estimators.errors import DsAdviseError
from .imports import on_import


class PlainTrainingError(DsAdviseError):
    """The script trains with torch's own data parallelism."""


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
        raise PlainTrainingError(
            f"the script trains without DeepSpeed, by torch's {called}",
            fix="name a configuration, which accelerate and the Trainer then use: "
            "ds-advise dry-run ds_config.json --gpus ... -- COMMAND",
        )

    setattr(owner, name, refuse)
