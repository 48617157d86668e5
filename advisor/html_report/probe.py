"""The report of a probe: measured and predicted figures."""

from __future__ import annotations

from pathlib import Path

from ..render.runs import FAILURE_SENTENCES, UNITS, probe_place, render_probe
from ..text.labels import versions_label
from ..text.units import gib, percent, rate, seconds
from ..verification.probe import ProbeAnswer
from . import document as doc
from .bar_charts import Bar, Part, StackedBars, draw_stacked_bars
from .canvas import Markup, joined

_SOURCES = {"measured": "measured", "closed form": "analytic", "dry run": "dry_run"}
"""Attributes of a `ProbeFigure` by their title."""


def probe_report(answer: ProbeAnswer, config_path: Path) -> doc.Report:
    """The report."""
    result, failure = answer.result, answer.result.failure
    versions = versions_label(result.versions)
    lead, tiles, figures = f"{probe_place(answer)}; random weights and tokens unless a checkpoint was given.", [], []
    if failure is not None:
        lead = f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}"
    else:
        tiles = [
            ("tokens/s", rate(result.tokens_per_s), "measured"),
            ("one step", seconds(result.step_s), f"{result.tokens_per_step:,} tokens"),
            ("steps", str(len(result.ranks[0].losses)), f"{len(result.ranks)} ranks"),
        ]
        figures = [
            doc.Section("figures", "Measured and predicted", _figures(answer)),
            doc.Section("ranks", "Rank by rank", _ranks(answer)),
        ]
    evidence = joined(
        doc.note(f"A real run ({versions}) in {seconds(result.seconds)}."),
        doc.as_printed(lambda console: render_probe(answer, console)),
    )
    title = "The configuration, as DeepSpeed got it"
    return doc.Report(
        subject=f"Probe of {answer.run.model_name or 'a module'}",
        verdict="It runs." if failure is None else FAILURE_SENTENCES[failure.kind],
        tone="good" if failure is None else "bad",
        lead=[lead],
        tiles=tiles,
        sections=(
            *figures,
            doc.configuration(result.config, config_path.name, title),
            doc.Section("evidence", "How it is known", evidence),
        ),
        data=answer.to_json(),
    )


def _figures(answer: ProbeAnswer) -> Markup:
    bars = []
    for found in answer.figures:
        if found.unit != "bytes" or not found.measured:
            continue
        for title, attribute in _SOURCES.items():
            value = getattr(found, attribute)
            if value is None:
                continue
            ink, hint = "weights" if title == "measured" else "other", f"{found.name}, {title}: {gib(int(value))} GiB"
            error = getattr(found, f"{attribute}_error", None)
            off = "" if error is None else f" ({'+' if error >= 0 else '-'}{percent(abs(error))})"
            bars.append(
                Bar(
                    label=f"{found.name}, {title}",
                    parts=(Part(name=title, value=value, ink=ink, hint=hint),),
                    note=f"{gib(int(value))}{off}",
                    chosen=title == "measured",
                )
            )
    chart = StackedBars(title="Memory, measured and predicted, in GiB", bars=tuple(bars))
    rows: list[list[doc.Cell]] = [
        [found.name, *(doc.figure_of(getattr(found, attribute), UNITS[found.unit]) for attribute in _SOURCES.values())]
        for found in answer.figures
    ]
    return joined(doc.figure(chart, draw_stacked_bars) if bars else None, doc.table(["", *_SOURCES], rows))


def _ranks(answer: ProbeAnswer) -> Markup:
    names = ("forward_s", "backward_s", "optimizer_s", "total_s")
    rows: list[list[doc.Cell]] = [
        [
            f"rank {report.rank}",
            *(doc.duration(sum(getattr(step, name) for step in report.steps) / len(report.steps)) for name in names),
        ]
        for report in answer.result.ranks
        if report.steps
    ]
    return doc.table(["", "forward", "backward", "optimizer", "a step"], rows)
