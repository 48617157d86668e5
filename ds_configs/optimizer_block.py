"""DeepSpeed's `optimizer` block for each optimizer, and which of them are created by the training script instead."""

from __future__ import annotations

from typing import Any

from ..estimators.errors import WorkloadError
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.plan import Plan

_DEFAULTS: dict[str, Any] = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""TrainingArguments' defaults, so that both flavours train alike."""

_TYPE = {
    "adamw": "AdamW",
    "adam": "Adam",
    "lamb": "Lamb",
    "muon": "Muon",
    "adagrad": "Adagrad",
    "lion": "Lion",
    "sgd": "SGD",
}
"""Optimizers that DeepSpeed creates, with its name for them (runtime/engine.py `_configure_basic_optimizer`)."""

CLIENT_OPTIMIZERS = {"adamw8bit": "adamw_bnb_8bit", "adafactor": "adafactor"}
"""Optimizers that DeepSpeed does not know, with the Trainer's name for them: the script creates them."""

_TRAINERS_OWN = {
    "adamw": ("lr", "betas", "eps", "weight_decay"),
    "adam": ("lr", "betas", "eps", "weight_decay"),
    "lamb": ("lr", "betas", "eps", "weight_decay"),
    "muon": ("lr", "betas", "eps", "weight_decay"),
    "adagrad": ("lr", "eps", "weight_decay"),
    # Lion's betas are not Adam's, and the Trainer would put its adam_beta1 and adam_beta2 for "auto".
    "lion": ("lr", "weight_decay"),
    "sgd": ("lr", "weight_decay"),
}
"""The parameters of each optimizer that TrainingArguments has too."""

_FURTHER: dict[str, dict[str, Any]] = {
    "adam": {"adam_w_mode": False},  # without it DeepSpeed's Adam is AdamW
    "muon": {"momentum": 0.95},
}

_TESTED = ("adamw", "adam", "adagrad", "lion", "muon")
"""What ZeRO accepts without zero_allow_untested_optimizer (runtime/zero/utils.py `ZERO_SUPPORTED_OPTIMIZERS`)."""


def optimizer_block(optimizer: str, plan: Plan, *, auto: bool) -> dict[str, Any]:
    """The top-level keys that configure the optimizer: `optimizer` and the permissions that it needs.

    auto: leave what TrainingArguments also states to the Trainer.
    With the states in RAM, DeepSpeed turns AdamW and Adam into DeepSpeedCPUAdam, Adagrad and Lion into their CPU forms.

    Raises WorkloadError where the optimizer cannot run with its states in host RAM.
    """
    if plan.offload_optimizer != "none" and OPTIMIZERS[optimizer].cpu_state_bytes is None:
        raise WorkloadError(
            f"{optimizer} cannot run with its states in host RAM", why="DeepSpeed has no CPU form of it",
            fix="choose adamw, or a plan that does not offload the optimizer")
    block: dict[str, Any] = {}
    if optimizer in _TYPE:
        params = {name: "auto" if auto else _DEFAULTS[name] for name in _TRAINERS_OWN[optimizer]}
        block["optimizer"] = {"type": _TYPE[optimizer], "params": params | _FURTHER.get(optimizer, {})}
    if plan.zero_stage and optimizer not in _TESTED:
        block["zero_allow_untested_optimizer"] = True
    return block
