"""Parts of the examples of rules."""

from __future__ import annotations

from typing import Any

CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-5}}
ON = {"enabled": True}


def plain(**settings: Any) -> dict[str, Any]:
    """A configuration for `deepspeed.initialize`."""
    return {"train_batch_size": 8, **settings}


def trainer(**settings: Any) -> dict[str, Any]:
    """A configuration for the Trainer, which fills the batch size."""
    return {"train_micro_batch_size_per_gpu": "auto", **settings}


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    """A zero_optimization block."""
    return {"stage": stage, **settings}
