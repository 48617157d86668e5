"""A job's duration and cost in sentences."""

from __future__ import annotations

from ...estimators.time.job import HOUR_S, JobDuration, Price
from .units import counted_noun, gib, percent, seconds

_LEAST_WASTE = 0.05
"""Least share of a micro batch's time in padding and waiting that is mentioned."""


def hours(duration_s: float) -> str:
    """Return `3.2 h` with two digits, `12 h`, `1,240 h`; less than two hours in minutes. Whole hours and minutes, which
    limits have, are exact: `1 h`, `1 min`."""
    for unit, name in ((HOUR_S, "h"), (60, "min")):
        if duration_s > 0 and duration_s % unit == 0 and (name == "h" or duration_s < 2 * HOUR_S):
            return f"{duration_s / unit:,.0f} {name}"
    if duration_s < 2 * HOUR_S:
        return f"{duration_s / 60:.0f} min" if duration_s >= 100 else seconds(duration_s)
    value = duration_s / HOUR_S
    return f"{value:.1f} h" if value < 9.95 else f"{value:,.0f} h"


def durations(*durations_s: float) -> list[str]:
    """Return durations that stand beside each other in one unit, that of the longest: `1.8 h`, `2.3 h`, with two
    digits."""
    longest_s = max(durations_s, default=0.0)
    size, unit = (HOUR_S, "h") if longest_s >= 2 * HOUR_S else (60, "min") if longest_s >= 100 else (1, "s")
    values = [duration_s / size for duration_s in durations_s]
    return [f"{value:,.0f} {unit}" if value >= 9.95 else f"{value:#.2g} {unit}" for value in values]


def money(amount: float, currency: str, *, like: float | None = None) -> str:
    """Return `$64.00`, `$6.37`, `1,240`. like: an amount beside it, whose precision it has."""
    figure = f"{amount:,.2f}" if (amount if like is None else like) < 99.995 else f"{amount:,.0f}"
    return f"{currency}{figure}" if len(currency) < 2 else f"{figure} {currency.upper()}"


def price_label(price: Price) -> str:
    cost = money(price.per_hour, price.currency)
    return f"{cost} per GPU and hour" if price.unit == "gpu" else f"{cost} per node and hour"


def whole_job(duration: JobDuration, price: Price | None) -> tuple[str, str]:
    """Return the hours, and their interval, steps, GPU-hours and cost as words."""
    between, steps, value = duration.duration_s_range, duration.steps, duration.gpu_hours
    count = f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"
    gpu_hours = f"{count} GPU-hours"
    if duration.cluster.gpu.is_cpu:
        gpu_hours = f"{count} rank-hours"
    time, *ends_of_time = durations(duration.duration_s, *(between or ()))
    interval = between and figure_and_interval(time, (ends_of_time[0], ends_of_time[1]), named=True)
    words = f"{counted_noun(steps, 'step')}, {gpu_hours}"
    if interval and interval != time:
        words = f"{interval.removeprefix(time).lstrip()}, {words}"
    if price is None:
        return time, f"{words} (--price adds the cost)"
    paid = money_and_interval(duration.cost(price), duration.cost_range(price), price.currency)
    return time, f"{words}, {paid} at {price_label(price)}"


def money_and_interval(amount: float, ends: tuple[float, float] | None, currency: str, *, named: bool = False) -> str:
    """Return an amount with its interval in the same precision: `$106 ($91 to $141)`. named: describes the interval."""
    interval = ends and (money(ends[0], currency, like=amount), money(ends[1], currency, like=amount))
    return figure_and_interval(money(amount, currency), interval, named=named)


def figure_and_interval(figure: str, ends: tuple[str, str] | None, *, named: bool = False) -> str:
    """Return a figure with its interval in brackets if the ends differ. named: describes the interval."""
    if ends is None or ends[0] == ends[1]:
        return figure
    if named:
        return f"{figure} ({ends[0]} to {ends[1]} in 80 % of runs)"
    return f"{figure} ({ends[0]} to {ends[1]})"


def parts_sentences(duration: JobDuration, *, packing_helps: bool) -> list[str]:
    """Return sentences on the parts of the duration, the waste by padding and waiting, and how often to save.
    packing_helps: whether `--packing` would reduce the padding."""
    saving = duration.saving
    parts = [
        f"training {hours(duration.training_s)}",
        f"loading the model {hours(duration.loading_s)}",
        f"{counted_noun(saving.count, 'checkpoint')} {hours(saving.total_s)}",
    ]
    if duration.evaluation_s:
        parts.append(f"evaluation {hours(duration.evaluation_s)}")
    found = [f"Counted: {', '.join(parts)}."]
    if duration.mean_len < (1 - _LEAST_WASTE) * duration.timed_len:
        waste = (
            f"Samples have {duration.mean_len:,.0f} tokens on average and take the time of {duration.timed_len:,}: "
            f"{percent(duration.padding)} of the computation is padding, and all ranks wait for the longest sample"
        )
        if packing_helps:
            waste = f"{waste}; --packing fills samples with several rows"
        found.append(f"{waste}.")
    size, write = gib(saving.size_bytes), hours(saving.write_s)
    if saving.count == 1:
        one = f"A checkpoint of {size} GiB takes {write} to write; one at the end is enough."
        return [*found, one]
    every = max(1, round(saving.interval_s / duration.step_s))
    several = (
        f"A checkpoint of {size} GiB takes {write} to write; one every {hours(saving.interval_s)} ({every:,} steps) "
        "minimizes lost time."
    )
    return [*found, several]
