"""DeepSpeed's `optimizer` block for each optimizer, and which of them are created by the training script instead."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..estimators.errors import WorkloadError
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.plan import Plan

_DEFAULTS: dict[str, Any] = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""TrainingArguments' defaults, so that both flavours train alike."""

_FILLED = ("lr", "weight_decay")
"""What both the Trainer and accelerate fill in. For betas and eps accelerate refuses `auto`, and the Trainer compares
the numbers with its own and says where they differ."""


class _Block(NamedTuple):
    """An optimizer that DeepSpeed creates (runtime/engine.py `_configure_basic_optimizer`, 0.19.8)."""

    type: str
    """DeepSpeed's name for it, or a class of torch.optim."""
    shared: tuple[str, ...] = ("lr", "betas", "eps", "weight_decay")
    """Parameters that TrainingArguments has too."""
    further: dict[str, Any] = {}  # noqa: RUF012  never changed
    """Parameters that DeepSpeed needs besides."""
    tested: bool = True
    """ZeRO accepts it as it is (runtime/zero/utils.py `ZERO_SUPPORTED_OPTIMIZERS`)."""


_BLOCKS = {
    "adamw": _Block("AdamW"),
    "adam": _Block("Adam", further={"adam_w_mode": False}),  # without it DeepSpeed's Adam is AdamW
    "muon": _Block("Muon", further={"momentum": 0.95}),
    "adagrad": _Block("Adagrad", shared=("lr", "eps", "weight_decay")),
    # Lion's betas are not Adam's, with which the Trainer would compare them.
    "lion": _Block("Lion", shared=("lr", "weight_decay")),
    "lamb": _Block("Lamb", tested=False),
    "sgd": _Block("SGD", shared=("lr", "weight_decay"), tested=False),
    "sgd_momentum": _Block("SGD", shared=("lr", "weight_decay"), further={"momentum": 0.9}, tested=False),
}

CLIENT_OPTIMIZERS = {"adamw_8bit": "adamw_bnb_8bit", "adafactor": "adafactor"}
"""Optimizers that the script creates, because DeepSpeed does not know them, with the Trainer's name for them."""


def optimizer_block(optimizer: str, plan: Plan, *, auto: bool) -> dict[str, Any]:
    """The top-level keys that configure the optimizer: `optimizer`, and ZeRO's permission where it needs one.

    auto: leave the learning rate and the weight decay to the Trainer or accelerate.
    With the states in RAM, DeepSpeed turns AdamW and Adam into DeepSpeedCPUAdam, Adagrad and Lion into their CPU forms.

    Raises WorkloadError where the optimizer cannot run with its states in host RAM.
    """
    if plan.offload_optimizer != "none" and OPTIMIZERS[optimizer].cpu_state_bytes is None:
        raise WorkloadError(
            f"{optimizer} cannot run with its states in host RAM",
            why="DeepSpeed has no CPU form of it",
            fix="choose adamw, or a plan that does not offload the optimizer",
        )
    known = _BLOCKS.get(optimizer)
    keys: dict[str, Any] = {}
    if known is not None:
        params = {name: "auto" if auto and name in _FILLED else _DEFAULTS[name] for name in known.shared}
        keys["optimizer"] = {"type": known.type, "params": params | known.further}
    if plan.zero_stage and (known is None or not known.tested):
        keys["zero_allow_untested_optimizer"] = True
    return keys
