"""The document of the advice: the machine to rent, then the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor, inf, log10
from string import ascii_lowercase, ascii_uppercase

from ...estimators.time.job import HOUR_S
from ..answer.facts import training_subject
from ..document.blocks import HIDDEN, Block, Chart, Commands, Document, Figure, Gap, Heading, Row, Sentence, Table
from ..document.charts import Bar, Limit, Part, Point, Points, StackedBars, Unit
from ..question.question import Question
from ..rent import Offer, RentAdvice
from ..search.choice import SAME_SPEED
from ..text.job import durations, figure_and_interval, hours, money, money_and_interval
from ..text.labels import batch_label, checkpointing_title, cluster_title, plan_title
from ..text.units import capitalised, count, counted_noun, gib, listed, percent, rate, whole_gib

_LETTERS = ascii_lowercase + ascii_uppercase
"""Names of the listed offers in the chart; further ones have none."""

_MOST_LEFT_OUT = 3
"""Most machines that are named, without --all, for one reason to leave them out."""


def rent_document(advice: RentAdvice, *, all_offers: bool = False) -> Document:
    """Return the machine to rent, then the table and the chart of cost and hours. all_offers: whether the table has
    every offer."""
    chosen = advice.recommended or advice.cheapest
    first, *more = _verdict(advice)
    blocks: list[Block] = [*map(Sentence, more)]
    if advice.recommended is not None:
        blocks += [Sentence("Details:"), Commands([advice.advise_command(advice.recommended)])]
    blocks.append(Heading("Cost and hours", "cost", printed=False))
    bars = None
    if chosen is None:
        blocks += map(Sentence, _left_out(advice, all_offers=all_offers))
        if advice.could_join_more:
            most, verb = counted_noun(advice.most_nodes, "machine"), "was" if advice.most_nodes == 1 else "were"
            blocks.append(Sentence(f"At most {most} {verb} joined; --max-nodes allows more."))
    else:
        shown = advice.offers if all_offers else sorted(advice.front, key=lambda offer: -offer.figures.duration_s)
        subjects = training_subject(_same_of_all(chosen.question, shown))
        blocks += [Sentence(subject) for subject in (*subjects, *advice.basis)]
        points = _points(advice, shown) if len(advice.offers) > 2 else None
        bars = _chart(advice, shown, has_letters=bool(points))
        order = "Cost of the job on the machines that no other beats in cost and time, the cheapest first"
        scatter: list[Block] = [] if points is None else [Chart(points, printed=points), Gap()]
        table = _table(advice, shown, has_letters=bool(points))
        blocks += [Gap(), *scatter, Chart(bars, caption=order), table, Gap()]
        blocks += [Sentence(note, "dim") for note in _notes(advice, shown, all_offers=all_offers)]
    return Document(
        subject="Rent" if chosen is None else f"Rent for {chosen.question.model.name}",
        verdict=first,
        tone="bad" if advice.recommended is None else "good",
        blocks=blocks,
        data=advice.figures(all_offers=all_offers),
        picture=bars,
    )


def _named(shown: Sequence[Offer], *, has_letters: bool) -> Iterator[tuple[Offer, str, str]]:
    """Yield the offers of the table with (their letter in the chart of points, if there is one, and a space; their
    time, all in one unit)."""
    times = durations(*(offer.figures.duration_s for offer in shown))
    for offer, time, letter in zip(shown, times, _LETTERS.ljust(len(shown)), strict=False):
        yield offer, f"{letter} " * has_letters, time


def _chart(advice: RentAdvice, shown: Sequence[Offer], *, has_letters: bool) -> StackedBars:
    """Return the cost of each machine of the Pareto front, in the order and with the names of the table, and the
    budget."""
    sign, bars = advice.table.sign, []
    for offer, letter, time in _named(shown, has_letters=has_letters):
        if not offer.figures.on_pareto_front:
            continue
        job, title = offer.figures, f"{letter}{_title(offer)}"
        note = f"{money(job.cost, sign)} in {time}"
        hint = f"{title}: {note}\n{job.plan.strategy}, {rate(offer.candidate.tokens_per_s)} tokens/s"
        part = Part(name="cost", value=job.cost, ink="weights", hint=hint)
        chosen = offer is advice.recommended
        bars.append(Bar(label=title, parts=(part,), note=note, chosen=chosen, faded=not job.meets_limits))
    return StackedBars(
        title="Cost of the job, the cheapest machines first",
        bars=tuple(bars),
        unit=Unit(advice.table.currency, 1),
        limit=None if advice.budget is None else Limit(advice.budget, money(advice.budget, sign)),
    )


def _verdict(advice: RentAdvice) -> Iterator[str]:
    """The first sentences of the advice."""
    chosen, sign = advice.recommended, advice.table.sign
    if chosen is None:
        yield from _nothing(advice)
        return
    figures, candidate = chosen.figures, chosen.candidate
    ends = figures.cost_low, figures.cost_high, figures.duration_s_low, figures.duration_s_high
    cost, duration = money(figures.cost, sign), hours(figures.duration_s)
    tokens_cost = _cents(figures.cost_per_million_tokens)
    if ends[0] is not None and ends[1] is not None and ends[2] is not None and ends[3] is not None:
        cost = money_and_interval(figures.cost, (ends[0], ends[1]), sign, named=True)
        duration, low, high = durations(figures.duration_s, ends[2], ends[3])
        duration = figure_and_interval(duration, (low, high))
    limits = _limits(advice)
    kind, amount = _kind(advice), f"{_amount(chosen)}{' (assumed)' * advice.amount_is_assumed}"
    yield f"The {kind}{f' that {limits}' if limits else ''}: {_title(chosen)}{_condition(chosen)}."
    per_million = f"{sign}{tokens_cost}" if len(sign) < 2 else f"{tokens_cost} {sign}"
    yield (
        f"{amount}: {cost} in {duration}, at {money(figures.price_per_hour, sign)} an hour. About "
        f"{rate(candidate.tokens_per_s)} tokens/s; a million tokens cost {per_million}."
    )
    yield (
        f"Plan: {plan_title(candidate.plan)}, micro batch {batch_label(candidate.plan)}, "
        f"{checkpointing_title(candidate.plan)}; it needs {gib(candidate.device_bytes)} GiB per GPU and "
        f"{_ram(chosen)}."
    )
    yield from _upper_ends(advice, chosen)
    if kind == _BEST_VALUE:
        yield from _rule(advice)
    cheapest = advice.cheapest_choice
    if kind == _BEST_VALUE and cheapest is not None and cheapest is not chosen:
        other = cheapest.figures
        yield (
            f"{_cheapest_title(advice)}, {_title(cheapest)}, takes {hours(other.duration_s)} and costs "
            f"{money(other.cost, sign)}{_condition(cheapest)}."
        )


def _upper_ends(advice: RentAdvice, chosen: Offer) -> Iterator[str]:
    """Yield which limit the machine may miss, and the cheapest machine that does not."""
    if advice.is_sure(chosen):
        return
    figures, sign, sure = chosen.figures, advice.table.sign, advice.sure
    late, dear = figures.duration_s_high or 0.0, figures.cost_high or 0.0
    missed = [f"the deadline at the upper end of its time, {hours(late)}"] * (late > (advice.deadline_s or inf))
    missed += [f"the budget at the upper end of its cost, {money(dear, sign)}"] * (dear > (advice.budget or inf))
    yield f"It misses {listed(missed)}."
    if sure is None:
        yield "No machine is known to meet the limits there."
    else:
        ends = hours(sure.figures.duration_s_high or sure.figures.duration_s)
        cost = money(sure.figures.cost_high or sure.figures.cost, sign)
        kind = "fastest" if advice.recommends_fastest else "cheapest"
        yield f"The {kind} that meets the limits there too: {_title(sure)}, at most {ends} and {cost}."


def _amount(offer: Offer) -> str:
    """The amount of training: `1B tokens`, `20,000 samples for 3 epochs`."""
    job = offer.question.job
    assert job is not None, "rent takes an amount if none is given"
    if job.samples is None:
        return f"{count(job.tokens or 0).replace(' ', '')} tokens"
    epochs = "" if job.epochs == 1 else f" for {job.epochs:g} epochs"
    return f"{counted_noun(job.samples, 'sample')}{epochs}"


_BEST_VALUE = "best value"

_ENOUGH_RAM = "the cheapest whose RAM is known to suffice"


def _kind(advice: RentAdvice) -> str:
    """What the recommended machine is among those within the limits."""
    if advice.recommends_fastest:
        return "fastest"
    return f"{_BEST_VALUE} and cheapest" if advice.recommended is advice.cheapest_within else _BEST_VALUE


def _rule(advice: RentAdvice) -> Iterator[str]:
    """Yield what the best value is, or that no machine of known RAM is cheaper."""
    cheapest = advice.cheapest_choice
    if cheapest is None:
        return
    if cheapest is advice.recommended:
        yield f"It is {_ENOUGH_RAM}."
        return
    most = money(cheapest.figures.cost_high or cheapest.figures.cost, advice.table.sign)
    whose = "the cheapest" if cheapest is advice.cheapest_within else f"{_title(cheapest)}, {_ENOUGH_RAM}"
    yield f"Best value: the least cost times hours of those up to {most}, within the interval of {whose}."


def _cheapest_title(advice: RentAdvice) -> str:
    """Return the title of the cheapest machine within the limits, `cheapest_choice`, by what the cheaper ones lack."""
    if advice.cheapest is advice.cheapest_choice:
        return "The cheapest"
    if advice.cheapest_choice is not advice.cheapest_within:
        return capitalised(_ENOUGH_RAM)
    return "The cheapest within the limits" if advice.budget is not None else "The cheapest within the time limit"


def _condition(offer: Offer) -> str:
    """The condition of an offer, `, if it has 168 GiB of RAM`; "" for none."""
    if not offer.figures.is_conditional:
        return ""
    need = f"{whole_gib(offer.candidate.memory.host_bytes_per_node):,}"
    return f", if {'each' if offer.figures.nodes > 1 else 'it'} has {need} GiB of RAM"


def _nothing(advice: RentAdvice) -> Iterator[str]:
    deadline_s, budget, sign = advice.deadline_s, advice.budget, advice.table.sign
    if advice.cheapest is None:
        yield "No plan fits on any of these machines."
        yield from _remedy(advice)
        return
    yield f"No machine {_limits(advice)}."
    in_time = advice.cheapest_in_time if deadline_s is not None else None
    affordable = advice.fastest_affordable if budget is not None else None
    is_dear = budget is not None and affordable is None
    if is_dear and deadline_s is not None:
        yield f"No machine costs at most {money(budget or 0, sign)}, however long it takes."
    nearest = [
        (f"cheapest within {hours(deadline_s or 0)}", in_time) if in_time else ("fastest", advice.fastest),
        (f"fastest within {money(budget or 0, sign)}", affordable)
        if affordable
        # The cheapest of all may take years.
        else ("best value without the deadline", advice.best_value)
        if budget is None
        else ("cheapest", advice.cheapest),
    ]
    known = advice.cheapest_of_all
    if is_dear and known is not advice.cheapest and known is not nearest[0][1]:
        nearest.append((_ENOUGH_RAM.removeprefix("the "), known))
    for which, offer in nearest:
        assert offer is not None, "there are offers"
        price = f"{hours(offer.figures.duration_s)}, {money(offer.figures.cost, sign)}"
        yield f"The {which} is {_title(offer)}: {price}{_condition(offer)}."
    yield from _remedy(advice)


def _remedy(advice: RentAdvice) -> Iterator[str]:
    """Yield the other method with which a machine would meet the limits, and that machine, or that none would."""
    if advice.remedy is None:
        if advice.refused_methods:
            yield f"With {listed(advice.refused_methods, 'or')} there is none, either."
        return
    flags, offer = advice.remedy
    price = f"{hours(offer.figures.duration_s)}, {money(offer.figures.cost, advice.table.sign)}"
    yield f"With {flags} there is one: {_title(offer)}, {price}{_condition(offer)}."


def _limits(advice: RentAdvice) -> str | None:
    """The limits as text, `ends within 24 h and costs at most $50`; None without limits."""
    deadline_s, budget, sign = advice.deadline_s, advice.budget, advice.table.sign
    in_time = None if deadline_s is None else f"ends within {hours(deadline_s)}"
    cheap = None if budget is None else f"costs at most {money(budget, sign)}"
    return f"{in_time} and {cheap}" if in_time and cheap else in_time or cheap


def _ram(offer: Offer) -> str:
    have = offer.figures.host_memory_bytes
    needed = f"{whole_gib(offer.candidate.memory.host_bytes_per_node):,}"
    several = offer.figures.nodes > 1
    if have is not None:
        return f"{needed} of {'each' if several else 'the'} machine's {have >> 30:,} GiB of RAM"
    per_machine = " per machine" if several else ""
    return f"{needed} GiB of RAM{per_machine}; the table does not give the machine's RAM"


def _points(advice: RentAdvice, shown: Sequence[Offer]) -> Points:
    """Return the cost of every offer against its hours; the shown ones have the letters of their rows."""
    marks = dict(zip(map(id, shown), _LETTERS, strict=False))
    points = [
        Point(job.duration_s, job.cost, marks.get(id(offer), ""), offer is advice.recommended)
        for offer in advice.offers
        if (job := offer.figures)
    ]
    in_hours = max(point.x for point in points) >= 2 * HOUR_S
    x_unit, x_title = (Unit("h", HOUR_S), "hours") if in_hours else (Unit("min", 60), "minutes")
    title = f"Cost in {advice.table.currency} against {x_title}, of every offer (logarithmic)"
    return Points(title=title, points=points, x_unit=x_unit, y_unit=Unit("", 1))


def _table(advice: RentAdvice, shown: Sequence[Offer], *, has_letters: bool) -> Table:
    """Return the table of offers. has_letters: whether the chart of points, of which they are the key, is shown."""
    rows = []
    for offer, letter, time in _named(shown, has_letters=has_letters):
        job = offer.figures
        condition = " ?" if job.is_conditional else ""
        cells = (
            f"{letter}{_title(offer)}{condition}{'' if job.meets_limits else ' *'}",
            Figure(time, job.duration_s),
            Figure(money(job.cost, ""), job.cost),
            Figure(_ram_figures(offer), job.plan.host_bytes_per_node),
            _plan(advice, offer),
        )
        rows.append(Row(cells, "chosen" if offer is advice.recommended else "" if job.meets_limits else "faded"))
    # A machine's RAM decides whether a conditional plan fits: there it stays longer than the plan.
    leaves_out = (4, 3) if any(offer.figures.is_conditional for offer in shown) else (3, 4)
    head = (f"{'  ' * has_letters}machines", "time", "cost", "RAM GiB", "plan")
    return Table(head, rows, optional=leaves_out, hidden=HIDDEN)


def _same_of_all(question: Question, shown: Sequence[Offer]) -> Question:
    """The question without a loss that not every machine has: each has the one that is best there."""
    losses = {offer.question.workload.loss for offer in shown}
    return question if len(losses) == 1 else replace(question, workload=replace(question.workload, loss="standard"))


def _plan(advice: RentAdvice, offer: Offer) -> str:
    """The strategy, with the precision where it is not the one that stands above the table."""
    heading, own = (advice.recommended or advice.cheapest or offer).question.workload, offer.question.workload
    precision = own.precision if own.precision != heading.precision else ""
    return f"{offer.figures.plan.strategy} {precision}".rstrip()


def _notes(advice: RentAdvice, shown: Sequence[Offer], *, all_offers: bool) -> Iterator[str]:
    hidden, table = len(advice.offers) - len(shown), advice.table
    units = f"cost in {table.currency}"
    yield units if all(offer.figures.meets_limits for offer in shown) else f"{units}; rows with * miss your limits"
    if any(offer.figures.is_conditional for offer in shown):
        yield "rows with ? need more RAM than their GPUs have memory, and the table does not give their RAM"
    if hidden:
        yield (
            f"{hidden} more cost no less than one of these, and take no less time or at most "
            f"{percent(SAME_SPEED)} less (--all)."
        )
    yield from _left_out(advice, all_offers=all_offers)
    name: str = "this package" if table.is_shipped else table.name
    if table.dates is not None:
        oldest, newest = table.dates
        when = oldest if oldest == newest else f"{oldest} to {newest}"
        name = f"{name} ({when})"
    others = "; --prices FILE.csv uses others" * table.is_shipped
    yield f"Prices of {name}{others}. Storage, traffic and taxes are not included."


def _left_out(advice: RentAdvice, *, all_offers: bool) -> Iterator[str]:
    """Yield the machines on which the job cannot run, by reason; all of them with --all."""
    by_reason: dict[str, list[str]] = {}
    for one in advice.left_out:
        name = " ".join(filter(None, (one.provider, one.machine, one.gpus)))
        by_reason.setdefault(one.reason, []).append(name)
    for reason, names in by_reason.items():
        shown = names if all_offers or len(names) <= _MOST_LEFT_OUT else names[:_MOST_LEFT_OUT]
        hidden = [f"{len(names) - len(shown)} more (--all)"] * (len(shown) < len(names))
        yield f"Left out, because {reason}: {listed([*shown, *hidden])}."


def _title(offer: Offer) -> str:
    """The name of an offer's machines, such as `RunPod Secure 2 x B200`."""
    cluster = cluster_title(replace(offer.machine.cluster, nodes=offer.figures.nodes), speed=False)
    return f"{offer.machine.title} {cluster}".strip().replace(" nodes of ", " x ")


def _ram_figures(offer: Offer) -> str:
    """The need and the RAM of a machine, `197 of 225`; `16 of ?` if the table does not give it."""
    have = offer.figures.host_memory_bytes
    need = whole_gib(offer.candidate.memory.host_bytes_per_node)
    return f"{need} of {'?' if have is None else have >> 30}"


def _cents(amount: float) -> str:
    """The amount with cents, or with two significant digits if that is more: `1.40`, `0.0031`; `12` without cents."""
    digits = max(2 * (amount < 10), 1 - floor(log10(amount))) if amount > 0 else 0
    return f"{amount:,.{min(digits, 4)}f}"
