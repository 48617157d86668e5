"""The report of a choice of machines: cost against hours, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10

from ..rent.rent import RentAdvice
from ..rent.report import all_notes, named, render, strategy, verdict
from ..text.job import hours, money
from ..text.units import rate
from . import document as doc
from .canvas import SMALL, WIDE, Markup, Scale, frame, is_narrow, joined, line, small, text_width, vertical_limit
from .line_charts import Point, draw_names, draw_points, spots

_MOST_COST = 10.0
"""Machines that cost more than this multiple of the cheapest are left out of the picture."""


def rent_report(advice: RentAdvice) -> doc.Report:
    """The report, and the chart of cost against hours."""
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
    """Every offer as a point, with the deadline and the budget, as SVG."""
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
    costs, times = [point.y for point in points], [point.x for point in points]
    cost_steps, time_steps = list(_steps(min(costs), max(costs))), list(_steps(min(times), max(times)))
    height, top, right = 270.0 if narrow else 340.0, 34.0, width - 12.0
    bottom = height - 40
    left = 12 + max(text_width(words, SMALL) for _, words in cost_steps)
    x_of = Scale(min(times) - 0.1, max(times) + 0.1, left, right)
    y_of = Scale(min(costs) - 0.1, max(costs) + 0.1, bottom, top)
    taken = spots(points, x_of, y_of)
    deadline, budget = advice.deadline_s, advice.budget
    limits = []
    if deadline is not None and x_of.first < log10(deadline / 3600) < x_of.last:
        x = x_of(log10(deadline / 3600))
        taken.append((x - 3, top, x + 3, bottom))
        limits.append(vertical_limit(x, hours(deadline), top - 8, [(top - 4, bottom)], width))
    if budget is not None and y_of.first < log10(budget) < y_of.last:
        y = y_of(log10(budget))
        limits += [
            line(left, y, right, y, "limit"),
            small(right, y - 5, money(budget, sign), anchor="end", ink="limit"),
        ]
    return frame(
        "Cost of the job against its hours, for every choice of machines",
        width,
        height,
        small(0, 12, f"cost, {advice.table.currency}"),
        small(right, height - 6, "hours", anchor="end"),
        *(line(left, y_of(value), right, y_of(value)) for value, _ in cost_steps),
        *(small(left - 6, y_of(value) + 4, words, anchor="end") for value, words in cost_steps),
        *(line(x_of(value), top, x_of(value), bottom) for value, _ in time_steps),
        *(small(x_of(value), bottom + 15, words, anchor="middle") for value, words in time_steps),
        *limits,
        *draw_points(points, best, x_of, y_of),
        *draw_names(best, x_of, y_of, SMALL if narrow else 12, taken),
    )


def _steps(lowest: float, highest: float) -> Iterator[tuple[float, str]]:
    """(logarithm, figure) of 1, 2 and 5 times the powers of ten between two logarithms."""
    for power in range(int(lowest) - 1, int(highest) + 2):
        for value in (10.0**power * factor for factor in (1, 2, 5)):
            if lowest - 0.1 <= log10(value) <= highest + 0.1:
                yield log10(value), f"{value:,.4g}"
