"""The report of a comparison: both sides' memory and time, and the keys that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...estimators.json_form import to_json
from ..answer.comparison import Comparison
from ..render.comparison import verdict
from ..search.candidate import Candidate
from ..text.job import hours, money
from ..text.labels import cluster_title, method_title
from . import document as doc
from .bar_charts import StackedBars, draw_stacked_bars
from .canvas import Markup, joined
from .plans import memory_bars, time_bars

_SIZES = {
    "GiB per GPU": "device_bytes_per_gpu",
    "GiB of RAM per node": "host_bytes_per_node",
    "GiB of NVMe per node": "nvme_bytes_per_node",
}


def comparison_report(comparison: Comparison) -> doc.Report:
    """The report, and the chart of both sides' memory."""
    form, known = to_json(comparison.figures()), comparison.context
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
            *(_charts(comparison, form) if len(_plans(comparison)) == 2 else ()),
            doc.Section("differences", "What differs", _differences(comparison, form)),
        ),
        data=form,
        chart=lambda: draw_stacked_bars(_memory(comparison)),
    )


def _plans(comparison: Comparison) -> dict[str, Candidate]:
    """The candidates of the sides that have one."""
    sides = {"A": comparison.first.candidate, "B": comparison.second.candidate}
    return {f"{letter}: {plan.rung}": plan for letter, plan in sides.items() if plan is not None}


def _memory(comparison: Comparison) -> StackedBars:
    assert comparison.context is not None, "plans have a context"
    return memory_bars(_plans(comparison), comparison.context.cluster.gpu.memory_bytes, with_sources=True)


def _charts(comparison: Comparison, form: Mapping[str, Any]) -> list[doc.Section]:
    plans, shown = _plans(comparison), [side["plan"] for side in form["sides"]]
    rows: list[list[doc.Cell]] = [["tokens/s", *(doc.speed(plan["tokens_per_second"]) for plan in shown)]]
    rows += [[title, *(doc.size(plan[name]) for plan in shown)] for title, name in _SIZES.items()]
    jobs = [plan["job"] for plan in shown if plan["job"] is not None]
    if jobs:
        rows.append(["the whole job", *(doc.Figure(hours(job["duration_s"]), job["duration_s"]) for job in jobs)])
    if jobs and jobs[0]["cost"] is not None:
        rows.append(["its cost", *(doc.Figure(money(job["cost"], job["currency"]), job["cost"]) for job in jobs)])
    rows.append(["verdict", *(doc.Figure(plan["reason"], None) for plan in shown)])
    memory_table = doc.parts_table([(name, plan.memory.components) for name, plan in plans.items()], doc.size, "GiB")
    time_parts = [(name, plan.time.components) for name, plan in plans.items()]
    time_table = doc.parts_table(time_parts, doc.duration, "of one step")
    time = joined(
        doc.note("For every 1,000 tokens, so that plans of different batches compare."),
        doc.figure(time_bars(plans, with_sources=True), draw_stacked_bars, time_table),
    )
    return [
        doc.Section("figures", "Side by side", doc.table(["", "A", "B"], rows)),
        doc.Section("memory", "Memory per GPU", doc.figure(_memory(comparison), draw_stacked_bars, memory_table)),
        doc.Section("time", "Time of a step", time),
    ]


def _differences(comparison: Comparison, form: Mapping[str, Any]) -> Markup:
    rows = [
        [doc.key_and_meaning(found["key"], found["meaning"]), _value(found["first"]), _value(found["second"])]
        for found in form["differences"]
        if found["acts"]
    ]
    idle = [found["key"] for found in form["differences"] if not found["acts"]]
    return joined(
        doc.note(f"* DeepSpeed {comparison.deepspeed}'s default."),
        doc.table(["key, and what it decides", "A", "B"], rows) or doc.note("No setting with an effect."),
        doc.note(f"Without effect at these ZeRO stages: {', '.join(idle)}.") if idle else None,
    )


def _value(setting: Mapping[str, Any]) -> str:
    if setting["origin"] == "unset":
        return "not set"
    return doc.value_words(setting["value"]) + (" *" if setting["origin"] == "default" else "")
