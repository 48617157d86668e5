"""The end of a launch, on a terminal and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from ...ds_configs.files import write_text
from ...ds_configs.job import JobKind
from ...ds_configs.job_files import job_files
from ...estimators.estimate import Evidence
from ..launch.check import Objection
from ..launch.command import dry_lines, job_of
from ..launch.failures import tail
from ..launch.request import FAILURE_TITLES, Attempt, LaunchOutcome, LaunchRequest, TrainingFailure
from ..launch.session import Session
from ..text.lines import blank, capitalised, cells, copyable, ended, row, sentence
from ..text.output import Output
from ..text.units import gib, rate, seconds

_TAIL_LINES = 12

_PREDICTED_BY: dict[Evidence, str] = {
    "analytic": "by the closed form",
    "dry-run": "by a dry run",
    "solo-probe": "by a probe of one rank",
    "probe": "by a probe",
    "training": "by an earlier training",
}

_REFUSED = re.compile(
    r"unrecognized arguments: .*--deepspeed|no such option:? .*--deepspeed|argument --deepspeed|"
    r"we were given deepspeed configs|arguments are not used by the HfArgumentParser.*--deepspeed",
    flags=re.IGNORECASE,
)
"""Errors of argparse, Click, DeepSpeed and transformers for a script that does not accept the configuration."""


@dataclass(frozen=True, kw_only=True)
class NextLaunch:
    """The next step after memory ran out."""

    what: str
    command: str | None


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """A launch, from the check to its end."""

    started: bool
    objections: tuple[Objection, ...]
    attempts: tuple[LaunchOutcome, ...]
    next: NextLaunch | None


def launch_report(session: Session) -> LaunchReport:
    """Return a launch as data for JSON."""
    following = session.following
    return LaunchReport(
        started=not session.objections,
        objections=session.objections,
        attempts=tuple(attempt.outcome for attempt in session.attempts),
        next=None if following is None else NextLaunch(what=following.description, command=following.command),
    )


def show_dry(request: LaunchRequest, output: Output) -> int:
    """Print what would run on each node, and return the exit code."""
    lines = dry_lines(request)

    def render(console: Console) -> None:
        for where, line in lines:
            row(console, Text(f"# {where}"))
            row(console, Text(line))

    output.show(lambda: [{"where": where, "command": line} for where, line in lines], render)
    return 0


def emit_jobs(request: LaunchRequest, kinds: tuple[JobKind, ...], output: Output, *, force: bool) -> int:
    """Write the job files next to the configuration, print how to start them, and return the exit code."""
    files = job_files(job_of(request), kinds, request.config_path.parent)
    for file in files:
        write_text(file.text, file.path, force=force)

    def render(console: Console) -> None:
        for file in files:
            sentence(console, f"Wrote {file.path}. Start it:")
            copyable(console, file.start)

    output.show(lambda: [{"file": str(file.path), "start": file.start} for file in files], render)
    return 0


def render_session(session: Session, console: Console) -> None:
    """Print the end of a session."""
    if session.objections:
        for objection in session.objections:
            sentence(console, ended(f"Not started: {objection.what}"), style="bold")
            sentence(console, ended(capitalised(objection.fix)))
        sentence(console, "--no-check starts it all the same.")
        return
    attempt, following = session.attempts[-1], session.following
    request, outcome = attempt.request, attempt.outcome
    took, failure, checkpoint = f", {seconds(outcome.seconds)}", outcome.failure, outcome.checkpoint
    if failure is None:
        sentence(console, end_sentence(outcome, took), style="bold")
    else:
        render_failure(failure, console, took=took)
        log = outcome.folder / ("launcher.log" if failure.rank is None else f"rank{failure.rank}.log")
    if checkpoint is not None and (failure is not None or outcome.status == "stopped"):
        goes_on = "" if failure is not None else "; --resume_from_checkpoint goes on from it"
        sentence(console, f"The last checkpoint is {checkpoint}{goes_on}.")
    elif outcome.status == "stopped":
        sentence(console, "No checkpoint of the Trainer was seen.")
    for line in tail(log).splitlines()[-_TAIL_LINES:] if failure is not None else ():
        row(console, Text(f"  | {line}", style="dim"))
    if failure is not None and request.passes_config and _REFUSED.search(failure.message):
        sentence(console, "The script does not take the configuration: --no-pass-config does not pass it.")
    if outcome.last_step:
        render_figures(attempt, console)
    elif outcome.status == "finished":
        sentence(console, "DeepSpeed's engine was not seen to step: did the script take the configuration?")
    for warning in outcome.warnings:
        sentence(console, f"Warned: {warning}.")
    sentence(console, f"Output of the ranks: {outcome.folder}/rank*.log")
    if following is not None:
        blank(console)
        sentence(console, session.following_sentence)
        if following.command is not None:
            copyable(console, [following.command])


def end_sentence(outcome: LaunchOutcome, took: str = "") -> str:
    """Return `Finished after step 9.`, or the failure with its rank and step. took: the duration, after a comma."""
    failure = outcome.failure
    if failure is not None:
        return _failure_sentence(failure, took)
    how = "Finished" if outcome.status == "finished" else "Stopped as asked"
    return f"{how} after step {outcome.last_step}{took}."


def _failure_sentence(failure: TrainingFailure, took: str) -> str:
    where = "" if failure.rank is None else f", first on rank {failure.rank}"
    return f"{FAILURE_TITLES[failure.kind]}{where}, after step {failure.step}{took}."


def render_failure(failure: TrainingFailure, console: Console, *, took: str = "", style: str = "bold") -> None:
    """Print the failure with its rank and step, its message and its evidence."""
    sentence(console, _failure_sentence(failure, took), style=style)
    sentence(console, failure.message)
    for evidence in failure.evidence:
        sentence(console, f"Evidence: {evidence}.")
    if failure.fix:
        sentence(console, f"Fix: {failure.fix}.")


def render_figures(attempt: Attempt, console: Console) -> None:
    """Print measured and predicted figures; the predicted step has the measured number of tokens. Figures without a
    counter on the device are left out."""
    request, outcome = attempt.request, attempt.outcome
    cells(console, f" {'':<20}{'measured':>12}{'predicted':>12}", style="bold")
    for name, measured, predicted, unit in measured_and_predicted(attempt):
        if measured is not None:
            cells(console, f" {name:<20}{unit(measured):>12}{'-' if predicted is None else unit(predicted):>12}")
    if outcome.tokens_per_step is not None:
        prediction = None if outcome.differences else request.prediction
        by = "" if prediction is None else f" Predicted {_PREDICTED_BY[prediction.evidence]}, for as many."
        sentence(console, f"Padding counts as tokens: {outcome.tokens_per_step:,.0f} in a step.{by}")


MeasuredAndPredicted = tuple[str, float | None, float | None, Callable[[Any], str]]
"""Name of a figure, measured value, predicted value, and format."""


def measured_and_predicted(attempt: Attempt) -> list[MeasuredAndPredicted]:
    """Return the figures of a training. The predicted step time is scaled to the measured number of tokens per step."""
    outcome, prediction = attempt.outcome, attempt.request.prediction
    predicted: tuple[float | None, ...] = (None,) * 6
    if prediction is not None and not outcome.differences:
        memory, time = prediction.memory, prediction.time
        measured_tokens = outcome.tokens_per_step or time.tokens_per_step
        predicted = (
            time.tokens_per_s,
            time.step_s * measured_tokens / time.tokens_per_step,
            memory.device_bytes_per_gpu,
            memory.reserved_bytes_per_gpu,
            memory.allocated_bytes_per_gpu,
            attempt.request.predicted_host_bytes,
        )
    return figures_of(outcome, predicted)


def figures_of(outcome: LaunchOutcome, predicted: tuple[float | None, ...]) -> list[MeasuredAndPredicted]:
    """Return the measured figures with the predicted ones. predicted: values in the order of the list below."""
    peaks = outcome.peaks
    measured: list[tuple[str, float | None, Callable[[Any], str]]] = [
        ("tokens/s", outcome.tokens_per_s, rate),
        ("step", outcome.step_s, seconds),
        ("GPU GiB, device", peaks.device_bytes, gib),
        ("GPU GiB, reserved", peaks.reserved_bytes, gib),
        ("GPU GiB, allocated", peaks.allocated_bytes, gib),
        ("host GiB", peaks.host_bytes, gib),
    ]
    return [(name, value, other, unit) for (name, value, unit), other in zip(measured, predicted, strict=True)]
