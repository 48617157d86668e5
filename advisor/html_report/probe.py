"""The report of a probe: measured beside predicted."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from ..render.probe import ended, render_probe, where
from ..text.units import gib, percent, rate, seconds
from ..verification.probe import ProbeAnswer, ProbeFigure
from .bar_charts import Bar, Part, StackedBars, draw_stacked_bars
from .canvas import Markup, element, joined
from .document import (
    NOTHING,
    Cell,
    Figure,
    Report,
    Section,
    configuration,
    duration,
    figure,
    folded,
    html_of,
    note,
    table,
    tiles,
)
from .output_files import write_outputs


def write_probe_report(answer: ProbeAnswer, config_path: Path, html: Path | None, say: Callable[[str], None]) -> None:
    """Write the report where it is asked for."""
    write_outputs(html, None, report=lambda: probe_html(answer, config_path), picture=Markup, heading="", say=say)


def probe_html(answer: ProbeAnswer, config_path: Path) -> str:
    """The report as the text of one HTML file."""
    result, failure = answer.result, answer.result.failure
    page = io.StringIO()
    render_probe(answer, Console(file=page, width=80, highlight=False, color_system=None))
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lead = (
        [f"{where(answer)}; random weights and tokens unless a checkpoint was given."]
        if failure is None
        else [f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}"]
    )
    return html_of(
        Report(
            subject=f"Probe of {answer.run.model_name or 'a module'}",
            verdict="It runs." if failure is None else ended(failure),
            tone="good" if failure is None else "bad",
            lead=lead,
            tiles=_tiles(answer),
            sections=(
                None if failure is not None else _figures(answer),
                None if failure is not None else Section(name="ranks", title="Rank by rank", body=_ranks(answer)),
                Section(
                    name="configuration",
                    title="The configuration, as DeepSpeed got it",
                    body=configuration(result.config, config_path.name),
                )
                if result.config
                else None,
                Section(
                    name="evidence",
                    title="How it is known",
                    body=joined(
                        note(f"A real run ({versions}) in {seconds(result.seconds)}."),
                        folded("The answer as it is printed", element("pre", page.getvalue().strip("\n"))),
                    ),
                ),
            ),
            data=answer.to_json(),
        )
    )


def _tiles(answer: ProbeAnswer) -> Markup | None:
    result = answer.result
    if result.failure is not None:
        return None
    return tiles(
        [
            ("tokens/s", rate(result.tokens_per_s), "measured"),
            ("one step", seconds(result.step_s), f"{result.tokens_per_step:,} tokens"),
            ("steps", str(len(result.ranks[0].losses)), f"{len(result.ranks)} ranks"),
        ]
    )


def _figures(answer: ProbeAnswer) -> Section:
    """Memory as bars, and every figure as a table."""
    memory = [found for found in answer.figures if found.unit == "bytes" and found.measured]
    bars = tuple(
        Bar(
            label=f"{found.name}, {how}",
            parts=(Part(name=how, value=value, ink=ink, hint=f"{found.name}, {how}: {gib(int(value))} GiB"),),
            note=f"{gib(int(value))}{_off(found, value, how)}",
            chosen=how == "measured",
        )
        for found in memory
        for how, value, ink in (
            ("measured", found.measured, "weights"),
            ("closed form", found.analytic, "other"),
            ("dry run", found.dry_run, "other"),
        )
        if value is not None
    )
    chart = StackedBars(
        title="Memory, measured and predicted, in GiB",
        bars=bars,
        unit="GiB",
        write=lambda size_bytes: f"{size_bytes / 2**30:,.4g}",
        counts_in=2**30,
    )
    rows: list[list[Cell]] = [
        [found.name, *(_cell(found, value) for value in (found.measured, found.analytic, found.dry_run))]
        for found in answer.figures
    ]
    body = joined(
        figure(chart, draw_stacked_bars) if bars else None,
        table(["", "measured", "closed form", "dry run"], rows),
    )
    return Section(name="figures", title="Measured and predicted", body=body)


def _off(found: ProbeFigure, value: float, how: str) -> str:
    error = found.error(value)
    return "" if error is None or how == "measured" else f" ({'+' if error >= 0 else '-'}{percent(abs(error))})"


def _cell(found: ProbeFigure, value: float | None) -> Figure:
    if value is None:
        return Figure(NOTHING, None)
    text = {"bytes": lambda v: f"{gib(int(v))} GiB", "s": seconds, "tokens/s": rate}[found.unit](value)
    return Figure(text, value)


def _ranks(answer: ProbeAnswer) -> Markup:
    """Where each rank's steps went, by the engine's calls: means of its steps."""
    names = ("forward_s", "backward_s", "optimizer_s", "total_s")
    rows: list[list[Cell]] = [
        [
            f"rank {report.rank}",
            *(duration(sum(getattr(step, name) for step in report.steps) / len(report.steps)) for name in names),
        ]
        for report in answer.result.ranks
        if report.steps
    ]
    return table(["", "forward", "backward", "optimizer", "a step"], rows)
