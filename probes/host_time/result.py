"""What a measurement of host time answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounts:
    """What the host does in one pass, counted by a dispatch mode in a run of its own."""

    kernels: int = 0
    """Dispatched operations that would launch a kernel."""
    views: int = 0
    """Dispatched operations that only describe a tensor anew."""
    hook_kernels: int = 0
    """The same inside DeepSpeed's hooks around modules and gradients; not in `kernels`."""
    hook_views: int = 0
    calls: int = 0
    """Calls of an `nn.Module`; stage 3 hooks each of them."""
    gathered: int = 0
    """Parameters that stage 3 gathers."""
    gathers: int = 0
    """Collectives that gather them."""
    reduced: int = 0
    """Gradients that a hook of DeepSpeed takes."""
    buckets: int = 0
    """Buckets of gradients that are reduced."""


PHASES = ("forward", "recompute", "backward", "last backward", "step")
"""Passes that are counted apart; the backward pass of a step's last micro batch may reduce gradients that the others
keep, and what is recomputed within a backward pass is counted there only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Host seconds of one micro batch, and of the optimizer's step; medians over the measured steps."""

    forward_s: float
    backward_s: float
    """Of a micro batch that is not the last of its step, what it recomputes included."""
    last_backward_s: float
    step_s: float
    """Of `engine.step()` after the last micro batch."""
    counts: Mapping[str, HostCounts]
    """By phase (`PHASES`)."""
    parameters: int
    """Trained tensors."""
    score_s: float
    """The core's single-thread score around the measurement (`score.py`), to which all seconds belong."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> HostTime:
        counts = {phase: HostCounts(**found) for phase, found in values["counts"].items()}
        return cls(**{**values, "counts": counts})
