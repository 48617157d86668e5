"""The report of a comparison: both sides' memory and time, and the keys that differ."""

from __future__ import annotations

from functools import partial

from ..answer.comparison import Comparison
from ..render.comparison import figure_rows, subject_of, value_label, verdict
from . import document as doc
from .bar_charts import draw_stacked_bars
from .canvas import Markup, joined
from .plans import memory_bars, time_bars


def comparison_report(comparison: Comparison) -> doc.Report:
    """Return the report, with the chart of both sides' memory."""
    question, charts, chart = comparison.question, list[doc.Section](), None
    subject = " · ".join(f"{letter}: {side.name}" for letter, side in zip("AB", comparison.sides, strict=True))
    if question is not None:
        subject += f" · {subject_of(question)}"
        plans = {f"{letter}: {plan.rung}": plan for letter, plan in zip("AB", comparison.candidates, strict=True)}
        memory, time = memory_bars(plans, question.cluster, with_sources=True), time_bars(plans, with_sources=True)
        memory_table, time_table = doc.plan_tables(plans)
        rows: list[list[doc.Cell]] = [
            [row.title, *(doc.figure_of(value or None, row.write) for value in row.values)]
            for row in figure_rows(comparison)
        ]
        rows.append(["verdict", *(doc.Figure(plan.fit.reason, None) for plan in plans.values())])
        note = doc.note("For every 1,000 tokens, so that plans of different batches compare.")
        time_chart = doc.figure(time, draw_stacked_bars, time_table)
        charts = [
            doc.Section("figures", "Side by side", doc.table(["", "A", "B"], rows)),
            doc.Section("memory", "Memory per GPU", doc.figure(memory, draw_stacked_bars, memory_table)),
            doc.Section("time", "Time of a step", joined(note, time_chart)),
        ]
        chart = partial(draw_stacked_bars, memory)
    first, *more = (str(line) for line in verdict(comparison))
    return doc.Report(
        subject=subject,
        verdict=first,
        tone="unsure" if first.startswith(("Only", "Neither")) else "good",
        lead=more,
        sections=(*charts, doc.Section("differences", "What differs", _differences(comparison))),
        data=comparison.figures(),
        chart=chart,
    )


def _differences(comparison: Comparison) -> Markup:
    rows = [
        [doc.key_and_meaning(found.key, found.meaning), value_label(found.first), value_label(found.second)]
        for found in comparison.differences
        if found.acts
    ]
    idle = [found.key for found in comparison.differences if not found.acts]
    return joined(
        doc.note(f"* DeepSpeed {comparison.deepspeed}'s default."),
        doc.table(["key, and what it decides", "A", "B"], rows) or doc.note("No setting with an effect."),
        doc.note(f"Without effect at these ZeRO stages: {', '.join(idle)}.") if idle else None,
    )
