"""The report of a comparison: both sides' memory and time, and the keys that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...estimators.json_form import to_json
from ..answer.comparison import Comparison
from ..answer.explanation import explain_plan
from ..render.comparison import verdict
from ..text.job import hours, money
from ..text.labels import cluster_title, method_title
from .bar_charts import StackedBars, draw_stacked_bars
from .canvas import Markup, element, joined
from .document import (
    Cell,
    Figure,
    Report,
    Section,
    duration,
    figure,
    html_of,
    key_and_meaning,
    note,
    parts_table,
    size,
    speed,
    table,
    value_words,
)
from .output_files import write_outputs
from .plans import memory_bars, terms_by_key, time_bars


def write_comparison_report(
    comparison: Comparison, html: Path | None, plot: Path | None, say: Callable[[str], None]
) -> None:
    """Write the report, and the picture of both sides' memory where model and GPUs are known."""

    def picture() -> Markup:
        return draw_stacked_bars(_memory(comparison, _plans(comparison)))

    heading = _subject(comparison)
    write_outputs(html, plot, report=lambda: comparison_html(comparison), picture=picture, heading=heading, say=say)


def comparison_html(comparison: Comparison) -> str:
    """The report as the text of one HTML file."""
    first, *more = (str(line) for line in verdict(comparison))
    return html_of(
        Report(
            subject=_subject(comparison),
            verdict=first,
            tone="warn" if first.startswith(("Only", "Neither")) else "good",
            lead=more,
            tiles=None,
            sections=(
                *(_pictures(comparison) if _plans(comparison) else ()),
                Section(name="differences", title="What differs", body=_differences(comparison)),
            ),
            data=comparison.to_json(),
        )
    )


def _subject(comparison: Comparison) -> str:
    names = f"A: {comparison.first.name} · B: {comparison.second.name}"
    known = comparison.context
    if known is None:
        return names
    return f"{names} · {known.model.name} · {method_title(known.workload)} · {cluster_title(known.cluster)}"


def _plans(comparison: Comparison) -> list[dict[str, Any]]:
    """Both sides' candidates, named A and B; empty where their figures are not known."""
    found = []
    for letter, side in zip("AB", to_json(comparison.to_json())["sides"], strict=True):
        if side["plan"] is not None:
            found.append({**side["plan"], "rung": f"{letter}: {side['plan']['rung']}"})
    return found if len(found) == 2 else []


def _memory(comparison: Comparison, plans: list[dict[str, Any]]) -> StackedBars:
    assert comparison.context is not None, "plans have a context"
    return memory_bars(plans, comparison.context.cluster.gpu.memory_bytes, terms=_terms(comparison, "gpu_memory"))


def _terms(comparison: Comparison, section: str) -> list[Mapping[str, Any]]:
    return [
        terms_by_key(to_json(explain_plan(side.candidate).figures())["sections"][section]["terms"])
        for side in (comparison.first, comparison.second)
        if side.candidate is not None
    ]


def _pictures(comparison: Comparison) -> list[Section]:
    plans = _plans(comparison)
    sizes: list[list[Cell]] = [[title, *(size(plan[name]) for plan in plans)] for title, name in _SIZES.items()]
    rows: list[list[Cell]] = [
        ["tokens/s", *(speed(plan["tokens_per_second"]) for plan in plans)],
        *sizes,
        *_job_rows(plans),
        ["verdict", *(Figure(plan["reason"], None) for plan in plans)],
    ]
    memory = figure(_memory(comparison, plans), draw_stacked_bars, parts_table(plans, "components", size, "GiB"))
    time = figure(
        time_bars(plans, terms=_terms(comparison, "time")),
        draw_stacked_bars,
        parts_table(plans, "time_components", duration, "of one step"),
    )
    return [
        Section(name="figures", title="Side by side", body=table(["", "A", "B"], rows)),
        Section(name="memory", title="Memory per GPU", body=memory),
        Section(
            name="time",
            title="Time of a step",
            body=joined(note("For every 1,000 tokens, so that plans of different batches compare."), time),
        ),
    ]


def _job_rows(plans: list[dict[str, Any]]) -> list[list[Cell]]:
    """Hours and cost of the whole job, where it was told how much is trained."""
    jobs = [plan["job"] for plan in plans if plan["job"] is not None]
    rows: list[list[Cell]] = []
    if jobs:
        rows.append(["the whole job", *(Figure(hours(job["duration_s"]), job["duration_s"]) for job in jobs)])
    if jobs and jobs[0]["cost"] is not None:
        rows.append(["its cost", *(Figure(money(job["cost"], job["currency"]), job["cost"]) for job in jobs)])
    return rows


def _differences(comparison: Comparison) -> Markup:
    form = to_json(comparison.to_json())
    acting = [found for found in form["differences"] if found["acts"]]
    idle = [found["key"] for found in form["differences"] if not found["acts"]]
    rows = [
        [key_and_meaning(found["key"], found["meaning"]), _value(found["first"]), _value(found["second"])]
        for found in acting
    ]
    return joined(
        note(f"* DeepSpeed {comparison.deepspeed}'s default."),
        table(["key, and what it decides", "A", "B"], rows) if rows else element("p", "No setting that does anything."),
        note(f"Without effect at these ZeRO stages: {', '.join(idle)}.") if idle else None,
    )


def _value(setting: Mapping[str, Any]) -> str:
    if setting["origin"] == "unset":
        return "not set"
    text = value_words(setting["value"])
    return f"{text} *" if setting["origin"] == "default" else text


_SIZES = {
    "GiB per GPU": "device_bytes_per_gpu",
    "GiB of RAM per node": "host_bytes_per_node",
    "GiB of NVMe per node": "nvme_bytes_per_node",
}
