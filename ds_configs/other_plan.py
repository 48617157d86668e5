"""The configuration that goes on with a training under another plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..estimators.plan import Plan

_OF_THE_PLAN = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
)
"""Top-level keys that a plan decides; all others are the training's own."""


def under_other_plan(own: Mapping[str, Any], written: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The configuration `written` for a plan with everything of a training's `own` that the plan does not decide:
    optimizer, scheduler, precision, logging and whatever else.

    An optimizer that the script creates itself stays its business, unless the plan offloads the states: then DeepSpeed
    must create it (0.19.8 runtime/engine.py `_configure_optimizer`, zero_force_ds_cpu_optimizer), and `torch_adam`,
    with which it would create torch's, is left out. Gradients are not clipped where they were not: a training whose
    `own` configuration says nothing of it would begin to.
    """
    kept = {name: value for name, value in own.items() if name not in _OF_THE_PLAN}
    config = {**written, **kept}
    if own and "gradient_clipping" not in own:
        config.pop("gradient_clipping", None)
    if plan.offload_optimizer == "none":
        if "optimizer" not in own:
            config.pop("optimizer", None)
        return config
    block = config.get("optimizer")
    if isinstance(block, Mapping) and isinstance(block.get("params"), Mapping):
        params = {name: value for name, value in block["params"].items() if name != "torch_adam"}
        config["optimizer"] = {**block, "params": params}
    return config
