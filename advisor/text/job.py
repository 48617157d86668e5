"""A job's duration and cost in sentences."""

from __future__ import annotations

from ...estimators.phrase import Phrase, listed, phrase
from ...estimators.time.job import HOUR_S, JobDuration, Price
from .units import gib, percent, seconds

_LEAST_WASTE = 0.05
"""Least share of a micro batch's time in padding and waiting that is mentioned."""


def hours(duration_s: float) -> str:
    """Return `3.2 h` with two digits, `12 h`, `1,240 h`; less than two hours in minutes."""
    if duration_s < 2 * HOUR_S:
        return f"{duration_s / 60:.0f} min" if duration_s >= 100 else seconds(duration_s)
    value = duration_s / HOUR_S
    return f"{value:.1f} h" if value < 9.95 else f"{value:,.0f} h"


def money(amount: float, currency: str) -> str:
    """Return `$64`, `$6.37`, `1,240`."""
    figure = f"{amount:.2f}" if amount < 99.995 else f"{amount:,.0f}"
    return f"{currency}{figure}" if len(currency) < 2 else f"{figure} {currency.upper()}"


def price_label(price: Price) -> Phrase:
    cost = money(price.per_hour, price.currency)
    return (
        phrase("{cost} per GPU and hour", cost=cost)
        if price.unit == "gpu"
        else phrase("{cost} per node and hour", cost=cost)
    )


def verdict_sentence(duration: JobDuration, price: Price | None) -> Phrase:
    """Return steps, hours, GPU-hours and cost, each with its interval."""
    between, steps, value = duration.duration_s_range, duration.steps, duration.gpu_hours
    count = f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"
    gpu_hours = phrase("{count} GPU-hours", count=count)
    if duration.cluster.gpu.is_cpu:
        gpu_hours = phrase("{count} rank-hours", count=count)
    text = phrase(
        "The whole job takes about {time}: {steps}, {gpu_hours}",
        time=with_ends(hours(duration.duration_s), between and (hours(between[0]), hours(between[1])), named=True),
        steps=phrase("{count} steps", count=f"{steps:,}") if steps != 1 else phrase("{count} step", count=steps),
        gpu_hours=gpu_hours,
    )
    if price is None:
        return phrase("{job} (--price adds the cost).", job=text)
    ends = duration.cost_range(price)
    paid = money(duration.cost(price), price.currency)
    paid = with_ends(paid, ends and (money(ends[0], price.currency), money(ends[1], price.currency)))
    return phrase("{job}, {cost} at {price}.", job=text, cost=paid, price=price_label(price))


def with_ends(figure: str, ends: tuple[str, str] | None, *, named: bool = False) -> str:
    """Return a figure with its interval in brackets if the ends differ. named: describes the interval."""
    if ends is None or ends[0] == ends[1]:
        return figure
    if named:
        return phrase("{figure} ({low} to {high} in 80 % of runs)", figure=figure, low=ends[0], high=ends[1])
    return phrase("{figure} ({low} to {high})", figure=figure, low=ends[0], high=ends[1])


def parts_sentences(duration: JobDuration, *, packing_helps: bool) -> list[Phrase]:
    """Return sentences on the parts of the duration, the waste by padding and waiting, and how often to save.
    packing_helps: whether `--packing` would reduce the padding."""
    saving = duration.saving
    checkpoints = {"count": f"{saving.count:,}", "time": hours(saving.total_s)}
    parts = [
        phrase("training {time}", time=hours(duration.training_s)),
        phrase("loading the model {time}", time=hours(duration.loading_s)),
        phrase("{count} checkpoint {time}", **checkpoints)
        if saving.count == 1
        else phrase("{count} checkpoints {time}", **checkpoints),
    ]
    if duration.evaluation_s:
        parts.append(phrase("evaluation {time}", time=hours(duration.evaluation_s)))
    found = [phrase("Counted: {parts}.", parts=listed(parts))]
    if duration.mean_len < (1 - _LEAST_WASTE) * duration.timed_len:
        fields = {
            "mean": f"{duration.mean_len:,.0f}",
            "timed": f"{duration.timed_len:,}",
            "share": percent(duration.padding),
        }
        waste = phrase(
            "Samples have {mean} tokens on average and take the time of {timed}: {share} of the computation is "
            "padding, and all ranks wait for the longest sample",
            **fields,
        )
        if packing_helps:
            waste = phrase("{waste}; --packing fills samples with several rows", waste=waste)
        found.append(phrase("{words}.", words=waste))
    size, write = gib(saving.size_bytes), hours(saving.write_s)
    if saving.count == 1:
        one = phrase(
            "A checkpoint of {size} GiB takes {time} to write; one at the end is enough.", size=size, time=write
        )
        return [*found, one]
    every = max(1, round(saving.interval_s / duration.step_s))
    several = phrase(
        "A checkpoint of {size} GiB takes {time} to write; one every {interval} ({steps} steps) minimizes lost time.",
        size=size,
        time=write,
        interval=hours(saving.interval_s),
        steps=f"{every:,}",
    )
    return [*found, several]
