"""A ds_config without what would reach beyond a probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor", "flops_profiler")


def harmless(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The configuration without what would reach beyond this process and does not change memory.

    DeepSpeed clears and creates its swap folders below `nvme_path`, where a real training may be running: they go into
    `folder` instead. Monitors would write files or open connections; the profiler would print.
    """
    changed = {key: value for key, value in config.items() if key not in _MONITORS}
    zero = changed.get("zero_optimization")
    if isinstance(zero, dict):
        changed["zero_optimization"] = {
            key: {**value, "nvme_path": folder} if isinstance(value, dict) and value.get("nvme_path") else value
            for key, value in zero.items()
        }
    return changed
