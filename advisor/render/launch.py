"""How a launch ended, for people and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict, cast

from rich.console import Console
from rich.text import Text

from ...ds_configs.launch_commands import Launcher
from ...estimators.estimate import Evidence, TimeEstimate
from ..launch.command import dry_lines
from ..launch.fallback import Continuation
from ..launch.request import FAILURE_TITLES, FailureKind, LaunchOutcome, LaunchRequest, LaunchStatus, TrainingFailure
from ..launch.session import Session
from ..text.lines import blank, cells, copyable, ended, row, sentence
from ..text.output import Output
from ..text.units import gib, rate, seconds
from .history import without_nan

_TAIL_LINES = 12

_PREDICTED_BY: dict[Evidence, str] = {
    "analytic": "by the closed form",
    "dry-run": "by a dry run",
    "solo-probe": "by a probe of one rank",
    "probe": "by a probe",
    "training": "by an earlier training",
}

_NOT_TAKEN = re.compile(
    r"unrecognized arguments: .*--deepspeed|no such option:? .*--deepspeed|argument --deepspeed|"
    r"we were given deepspeed configs|arguments are not used by the HfArgumentParser.*--deepspeed",
    flags=re.IGNORECASE,
)
"""How argparse, Click, DeepSpeed and transformers refuse it."""


def show_dry(request: LaunchRequest, output: Output) -> int:
    """Print what would run on each node; answers the exit code."""
    lines = dry_lines(request)

    def render(console: Console) -> None:
        for where, line in lines:
            row(console, Text(f"# {where}"))
            row(console, Text(line))

    output.show(lambda: [{"where": where, "command": line} for where, line in lines], render)
    return 0


def render_session(session: Session, console: Console) -> None:
    """Print the end of a session."""
    for objection in session.objections:
        sentence(console, ended(f"Not started: {objection.what}"), style="bold")
        sentence(console, ended(f"{objection.fix[:1].upper()}{objection.fix[1:]}"))
    if session.objections:
        sentence(console, "--no-check starts it all the same.")
        return
    request, outcome = session.attempts.made[-1]
    _render_end(outcome, console)
    if outcome.failure is not None and request.passes_config and _NOT_TAKEN.search(outcome.failure.message):
        sentence(console, "The script does not take the configuration: --no-pass-config does not hand it over.")
    if outcome.last_step:
        render_figures(request, outcome, console)
    elif outcome.status == "finished":
        sentence(console, "DeepSpeed's engine was not seen to step: did the script take the configuration?")
    for warning in outcome.warnings:
        sentence(console, f"Warned: {warning}.")
    sentence(console, f"Output of the ranks: {outcome.folder}/rank*.log")
    if session.attempts.following is not None:
        _render_following(session.attempts.following, console)


def _render_following(following: Continuation, console: Console) -> None:
    blank(console)
    if following.command is None:
        sentence(console, f"To go on: {following.description}.")
    else:
        sentence(console, f"--fallback would go on with {following.description}:")
        copyable(console, [following.command])


def _render_end(outcome: LaunchOutcome, console: Console) -> None:
    took = seconds(outcome.seconds)
    if outcome.failure is not None:
        render_failure(outcome.failure, console, took=took)
        if outcome.checkpoint is not None:
            sentence(console, f"The last checkpoint is {outcome.checkpoint}.")
        rank = outcome.failure.rank
        for line in _tail(outcome.folder / ("launcher.log" if rank is None else f"rank{rank}.log")):
            row(console, Text(f"  | {line}", style="dim"))
        return
    how = "Finished" if outcome.status == "finished" else "Stopped as asked"
    sentence(console, f"{how} after step {outcome.last_step}, {took}.", style="bold")
    if outcome.status == "stopped" and outcome.checkpoint is not None:
        sentence(console, f"The last checkpoint is {outcome.checkpoint}; --resume_from_checkpoint goes on from it.")
    elif outcome.status == "stopped":
        sentence(console, "No checkpoint of the Trainer was seen.")


def render_failure(failure: TrainingFailure, console: Console, *, took: str = "", style: str = "bold") -> None:
    """What failed, where and when, in the error's own words and with its evidence."""
    where = "" if failure.rank is None else f", first on rank {failure.rank}"
    when = f"after step {failure.step}" + (f", {took}" if took else "")
    sentence(console, f"{FAILURE_TITLES[failure.kind]}{where}, {when}.", style=style)
    sentence(console, failure.message)
    for evidence in failure.evidence:
        sentence(console, f"Evidence: {evidence}.")


def render_figures(request: LaunchRequest, outcome: LaunchOutcome, console: Console) -> None:
    """Measured beside predicted, the step for as many tokens as were measured; what the device has no counter for is
    left out."""
    cells(console, f" {'':<20}{'measured':>12}{'predicted':>12}", style="bold")
    prediction = None if outcome.differences else request.prediction
    for name, measured, predicted, unit in measured_and_predicted(request, outcome):
        if measured is not None:
            cells(console, f" {name:<20}{unit(measured):>12}{'-' if predicted is None else unit(predicted):>12}")

    if outcome.tokens_per_step is not None:
        by = "" if prediction is None else f" Predicted {_PREDICTED_BY[prediction.evidence]}, for as many."
        sentence(console, f"Padding counts as tokens: {outcome.tokens_per_step:,.0f} in a step.{by}")


MeasuredAndPredicted = tuple[str, float | None, float | None, Callable[[Any], str]]
"""A figure's name, what was measured, what was predicted, and how it is written."""


def measured_and_predicted(request: LaunchRequest, outcome: LaunchOutcome) -> list[MeasuredAndPredicted]:
    """The figures of a training, those predicted for as many tokens as were measured."""
    peaks, prediction = outcome.peaks, None if outcome.differences else request.prediction
    memory, time = (prediction.memory, prediction.time) if prediction is not None else (None, None)
    return [
        ("tokens/s", outcome.tokens_per_s, None if time is None else time.tokens_per_s, rate),
        ("step", outcome.step_s, None if time is None else time.step_s * _fill(outcome, time), seconds),
        ("GPU GiB, device", peaks.device_bytes, None if memory is None else memory.device_bytes_per_gpu, gib),
        ("GPU GiB, reserved", peaks.reserved_bytes, None if memory is None else memory.reserved_bytes_per_gpu, gib),
        ("GPU GiB, allocated", peaks.allocated_bytes, None if memory is None else memory.allocated_bytes_per_gpu, gib),
        ("host GiB", peaks.host_bytes, None if prediction is None else request.predicted_host_bytes, gib),
    ]


def _fill(outcome: LaunchOutcome, predicted: TimeEstimate) -> float:
    """Tokens of a measured step, as a share of those of the predicted one, whose samples are full."""
    return 1.0 if outcome.tokens_per_step is None else outcome.tokens_per_step / predicted.tokens_per_step


class ObjectionJson(TypedDict):
    """Why it was not started."""

    what: str
    fix: str


class NextJson(TypedDict):
    """How to go on after memory ran out."""

    what: str
    command: str | None


class FailureJson(TypedDict):
    """Why a training ended, by the rank that failed first."""

    kind: FailureKind
    rank: int | None
    """None where no single rank is to blame."""
    step: int
    """The last step that was completed."""
    message: str
    """One line, the error's own words."""
    evidence: list[str]
    """What shows that it is this kind."""


class PeaksJson(TypedDict):
    """The highest figures of any rank of this node; null where the device has no such counter."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    """Of one GPU, by the driver: all its processes together."""
    host_bytes: int
    """Resident memory of all ranks of this node together."""


class LaunchAttemptJson(TypedDict):
    """One training that was started."""

    launcher: Launcher
    config: str
    """The DeepSpeed configuration's file."""
    status: LaunchStatus
    failure: FailureJson | None
    last_step: int
    """The last optimizer step that every rank of this node completed; 0 where DeepSpeed's engine was not seen."""
    peaks: PeaksJson
    seconds: float
    folder: str
    """The ranks' output and records."""
    first_step_s: float | None
    """From the start to the end of the first step."""
    step_s: float | None
    """Median of the later steps."""
    tokens_per_step: float | None
    """Median of the later steps, of the whole job: every position of a batch is a token, padding too."""
    tokens_per_s: float | None
    """`tokens_per_step` / `step_s`."""
    losses: list[tuple[int, float | None]]
    """(step, loss), as far as the ranks reported them; null: it was no number."""
    differences: list[str]
    """Where the engine was seen to train by another plan than the one that was checked and predicted."""
    checkpoint: str | None
    """The newest that the Trainer saved."""
    warnings: list[str]
    """What was warned of while it ran."""


class SessionJson(TypedDict):
    """A launch, from the check to its end."""

    started: bool
    objections: list[ObjectionJson]
    attempts: list[LaunchAttemptJson]
    next: NextJson | None


def json_form(session: Session) -> SessionJson:
    """One object: why it was not started, or every attempt."""
    following = session.attempts.following
    return {
        "started": not session.objections,
        "objections": [{"what": each.what, "fix": each.fix} for each in session.objections],
        "attempts": [attempt_json(request, outcome) for request, outcome in session.attempts.made],
        "next": None if following is None else {"what": following.description, "command": following.command},
    }


def attempt_json(request: LaunchRequest, outcome: LaunchOutcome) -> LaunchAttemptJson:
    """One launch with what it was started with."""
    checkpoint = None if outcome.checkpoint is None else str(outcome.checkpoint)
    form: dict[str, Any] = without_nan({**asdict(outcome), "folder": str(outcome.folder), "checkpoint": checkpoint})
    return cast(LaunchAttemptJson, {"launcher": request.launcher, "config": str(request.config_path), **form})


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
