"""What a measurement of host time is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...estimators.plan import Offload

Checkpointing = Literal["none", "non-reentrant", "reentrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimeCase:
    """One model's structure under one way of training it, in JSON's types."""

    model: Mapping[str, Any]
    """A transformers `config.json`, or its `model_type` alone; its widths are replaced (`narrow`)."""
    layers: int
    zero_stage: Literal[0, 1, 2, 3]
    offload_optimizer: Offload = "none"
    offload_param: Offload = "none"
    lora_targets: tuple[str, ...] | None = None
    """Ends of module names, ("all-linear",) for every linear layer; None: all parameters are trained."""
    checkpointing: Checkpointing = "none"
    accumulation: int = 2
    """Micro batches of a step, at least 2; the last one may reduce gradients that the others only sum."""
    width: int = 16
    """Hidden size. Wide enough for two heads and narrow enough that arithmetic takes no time."""
    world_size: int = 8
    """Ranks that are pretended."""
    reduce_bucket: int | None = None
    """Elements of a bucket of gradients; None: the square of the width, as transformers fills `auto`."""
    gathers: bool = True
    """Stage 3 gathers the weights of linear layers; False: everything is small enough to stay on every rank."""
