"""The advice for people: the machine to rent, then the table."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from rich.console import Console
from rich.text import Text

from ..answer.view import training_subject
from ..text.job import hours, money
from ..text.labels import batch_label, checkpointing_title, cluster_title, plan_title
from ..text.lines import blank, cells, sentence
from ..text.units import counted_noun, gib, rate
from .rent import WAIT_S, Offer, RentAdvice

_TITLE_WIDTH = 30
"""What 80 columns leave beside figures and the longest rung; a longer title is cut, and the verdict has it whole."""

_HEADER = f"  {'machines':<{_TITLE_WIDTH}} {'':4} {'hours':>5} {'cost':>7} {'/M tok':>6}  plan"


def render(advice: RentAdvice, console: Console, *, all_offers: bool = False) -> None:
    """Print the advice. all_offers: also those that another one beats in both cost and time."""
    for line in _verdict(advice):
        sentence(console, line)
    blank(console)
    chosen = advice.recommended or advice.cheapest
    if chosen is None:
        for reason in _reasons(advice):
            sentence(console, reason)
        return
    for line in training_subject(chosen.question):
        sentence(console, line)
    for line in advice.basis:
        sentence(console, line)
    blank(console)
    shown = advice.offers if all_offers else advice.front
    _table(advice, shown, console)
    blank(console)
    for line in _notes(advice, shown):
        sentence(console, line, style="dim")


def _verdict(advice: RentAdvice) -> tuple[str | Text, ...]:
    """Which to rent, for how long and how much, and with which plan."""
    chosen, sign = advice.recommended, advice.table.sign
    if chosen is None:
        return _nothing(advice)
    limits = _limits(advice)
    best = "fastest" if advice.budget is not None and advice.deadline_s is None else "cheapest"
    plan, memory = chosen.candidate.plan, chosen.candidate.memory
    return (
        Text(f"The {best}{' that ' * bool(limits)}{limits}: {_named(chosen)}.", style="bold green"),
        f"{money(chosen.cost, sign)}{_between(chosen.cost_range, sign)} in {hours(chosen.duration_s)}"
        f"{_hours_between(chosen)}, at {money(chosen.price.per_hour * chosen.cluster.nodes, sign)} an hour. "
        f"About {rate(chosen.candidate.tokens_per_s)} tokens/s; a million cost "
        f"{_money_of_tokens(chosen.cost_per_million_tokens, sign)}.",
        *_interruptions(chosen, sign),
        *_surer(advice, chosen),
        f"Plan: {plan_title(plan)}, micro batch {batch_label(plan)}, {checkpointing_title(plan)}; it needs "
        f"{gib(chosen.candidate.device_bytes)} GiB per GPU and {gib(memory.host_bytes_per_node)} GiB of RAM"
        f"{_ram(chosen)}.",
        f"More about it: ds-advise {chosen.question.model.name} --gpus {chosen.gpus}, with the same options.",
    )


def _limits(advice: RentAdvice) -> str:
    """`ends within 24 h and costs at most $50`; "" without either."""
    limits = [] if advice.deadline_s is None else [f"ends within {hours(advice.deadline_s)}"]
    limits += [] if advice.budget is None else [f"costs at most {money(advice.budget, advice.table.sign)}"]
    return " and ".join(limits)


def _surer(advice: RentAdvice, chosen: Offer) -> tuple[str, ...]:
    """What would be in time at the slow end of its interval, where the chosen one is not."""
    deadline, ends = advice.deadline_s, chosen.duration_s_range
    if deadline is None or ends is None or ends[1] <= deadline:
        return ()
    sure = advice.sure
    text = "At the slow end of that interval it would be late"
    if sure is None:
        return (f"{text}, as would all others.",)
    return (f"{text}; {_named(sure)} would not, for {money(sure.cost, advice.table.sign)}.",)


def _nothing(advice: RentAdvice) -> tuple[str | Text, ...]:
    cheapest, fastest, sign = advice.cheapest, advice.fastest, advice.table.sign
    if cheapest is None or fastest is None:
        return (Text("On none of these machines anything fits.", style="bold red"),)
    return (
        Text(f"No machine {_limits(advice)}.", style="bold red"),
        f"The fastest is {_named(fastest)}: {hours(fastest.duration_s)}, {money(fastest.cost, sign)}.",
        f"The cheapest is {_named(cheapest)}: {money(cheapest.cost, sign)}, {hours(cheapest.duration_s)}.",
    )


def _reasons(advice: RentAdvice) -> list[str]:
    """Why machines are out, each reason with how many it concerns."""
    counted: dict[str, int] = {}
    for one in advice.left_out:
        counted[one.reason] = counted.get(one.reason, 0) + 1
    return [f"On {counted_noun(number, 'choice')} of machines: {reason}." for reason, number in counted.items()]


def _table(advice: RentAdvice, shown: Sequence[Offer], console: Console) -> None:
    cells(console, _HEADER, style="bold")
    for offer in shown:
        mark = ">" if offer is advice.recommended else " "
        line = (
            f"{mark} {_cut(_title(offer)):<{_TITLE_WIDTH}} {'spot' if offer.is_spot else '':4} "
            f"{_hours(offer.duration_s):>5} {_amount(offer.cost):>7} {_cents(offer.cost_per_million_tokens):>6}  "
            f"{offer.candidate.rung}{'?' * _wants_unknown_ram(offer)}"
        )
        style = "bold green" if mark == ">" else "" if advice.meets(offer) else "dim"
        cells(console, line, style=style)


def _notes(advice: RentAdvice, shown: Sequence[Offer]) -> list[str]:
    hidden, limits = len(advice.offers) - len(shown), _limits(advice)
    notes = [
        f"cost in {advice.table.currency}; /M tok: cost of a million tokens"
        + "; faint: not within the limits" * bool(limits)
    ]
    if any(map(_wants_unknown_ram, shown)):
        notes.append("?: how much RAM the machine has is not told, and the plan wants some.")
    if hidden:
        notes.append(f"One of these is at least as cheap and as fast as each of the {hidden} others (--all).")
    if advice.left_out:
        notes.append(f"On {counted_noun(len(advice.left_out), 'further choice')} of machines the job cannot run.")
    if any(offer.is_spot for offer in shown):
        notes.append(
            "spot: the provider may take the machine back. Counted are checkpoints, what is done again, restarts, and "
            f"{hours(WAIT_S)} on average until another machine is had, which is not paid."
        )
    dates = advice.table.dates
    of = "" if dates is None else f" of {dates[0]}" if dates[0] == dates[1] else f" of {dates[0]} to {dates[1]}"
    name = "The table that comes along" if advice.table.is_shipped else advice.table.name
    notes.append(
        f"{name} has {counted_noun(len(advice.table.machines), 'machine')} with prices{of}; --prices FILE.csv takes "
        "another. Storage, traffic and taxes are not in it."
    )
    return notes


def _title(offer: Offer) -> str:
    return f"{offer.machine.title} {cluster_title(offer.cluster, speed=False)}".strip().replace(" nodes of ", " x ")


def _cut(title: str) -> str:
    return title if len(title) <= _TITLE_WIDTH else f"{title[: _TITLE_WIDTH - 1]}~"


def _named(offer: Offer) -> str:
    return f"{_title(offer)}{', spot' * offer.is_spot}"


def _ram(offer: Offer) -> str:
    """What is known of the machine's RAM."""
    have = offer.cluster.host_memory_bytes_per_node
    per_node = " per machine" if offer.cluster.nodes > 1 else ""
    return f"{per_node}, of {gib(have)}" if have is not None else f"{per_node}, of which the table tells nothing"


def _wants_unknown_ram(offer: Offer) -> bool:
    return offer.cluster.host_memory_bytes_per_node is None and offer.candidate.plan.offloads


def _interruptions(offer: Offer, sign: str) -> tuple[str, ...]:
    interrupted = offer.interrupted
    if interrupted is None:
        return ()
    return (
        f"It is interrupted about {_about(interrupted.count)} times (each machine every "
        f"{offer.machine.hours_between_interruptions:g} h), which costs {money(offer.cost_of_interruptions, sign)} and "
        f"{hours(interrupted.waiting_s)} of waiting; save every {hours(interrupted.interval_s)}.",
    )


def _about(count: float) -> str:
    return f"{count:.1f}" if count < 9.95 else f"{count:,.0f}"


def _between(ends: tuple[float, float] | None, sign: str) -> str:
    return "" if ends is None else f" ({money(ends[0], sign)} to {money(ends[1], sign)})"


def _hours_between(offer: Offer) -> str:
    ends = offer.duration_s_range
    return "" if ends is None else f" ({hours(ends[0])} to {hours(ends[1])})"


def _hours(duration_s: float) -> str:
    value = duration_s / 3600
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _amount(cost: float) -> str:
    return f"{cost:.2f}" if cost < 99.995 else f"{cost:,.0f}"


def _money_of_tokens(amount: float, sign: str) -> str:
    return f"{sign}{_cents(amount)}" if len(sign) < 2 else f"{_cents(amount)} {sign}"


def _cents(amount: float) -> str:
    """Two digits: `0.54`, `0.0031`, `12`."""
    digits = max(0, 1 - floor(log10(amount))) if amount > 0 else 0
    return f"{amount:,.{min(digits, 4)}f}"
