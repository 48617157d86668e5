"""The report of a comparison: both sides' memory and time, and the keys that differ."""

from __future__ import annotations

from ..answer.comparison import Comparison
from ..answer.config_settings import Setting
from ..render.comparison import figure_rows, verdict
from ..search.candidate import Candidate
from ..text.labels import cluster_title, method_title
from . import document as doc
from .bar_charts import StackedBars, draw_stacked_bars
from .canvas import Markup, joined
from .plans import memory_bars, time_bars


def comparison_report(comparison: Comparison) -> doc.Report:
    """The report, and the chart of both sides' memory."""
    known = comparison.context
    subject = f"A: {comparison.first.name} · B: {comparison.second.name}"
    if known is not None:
        subject += f" · {known.model.name} · {method_title(known.workload)} · {cluster_title(known.cluster)}"
    first, *more = (str(line) for line in verdict(comparison))
    return doc.Report(
        subject=subject,
        verdict=first,
        tone="warn" if first.startswith(("Only", "Neither")) else "good",
        lead=more,
        sections=(
            *(_charts(comparison) if len(comparison.candidates) == 2 else ()),
            doc.Section("differences", "What differs", _differences(comparison)),
        ),
        data=comparison.figures(),
        chart=lambda: draw_stacked_bars(_memory(comparison)),
    )


def _plans(comparison: Comparison) -> dict[str, Candidate]:
    sides = {"A": comparison.first.candidate, "B": comparison.second.candidate}
    return {f"{letter}: {plan.rung}": plan for letter, plan in sides.items() if plan is not None}


def _memory(comparison: Comparison) -> StackedBars:
    assert comparison.context is not None, "plans have a context"
    return memory_bars(_plans(comparison), comparison.context.cluster, with_sources=True)


def _charts(comparison: Comparison) -> list[doc.Section]:
    plans = _plans(comparison)
    rows: list[list[doc.Cell]] = [
        [row.title, *(doc.figure_of(value or None, row.write) for value in row.values)]
        for row in figure_rows(comparison)
    ]
    rows.append(["verdict", *(doc.Figure(plan.fit.reason, None) for plan in plans.values())])
    memory_table, time_table = doc.plan_tables(plans)
    time = joined(
        doc.note("For every 1,000 tokens, so that plans of different batches compare."),
        doc.figure(time_bars(plans, with_sources=True), draw_stacked_bars, time_table),
    )
    return [
        doc.Section("figures", "Side by side", doc.table(["", "A", "B"], rows)),
        doc.Section("memory", "Memory per GPU", doc.figure(_memory(comparison), draw_stacked_bars, memory_table)),
        doc.Section("time", "Time of a step", time),
    ]


def _differences(comparison: Comparison) -> Markup:
    rows = [
        [doc.key_and_meaning(found.key, found.meaning), _value(found.first), _value(found.second)]
        for found in comparison.differences
        if found.acts
    ]
    idle = [found.key for found in comparison.differences if not found.acts]
    return joined(
        doc.note(f"* DeepSpeed {comparison.deepspeed}'s default."),
        doc.table(["key, and what it decides", "A", "B"], rows) or doc.note("No setting with an effect."),
        doc.note(f"Without effect at these ZeRO stages: {', '.join(idle)}.") if idle else None,
    )


def _value(setting: Setting) -> str:
    if setting.origin == "unset":
        return "not set"
    return doc.value_words(setting.value) + (" *" if setting.origin == "default" else "")
