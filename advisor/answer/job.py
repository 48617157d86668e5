"""A job's duration and cost as JSON types."""

from __future__ import annotations

from typing import TypedDict

from ...estimators.time.duration import JobDuration
from ...estimators.time.price import Price


class JobJson(TypedDict):
    """The whole training under one plan."""

    steps: int
    """Optimizer steps."""
    tokens: int
    """Tokens that are trained in all epochs, padding not counted."""
    padding: float
    """Share of the computed tokens that is padding."""
    mean_sample_tokens: float
    timed_sample_tokens: int
    """Tokens of the sample that the others of a micro batch are padded to and waited for, on average."""
    duration_s: float
    duration_s_low: float | None
    """The interval to duration_s_high holds four of five true durations, as far as the step's time decides."""
    duration_s_high: float | None
    training_s: float
    loading_s: float
    """Start of the processes, and reading the weights."""
    evaluation_s: float
    checkpoints: int
    checkpoint_bytes: int
    checkpoint_write_s: float
    """For each checkpoint."""
    checkpoint_interval_s: float
    """Training between two checkpoints, as is sensible."""
    gpu_hours: float
    cost: float | None
    """Null: no price was given."""
    cost_low: float | None
    cost_high: float | None
    currency: str
    """As the price named it; "" for none."""


def job_json(duration: JobDuration, price: Price | None) -> JobJson:
    low, high = duration.duration_s_range or (None, None)
    least, most = (price and duration.cost_range(price)) or (None, None)
    saving = duration.saving
    return {
        "steps": duration.steps,
        "tokens": round(duration.tokens),
        "padding": duration.padding,
        "mean_sample_tokens": duration.mean_len,
        "timed_sample_tokens": duration.timed_len,
        "duration_s": duration.duration_s,
        "duration_s_low": low,
        "duration_s_high": high,
        "training_s": duration.training_s,
        "loading_s": duration.loading_s,
        "evaluation_s": duration.evaluation_s,
        "checkpoints": saving.count,
        "checkpoint_bytes": saving.size_bytes,
        "checkpoint_write_s": saving.write_s,
        "checkpoint_interval_s": saving.interval_s,
        "gpu_hours": duration.gpu_hours,
        "cost": None if price is None else duration.cost(price),
        "cost_low": least,
        "cost_high": most,
        "currency": "" if price is None else price.currency,
    }
