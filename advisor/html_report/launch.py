"""The report of a launch or of its record: its end, measured and predicted figures, and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...estimators.errors import WorkloadError
from ...estimators.json_form import from_json
from ...probes.store import Record
from ..answer.verdict import Tone
from ..launch.request import LaunchOutcome, LaunchStatus
from ..launch.session import Session
from ..render.history import history_of, machine_title, render_history
from ..render.launch import (
    MeasuredAndPredicted,
    end_sentence,
    figures_of,
    launch_report,
    measured_and_predicted,
    render_session,
)
from ..text.labels import versions_label
from ..text.units import gib, rate, seconds
from . import document as doc
from .canvas import Markup, element, joined
from .line_charts import draw_losses

_TONES: Mapping[LaunchStatus, Tone] = {"finished": "good", "stopped": "unsure", "failed": "bad"}


def launch_report_of(session: Session) -> doc.Report:
    """Return the report of the last attempt."""
    form, following = launch_report(session), session.following
    text = doc.as_printed(lambda console: render_session(session, console))
    evidence = doc.Section("evidence", "How it is known", text)
    if not session.attempts:
        objections = doc.bullets([f"{each.what}: {each.fix}" for each in session.objections])
        return doc.Report(
            subject="Launch",
            verdict="It was not started.",
            tone="bad",
            lead=(),
            sections=(doc.Section("why", "Why", objections), evidence),
            data=form,
        )
    request, outcome = session.attempts[-1].request, session.attempts[-1].outcome
    attempts: list[list[doc.Cell]] = [
        [
            str(attempt.config),
            attempt.launcher,
            attempt.status,
            doc.Figure(str(attempt.last_step), attempt.last_step),
            attempt.failure.message if attempt.failure else "",
            str(attempt.folder),
        ]
        for attempt in form.attempts
    ]
    titles = ["configuration", "launcher", "how it ended", "last step", "", "output"]
    further = Markup()
    if following is not None:
        further = joined(element("p", following.description, class_="lead"), doc.copyable(following.command or ""))
    return _report(
        f"Training by {request.script.target} · {request.run.model_name or 'a model of its own'}",
        outcome,
        measured_and_predicted(session.attempts[-1]),
        (
            doc.Section("loss", "Loss", _loss(outcome)),
            doc.Section("attempts", "Attempts", doc.table(titles, attempts)),
            doc.Section("next", "To go on", further),
            doc.configuration(request.run.config, request.config_path.name),
            evidence,
        ),
        data=form,
    )


def record_report(record: Record) -> doc.Report:
    """Return the report of a recorded training. Losses and the ranks' output are not recorded. Raises WorkloadError for
    a record of another kind."""
    if record.kind != "training":
        raise WorkloadError(
            f"record {record.id} is a {record.kind}",
            why="a report can be made of a training",
            fix="name one; ds-advise history lists them",
        )
    names = ("status", "failure", "peaks", "seconds", "step_s", "tokens_per_step", "tokens_per_s")
    kept = {name: record.result[name] for name in names if name in record.result}
    outcome = from_json(LaunchOutcome, {**kept, "last_step": record.result["steps"], "folder": Path()})
    predicted = record.result.get("predicted") or {}
    figures = ("tokens_per_s", "step_s", "device_bytes", "reserved_bytes", "allocated_bytes", "host_bytes")
    tokens_per_s, step_s, *memory = (predicted.get(name) for name in figures)
    if tokens_per_s and step_s and outcome.tokens_per_step:  # the record's predicted step has full samples
        step_s = outcome.tokens_per_step / tokens_per_s
    made = f"Made {record.made_at[:16].replace('T', ' ')} UTC by {versions_label(record.versions)}"
    text = doc.as_printed(
        lambda console: render_history([record], console, path=Path("results.sqlite"), more=False),
        "The record as it is printed",
    )
    return _report(
        f"Training of {record.model_name} · record {record.id}",
        outcome,
        figures_of(outcome, (tokens_per_s, step_s, *memory)),
        (
            doc.configuration(dict(record.plan), "ds_config.json"),
            doc.Section("evidence", "How it is known", text),
        ),
        data=history_of([record]),
        origin=[f"{made}, on {machine_title(record.machine)}."],
    )


def _report(
    subject: str,
    outcome: LaunchOutcome,
    figures: Sequence[MeasuredAndPredicted],
    sections: Sequence[doc.Section],
    *,
    data: Any,
    origin: Sequence[str] = (),
) -> doc.Report:
    failure = [] if outcome.failure is None else [outcome.failure.message, *outcome.failure.evidence]
    tiles = [("it took", seconds(outcome.seconds), f"{outcome.last_step:,} steps")]
    if outcome.tokens_per_s is not None:
        tiles.append(("tokens/s", rate(outcome.tokens_per_s), "measured, padding too"))
    if outcome.step_s is not None:
        tiles.append(("one step", seconds(outcome.step_s), "median"))
    if outcome.peaks.device_bytes is not None:
        tiles.append(("GiB of a GPU", gib(outcome.peaks.device_bytes), "at most"))
    rows: list[list[doc.Cell]] = [
        [name, doc.figure_of(measured, unit), doc.figure_of(predicted, unit)]
        for name, measured, predicted, unit in figures
        if measured is not None
    ]
    table = doc.table(["", "measured", "predicted"], rows)
    return doc.Report(
        subject=subject,
        verdict=end_sentence(outcome),
        tone=_TONES[outcome.status],
        lead=[*failure, *(f"Warned: {warning}." for warning in outcome.warnings), *origin],
        tiles=tiles,
        sections=(doc.Section("figures", "Measured and predicted", table), *sections),
        data=data,
    )


def _loss(outcome: LaunchOutcome) -> Markup:
    points = [(step, loss) for step, loss in outcome.losses if loss is not None]
    if len(points) < 2:
        return Markup()
    rows: list[list[doc.Cell]] = [
        [f"{step}", doc.figure_of(loss, "{:.4g}".format)] for step, loss in outcome.losses[-20:]
    ]
    return doc.figure(points, draw_losses, doc.folded("The last steps as a table", doc.table(["step", "loss"], rows)))
