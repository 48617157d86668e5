"""The advice in the terminal: the machine to rent, then the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import floor, log10

from rich.console import Console
from rich.text import Text

from ..answer.verdict import training_subject
from ..text.job import hours, money
from ..text.labels import batch_label, checkpointing_title, cluster_title, plan_title
from ..text.lines import blank, cells, sentence
from ..text.units import counted_noun, gib, rate
from .rent import WAIT_S, Offer, RentAdvice

_TITLE_WIDTH = 30
"""Columns that the figures and the longest rung leave of 80. Longer titles are cut."""


def render(advice: RentAdvice, console: Console, *, all_offers: bool = False) -> None:
    """Print the advice. all_offers: also those that are not on the Pareto front."""
    for line in _verdict(advice):
        sentence(console, line)
    blank(console)
    chosen = advice.recommended or advice.cheapest
    if chosen is None:
        for reason, number in Counter(one.reason for one in advice.left_out).items():
            sentence(console, f"On {counted_noun(number, 'choice')} of machines: {reason}.")
        return
    for line in (*training_subject(chosen.question), *advice.basis):
        sentence(console, line)
    blank(console)
    shown = advice.offers if all_offers else advice.front
    _table(advice, shown, console)
    blank(console)
    for line in _notes(advice, shown):
        sentence(console, line, style="dim")


def _verdict(advice: RentAdvice) -> list[str | Text]:
    chosen, sign = advice.recommended, advice.table.sign
    if chosen is None:
        return _nothing(advice)
    limits, figures, plan = _limits(advice), chosen.figures, chosen.candidate.plan
    best = "fastest" if advice.budget is not None and advice.deadline_s is None else "cheapest"
    cost = money(figures.cost, sign)
    if figures.cost_low is not None and figures.cost_high is not None:
        cost += f" ({money(figures.cost_low, sign)} to {money(figures.cost_high, sign)})"
    duration = hours(figures.duration_s)
    if figures.duration_s_low is not None and figures.duration_s_high is not None:
        duration += f" ({hours(figures.duration_s_low)} to {hours(figures.duration_s_high)})"
    tokens_cost = _cents(figures.cost_per_million_tokens)
    tokens_cost = f"{sign}{tokens_cost}" if len(sign) < 2 else f"{tokens_cost} {sign}"
    return [
        Text(f"The {best}{' that ' * bool(limits)}{limits}: {_named(chosen)}.", style="bold green"),
        f"{cost} in {duration}, at {money(figures.price_per_hour, sign)} an hour. About "
        f"{rate(chosen.candidate.tokens_per_s)} tokens/s; a million cost {tokens_cost}.",
        *_interruptions(chosen, sign),
        f"Plan: {plan_title(plan)}, micro batch {batch_label(plan)}, {checkpointing_title(plan)}; it needs "
        f"{gib(chosen.candidate.device_bytes)} GiB per GPU and "
        f"{gib(chosen.candidate.memory.host_bytes_per_node)} GiB of RAM{_ram(chosen)}.",
        f"More about it: ds-advise {chosen.question.model.name} --gpus {figures.gpus}, with the same options.",
    ]


def _nothing(advice: RentAdvice) -> list[str | Text]:
    cheapest, fastest, sign = advice.cheapest, advice.fastest, advice.table.sign
    if cheapest is None or fastest is None:
        return [Text("On none of these machines anything fits.", style="bold red")]
    return [
        Text(f"No machine {_limits(advice)}.", style="bold red"),
        *(
            f"The {kind} is {_named(offer)}: {hours(offer.figures.duration_s)}, {money(offer.figures.cost, sign)}."
            for kind, offer in (("fastest", fastest), ("cheapest", cheapest))
        ),
    ]


def _limits(advice: RentAdvice) -> str:
    """`ends within 24 h and costs at most $50`; "" without either."""
    limits = [] if advice.deadline_s is None else [f"ends within {hours(advice.deadline_s)}"]
    limits += [] if advice.budget is None else [f"costs at most {money(advice.budget, advice.table.sign)}"]
    return " and ".join(limits)


def _interruptions(offer: Offer, sign: str) -> list[str]:
    expected = offer.figures.interruptions
    if expected is None:
        return []
    count = f"{expected.count:.1f}" if expected.count < 9.95 else f"{expected.count:,.0f}"
    return [
        f"Expect {count} interruptions (each machine every {offer.machine.hours_between_interruptions:g} h). They cost "
        f"{money(expected.cost, sign)} and {hours(expected.waiting_s)} of waiting. Save every "
        f"{hours(expected.checkpoint_interval_s)}."
    ]


def _ram(offer: Offer) -> str:
    have = offer.question.cluster.host_memory_bytes_per_node
    per_node = " per machine" if offer.figures.nodes > 1 else ""
    return (
        f"{per_node}, of {gib(have)}" if have is not None else f"{per_node}; the table does not give the machine's RAM"
    )


def _table(advice: RentAdvice, shown: Sequence[Offer], console: Console) -> None:
    header = f"  {'machines':<{_TITLE_WIDTH}} {'':4} {'hours':>5} {'cost':>7} {'/M tok':>6}  plan"
    cells(console, header, style="bold")
    for offer in shown:
        figures, title = offer.figures, _title(offer)
        title = title if len(title) <= _TITLE_WIDTH else f"{title[: _TITLE_WIDTH - 1]}~"
        duration_h = figures.duration_s / 3600
        digits = 2 if duration_h < 9.995 else 1 if duration_h < 99.95 else 0
        is_chosen = offer is advice.recommended
        line = (
            f"{'>' if is_chosen else ' '} {title:<{_TITLE_WIDTH}} {'spot' if figures.spot else '':4} "
            f"{f'{duration_h:,.{digits}f}':>5} {f'{figures.cost:,.{2 if figures.cost < 99.995 else 0}f}':>7} "
            f"{_cents(figures.cost_per_million_tokens):>6}  {figures.plan.rung}{'?' * _needs_unknown_ram(offer)}"
        )
        cells(console, line, style="bold green" if is_chosen else "" if figures.meets_limits else "dim")


def _notes(advice: RentAdvice, shown: Sequence[Offer]) -> list[str]:
    hidden, table = len(advice.offers) - len(shown), advice.table
    notes = [
        f"cost in {table.currency}; /M tok: cost of a million tokens"
        + "; faint: not within the limits" * bool(_limits(advice))
    ]
    if any(map(_needs_unknown_ram, shown)):
        notes.append("?: the plan needs RAM, and the table does not give the machine's.")
    if hidden:
        notes.append(f"One of these is at least as cheap and as fast as each of the {hidden} others (--all).")
    if advice.left_out:
        notes.append(f"On {counted_noun(len(advice.left_out), 'further choice')} of machines the job cannot run.")
    if any(offer.figures.spot for offer in shown):
        notes.append(
            "spot: the provider may take the machine back. Included are checkpoints, repeated work, restarts, and "
            f"{hours(WAIT_S)} on average until another machine is available, unpaid."
        )
    dates = table.dates
    of = "" if dates is None else f" of {dates[0]}" if dates[0] == dates[1] else f" of {dates[0]} to {dates[1]}"
    name = "The table of this package" if table.is_shipped else table.name
    notes.append(
        f"{name} has {counted_noun(len(table.machines), 'machine')} with prices{of}; --prices FILE.csv takes "
        "another. Storage, traffic and taxes are not included."
    )
    return notes


def _title(offer: Offer) -> str:
    cluster = cluster_title(offer.question.cluster, speed=False)
    return f"{offer.machine.title} {cluster}".strip().replace(" nodes of ", " x ")


def _named(offer: Offer) -> str:
    return f"{_title(offer)}{', spot' * offer.figures.spot}"


def _needs_unknown_ram(offer: Offer) -> bool:
    return offer.question.cluster.host_memory_bytes_per_node is None and offer.candidate.plan.offloads


def _cents(amount: float) -> str:
    """Two digits: `0.54`, `0.0031`, `12`."""
    digits = max(0, 1 - floor(log10(amount))) if amount > 0 else 0
    return f"{amount:,.{min(digits, 4)}f}"
