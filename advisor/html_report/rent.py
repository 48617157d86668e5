"""The report of a choice of machines: cost against hours, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from ..rent.rent import RentAdvice
from ..rent.report import all_notes, named, render, strategy, verdict
from ..text.job import hours, money
from ..text.units import rate
from . import document as doc
from .canvas import WIDE, Markup, is_narrow, joined
from .line_charts import Axis, Point, draw_points

_MOST_COST = 10.0
"""Machines above this multiple of the lowest cost are left out of the chart."""


def rent_report(advice: RentAdvice) -> doc.Report:
    """Return the report, with the chart of cost against hours."""
    (first, _), *more = verdict(advice)
    shown = advice.recommended or advice.cheapest
    evidence = doc.Section("evidence", "As printed", doc.as_printed(lambda console: render(advice, console)))
    if shown is None:
        form = advice.figures(all_offers=False)
        return doc.Report(subject="Rent", verdict=first, tone="bad", lead=(), sections=(evidence,), data=form)
    rows: list[list[doc.Cell]] = [
        [
            named(offer),
            doc.figure_of(offer.figures.duration_s, hours),
            doc.figure_of(offer.figures.cost, lambda cost: money(cost, advice.table.sign)),
            strategy(offer),
            doc.speed(offer.candidate.tokens_per_s),
        ]
        for offer in advice.front
    ]
    classes = [
        "chosen" if offer is advice.recommended else "" if offer.figures.meets_limits else "faded"
        for offer in advice.front
    ]
    table = doc.table(["machines", "time", "cost", "strategy", "tokens/s"], rows, classes=classes)
    words = (
        "Every choice of machines; both scales are logarithmic. Large points: no other is both cheaper and faster. "
        "Hollow ones are not within the limits; the green one is recommended."
    )
    return doc.Report(
        subject=f"Rent for {shown.question.model.name}",
        verdict=first,
        tone="bad" if advice.recommended is None else "good",
        lead=[line for line, _ in more],
        sections=(
            doc.Section("cost", "Cost against hours", joined(doc.note(words), doc.figure(advice, draw_offers, table))),
            doc.Section("notes", "What is counted", doc.bullets(all_notes(advice))),
            evidence,
        ),
        data=advice.figures(all_offers=False),
        chart=lambda: draw_offers(advice),
    )


def draw_offers(advice: RentAdvice, width: int = WIDE) -> Markup:
    """Return every offer as a point, with deadline and budget, as SVG."""
    sign, narrow = advice.table.sign, is_narrow(width)
    most = _MOST_COST * advice.offers[0].figures.cost
    shown = [offer for offer in advice.offers if offer.figures.cost <= most or offer.figures.on_pareto_front]
    points = [
        Point(
            label=named(offer),
            x=log10(offer.figures.duration_s / 3600),
            y=log10(offer.figures.cost),
            hint=f"{named(offer)}: {hours(offer.figures.duration_s)}, {money(offer.figures.cost, sign)}\n"
            f"{offer.figures.plan.rung}, {rate(offer.candidate.tokens_per_s)} tokens/s",
            chosen=offer is advice.recommended,
            faded=not offer.figures.meets_limits,
        )
        for offer in shown
    ]
    best = [point for point, offer in zip(points, shown, strict=True) if offer.figures.on_pareto_front]
    deadline, budget = advice.deadline_s, advice.budget
    return draw_points(
        "Cost of the job against its hours, for every choice of machines",
        points,
        _axis("hours", [each.x for each in points], deadline and (deadline / 3600, hours(deadline))),
        _axis(f"cost, {advice.table.currency}", [each.y for each in points], budget and (budget, money(budget, sign))),
        width,
        height=270.0 if narrow else 340.0,
        best=best,
        named=best,
    )


def _axis(title: str, logarithms: Sequence[float], limit: tuple[float, str] | float | None) -> Axis:
    """Return a logarithmic scale with ticks at 1, 2 and 5 times the powers of ten. limit: drawn if it lies within the
    scale."""
    first, last = min(logarithms) - 0.1, max(logarithms) + 0.1
    values = (10.0**power * factor for power in range(int(first) - 2, int(last) + 2) for factor in (1, 2, 5))
    drawn = (log10(limit[0]), limit[1]) if isinstance(limit, tuple) else None
    return Axis(
        title=title,
        ticks=[(log10(value), f"{value:,.4g}") for value in values if first <= log10(value) <= last],
        first=first,
        last=last,
        limit=drawn if drawn and first < drawn[0] < last else None,
    )
