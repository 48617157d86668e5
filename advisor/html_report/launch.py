"""The report of a launch, or of one that was kept: how it ended, measured beside predicted, and the loss."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...estimators.errors import WorkloadError
from ...probes.store import Record
from ..launch.request import FAILURE_TITLES, LaunchOutcome, LaunchStatus, Peaks, TrainingFailure
from ..launch.session import Session
from ..render.bench import machine_title
from ..render.history import json_form, render_history
from ..render.launch import (
    LaunchReport,
    MeasuredAndPredicted,
    figures_of,
    launch_report,
    measured_and_predicted,
    render_session,
)
from ..text.units import gib, rate, seconds
from .canvas import Markup, element, joined
from .document import (
    NOTHING,
    Cell,
    Figure,
    Report,
    Section,
    Tone,
    bullets,
    configuration,
    copyable,
    figure,
    folded,
    html_of,
    paragraphs,
    table,
    tiles,
)
from .line_charts import Curve, draw_curve
from .output_files import write_outputs


def write_launch_report(session: Session, html: Path | None, say: Callable[[str], None]) -> None:
    """Write the report where it is asked for."""
    write_outputs(html, None, report=lambda: session_html(session), picture=Markup, heading="", say=say)


_TONES: Mapping[LaunchStatus, Tone] = {"finished": "good", "stopped": "warn", "failed": "bad"}


def session_html(session: Session) -> str:
    """The report as the text of one HTML file."""
    page = io.StringIO()
    render_session(session, Console(file=page, width=80, highlight=False, color_system=None))
    form = launch_report(session)
    attempts = session.attempts
    printed = folded("The answer as it is printed", element("pre", page.getvalue().strip("\n")))
    evidence = Section(name="evidence", title="How it is known", body=printed)
    if not attempts:
        objections = [f"{each.what}: {each.fix}" for each in session.objections]
        sections: list[Section | None] = [Section(name="why", title="Why", body=bullets(objections)), evidence]
        return html_of(
            Report(
                subject="Launch",
                verdict="It was not started.",
                tone="bad",
                lead=[],
                tiles=None,
                sections=sections,
                data=form,
            )
        )
    request, outcome = attempts[-1].request, attempts[-1].outcome
    return html_of(
        Report(
            subject=f"Training by {request.script.target} · {request.run.model_name or 'a model of its own'}",
            verdict=_verdict(outcome),
            tone=_TONES[outcome.status],
            lead=_lead(outcome),
            tiles=_tiles(outcome),
            sections=(
                _figures(measured_and_predicted(attempts[-1])),
                _loss(outcome),
                Section(name="attempts", title="Attempts", body=_attempts(form)),
                _next(form),
                Section(
                    name="configuration",
                    title="The configuration",
                    body=configuration(request.run.config, request.config_path.name),
                ),
                evidence,
            ),
            data=form,
        )
    )


def record_html(record: Record) -> str:
    """The report of a training that was kept; its losses and the ranks' output were not.

    Raises WorkloadError for a record of another kind.
    """
    if record.kind != "training":
        raise WorkloadError(
            f"record {record.id} is a {record.kind}",
            why="a report can be made of a training",
            fix="name one; ds-advise history lists them",
        )
    outcome, form = _outcome(record.result), json_form([record])
    page = io.StringIO()
    console = Console(file=page, width=80, highlight=False, color_system=None)
    render_history([record], console, path=Path("results.sqlite"), more=False)
    libraries = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    made = f"Made {record.made_at[:16].replace('T', ' ')} UTC by {libraries}"
    return html_of(
        Report(
            subject=f"Training of {record.model_name} · record {record.id}",
            verdict=_verdict(outcome),
            tone=_TONES[outcome.status],
            lead=[*_lead(outcome), f"{made}, on {machine_title(record.machine)}."],
            tiles=_tiles(outcome),
            sections=(
                _figures(_kept_figures(outcome, record.result.get("predicted") or {})),
                Section(
                    name="configuration",
                    title="The configuration",
                    body=configuration(dict(record.plan), "ds_config.json"),
                ),
                Section(
                    name="evidence",
                    title="How it is known",
                    body=folded("The record as it is printed", element("pre", page.getvalue().strip("\n"))),
                ),
            ),
            data=form,
        )
    )


def _outcome(result: Mapping[str, Any]) -> LaunchOutcome:
    """How a training ended, by what was kept of it."""
    failure = result.get("failure")
    return LaunchOutcome(
        status=result["status"],
        failure=None if failure is None else TrainingFailure(**{**failure, "evidence": tuple(failure["evidence"])}),
        last_step=result["steps"],
        peaks=Peaks(**result["peaks"]),
        seconds=result["seconds"],
        folder=Path(),
        step_s=result.get("step_s"),
        tokens_per_step=result.get("tokens_per_step"),
        tokens_per_s=result.get("tokens_per_s"),
    )


def _kept_figures(outcome: LaunchOutcome, predicted: Mapping[str, Any]) -> list[MeasuredAndPredicted]:
    """`measured_and_predicted` of a record, in which a predicted step has full samples."""
    names = ("tokens_per_s", "step_s", "device_bytes", "reserved_bytes", "allocated_bytes", "host_bytes")
    tokens_per_s, step_s, *memory = (predicted.get(name) for name in names)
    if tokens_per_s and step_s and outcome.tokens_per_step:
        step_s = outcome.tokens_per_step / tokens_per_s
    return figures_of(outcome, (tokens_per_s, step_s, *memory))


def _verdict(outcome: LaunchOutcome) -> str:
    if outcome.failure is not None:
        rank = outcome.failure.rank
        where = "" if rank is None else f", first on rank {rank}"
        return f"{FAILURE_TITLES[outcome.failure.kind]}{where}, after step {outcome.last_step}."
    how = "Finished" if outcome.status == "finished" else "Stopped as asked"
    return f"{how} after step {outcome.last_step}."


def _lead(outcome: LaunchOutcome) -> list[str]:
    told = [] if outcome.failure is None else [outcome.failure.message, *outcome.failure.evidence]
    return [*told, *(f"Warned: {warning}." for warning in outcome.warnings)]


def _tiles(outcome: LaunchOutcome) -> Markup:
    shown = [("it took", seconds(outcome.seconds), f"{outcome.last_step:,} steps")]
    if outcome.tokens_per_s is not None:
        shown.append(("tokens/s", rate(outcome.tokens_per_s), "measured, padding too"))
    if outcome.step_s is not None:
        shown.append(("one step", seconds(outcome.step_s), "median"))
    if outcome.peaks.device_bytes is not None:
        shown.append(("GiB of a GPU", gib(outcome.peaks.device_bytes), "at most"))
    return tiles(shown)


def _figures(figures: Sequence[MeasuredAndPredicted]) -> Section | None:
    rows: list[list[Cell]] = [
        [
            name,
            Figure(unit(measured), measured),
            Figure(NOTHING if predicted is None else unit(predicted), predicted),
        ]
        for name, measured, predicted, unit in figures
        if measured is not None
    ]
    if not rows:
        return None
    return Section(name="figures", title="Measured and predicted", body=table(["", "measured", "predicted"], rows))


def _loss(outcome: LaunchOutcome) -> Section | None:
    points = tuple((float(step), loss) for step, loss in outcome.losses if loss is not None)
    if len(points) < 2:
        return None
    chart = Curve(title="Loss by step", points=points, x_title="step", y_title="loss", write_y=lambda v: f"{v:g}")
    rows: list[list[Cell]] = [
        [f"{step}", Figure(NOTHING if loss is None else f"{loss:.4g}", loss)] for step, loss in outcome.losses[-20:]
    ]
    body = figure(chart, draw_curve, folded("The last steps as a table", table(["step", "loss"], rows)))
    return Section(name="loss", title="Loss", body=body)


def _attempts(form: LaunchReport) -> Markup:
    rows: list[list[Cell]] = [
        [
            str(attempt.config),
            attempt.launcher,
            attempt.status,
            Figure(str(attempt.last_step), attempt.last_step),
            attempt.failure.message if attempt.failure else "",
            str(attempt.folder),
        ]
        for attempt in form.attempts
    ]
    return table(["configuration", "launcher", "how it ended", "last step", "", "output"], rows)


def _next(form: LaunchReport) -> Section | None:
    if form.next is None:
        return None
    command = copyable(form.next.command) if form.next.command else None
    return Section(name="next", title="To go on", body=joined(paragraphs([form.next.what]), command))
