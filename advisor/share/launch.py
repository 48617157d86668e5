"""The report of a launch: how it ended, measured beside predicted, and the loss."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from ..launch.report import SessionJson, json_form, measured_and_predicted, render_session
from ..launch.request import FAILURE_TITLES, LaunchOutcome, LaunchRequest
from ..launch.session import Session
from ..pictures.curve import Curve, draw_curve
from ..pictures.markup import Markup, element, joined
from ..terminal.units import gib, rate, seconds
from .document import Report, Section, bullets, copyable, folded, html_of, paragraphs, tiles
from .figures import figure
from .tables import NOTHING, Cell, Figure, configuration, table
from .targets import share


def share_session(session: Session, html: Path | None, say: Callable[[str], None]) -> None:
    """Write the report where it is asked for."""
    share(html, None, report=lambda: session_html(session), picture=Markup, heading="", say=say)


def session_html(session: Session) -> str:
    """The report as the text of one HTML file."""
    page = io.StringIO()
    render_session(session, Console(file=page, width=80, highlight=False, color_system=None))
    form = json_form(session)
    attempts = session.attempts.made
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
    request, outcome = attempts[-1]
    return html_of(
        Report(
            subject=f"Training by {request.script.target} · {request.run.model_name or 'a model of its own'}",
            verdict=_verdict(outcome),
            tone="good" if outcome.status == "finished" else "warn" if outcome.status == "stopped" else "bad",
            lead=_lead(outcome),
            tiles=_tiles(outcome),
            sections=(
                _figures(request, outcome),
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


def _figures(request: LaunchRequest, outcome: LaunchOutcome) -> Section | None:
    rows: list[list[Cell]] = [
        [
            name,
            Figure(unit(measured), measured),
            Figure(NOTHING if predicted is None else unit(predicted), predicted),
        ]
        for name, measured, predicted, unit in measured_and_predicted(request, outcome)
        if measured is not None
    ]
    if not rows:
        return None
    return Section(name="figures", title="Measured and predicted", body=table(["", "measured", "predicted"], rows))


def _loss(outcome: LaunchOutcome) -> Section | None:
    points = tuple((float(step), loss) for step, loss in outcome.losses if loss == loss)
    if len(points) < 2:
        return None
    chart = Curve(title="Loss by step", points=points, x_title="step", y_title="loss", write_y=lambda v: f"{v:g}")
    rows: list[list[Cell]] = [[f"{step}", Figure(f"{loss:.4g}", loss)] for step, loss in outcome.losses[-20:]]
    body = figure(chart, draw_curve, folded("The last steps as a table", table(["step", "loss"], rows)))
    return Section(name="loss", title="Loss", body=body)


def _attempts(form: SessionJson) -> Markup:
    rows: list[list[Cell]] = [
        [
            attempt["config"],
            attempt["launcher"],
            attempt["status"],
            Figure(str(attempt["last_step"]), attempt["last_step"]),
            attempt["failure"]["message"] if attempt["failure"] else "",
            attempt["folder"],
        ]
        for attempt in form["attempts"]
    ]
    return table(["configuration", "launcher", "how it ended", "last step", "", "output"], rows)


def _next(form: SessionJson) -> Section | None:
    following = form["next"]
    if following is None:
        return None
    command = copyable(following["command"]) if following["command"] else None
    return Section(name="next", title="To go on", body=joined(paragraphs([following["what"]]), command))
