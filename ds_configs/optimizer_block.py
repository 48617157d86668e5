"""DeepSpeed's `optimizer` block of a plan."""

from __future__ import annotations

from typing import Any

from ..estimators.errors import WorkloadError
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.plan import Plan

_DEFAULTS: dict[str, Any] = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""TrainingArguments' defaults, so that both flavours train alike."""

_FILLED = ("lr", "weight_decay")
"""Parameters that both the Trainer and accelerate fill in. For betas and eps accelerate refuses `auto`, and the Trainer
compares the numbers with its own and reports differences."""


def optimizer_block(optimizer: str, plan: Plan, *, auto: bool) -> dict[str, Any]:
    """The top-level keys that configure the optimizer: `optimizer`, and zero_allow_untested_optimizer if needed.

    auto: leave the learning rate and the weight decay to the Trainer or accelerate.
    With the states in RAM, DeepSpeed turns AdamW and Adam into DeepSpeedCPUAdam, Adagrad and Lion into their CPU forms.

    Raises WorkloadError where the optimizer cannot run with its states in host RAM.
    """
    spec = OPTIMIZERS[optimizer]
    if plan.offload_optimizer != "none" and spec.cpu_state_bytes is None:
        raise WorkloadError(
            f"{optimizer} cannot run with its states in host RAM",
            why="DeepSpeed has no CPU form of it",
            fix="choose adamw, or a plan that does not offload the optimizer",
        )
    keys: dict[str, Any] = {}
    if spec.block_type:
        params = {name: "auto" if auto and name in _FILLED else _DEFAULTS[name] for name in spec.block_params}
        keys["optimizer"] = {"type": spec.block_type, "params": params | dict(spec.extra_block_params)}
    if plan.zero_stage and not spec.tested_with_zero:
        keys["zero_allow_untested_optimizer"] = True
    return keys
