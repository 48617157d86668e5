"""A job's duration and cost in sentences."""

from __future__ import annotations

from ...estimators.job.duration import JobDuration
from ...estimators.job.price import HOUR_S, Price
from ..terminal.units import counted_noun, gib, percent, seconds

_TOLD_WASTE = 0.05
"""Share of a micro batch's time without a sample's own tokens from which on it is told."""


def hours(duration_s: float) -> str:
    """`3.2 h` with two digits, `12 h`, `1,240 h`; less than two hours in minutes."""
    if duration_s < 2 * HOUR_S:
        return f"{duration_s / 60:.0f} min" if duration_s >= 100 else seconds(duration_s)
    value = duration_s / HOUR_S
    return f"{value:.1f} h" if value < 9.95 else f"{value:,.0f} h"


def money(amount: float, currency: str) -> str:
    """`$64`, `$6.37`, `1,240`."""
    figure = f"{amount:.2f}" if amount < 99.995 else f"{amount:,.0f}"
    return f"{currency}{figure}" if len(currency) < 2 else f"{figure} {currency.upper()}"


def price_words(price: Price) -> str:
    return f"{money(price.per_hour, price.currency)} per {'GPU' if price.unit == 'gpu' else 'node'} and hour"


def verdict_sentence(duration: JobDuration, price: Price | None) -> str:
    """Steps, hours, GPU-hours and cost, each with its interval."""
    between = duration.duration_s_range
    time = hours(duration.duration_s) + _between(between and (hours(between[0]), hours(between[1])))
    text = f"The whole job takes about {time}: {counted_noun(duration.steps, 'step')}, {_gpu_hours(duration)}"
    if price is None:
        return f"{text} (--price makes it a cost)."
    ends = duration.cost_range(price)
    paid = money(duration.cost(price), price.currency)
    paid += _between(ends and (money(ends[0], price.currency), money(ends[1], price.currency)))
    return f"{text}, {paid} at {price_words(price)}."


def _between(ends: tuple[str, str] | None) -> str:
    """An interval in brackets, where its ends are told apart."""
    return f" ({ends[0]} to {ends[1]})" if ends is not None and ends[0] != ends[1] else ""


def _gpu_hours(duration: JobDuration) -> str:
    value = duration.gpu_hours
    figure = f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"
    return f"{figure} {'rank' if duration.cluster.gpu.is_cpu else 'GPU'}-hours"


def parts_sentences(duration: JobDuration, *, packing_helps: bool) -> list[str]:
    """What the duration consists of, what padding and waiting waste, and how often to save.

    packing_helps: whether `--packing` would leave less padding.
    """
    saving = duration.saving
    parts = [
        f"training {hours(duration.training_s)}",
        f"loading the model {hours(duration.loading_s)}",
        f"{counted_noun(saving.count, 'checkpoint')} {hours(saving.total_s)}",
    ]
    if duration.evaluation_s:
        parts.append(f"evaluation {hours(duration.evaluation_s)}")
    found = [f"Counted: {', '.join(parts)}."]
    if duration.mean_len < (1 - _TOLD_WASTE) * duration.timed_len:
        avoid = "; --packing fills samples with several rows" if packing_helps else ""
        found.append(
            f"Samples have {duration.mean_len:,.0f} tokens on average and take the time of {duration.timed_len:,}: "
            f"{percent(duration.padding)} of what is computed is padding, and all wait for the longest sample{avoid}."
        )
    every = max(1, round(saving.interval_s / duration.step_s))
    found.append(
        f"A checkpoint of {gib(saving.size_bytes)} GiB takes {hours(saving.write_s)} to write; "
        + (
            "one at the end is enough."
            if saving.count == 1
            else f"one every {hours(saving.interval_s)} ({every:,} steps) loses least."
        )
    )
    return found
