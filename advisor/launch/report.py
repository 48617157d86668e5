"""How a launch ended, for people; and what a dry one would start."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from ...ds_configs.launch_commands import shell_line
from ..reports.history import without_nan
from ..terminal.lines import blank, copyable, row, sentence
from ..terminal.units import gib, rate, seconds
from .request import FailureKind, LaunchRequest, Outcome
from .run import environment_of, launch_line, predicted_host_bytes
from .session import Session

KINDS: dict[FailureKind, str] = {
    "gpu_out_of_memory": "The GPU's memory ran out",
    "host_out_of_memory": "The host's memory ran out",
    "communication_timeout": "The ranks waited for each other in vain",
    "disk_full": "The disk is full",
    "nan_loss": "The loss is not a number",
    "lost_rank": "A rank was lost",
    "not_resumed": "It did not resume",
    "crash": "The script failed",
}

_TAIL_LINES = 12
T = TypeVar("T")


def render_session(session: Session, console: Console) -> None:
    """Print the end of a session."""
    for objection in session.objections:
        sentence(console, f"Not started: {objection.what}.", style="bold")
        sentence(console, f"{objection.fix[:1].upper()}{objection.fix[1:]}.")
    if session.objections:
        sentence(console, "--no-check starts it all the same.")
        return
    request, outcome = session.attempts[-1]
    _render_end(outcome, console)
    if outcome.last_step:
        render_figures(request, outcome, console)
    elif outcome.status == "finished":
        sentence(console, "DeepSpeed's engine was not seen to step: did the script take the configuration?")
    for warning in outcome.warnings:
        sentence(console, f"Warned: {warning}.")
    sentence(console, f"Output of the ranks: {outcome.folder}/rank*.log")
    if session.next is not None:
        blank(console)
        sentence(
            console,
            f"To go on: {session.next.what}."
            if session.next.question is None
            else f"--fallback would go on with {session.next.what}:",
        )
        if session.next.question is not None:
            copyable(console, [session.next.command])


def _render_end(outcome: Outcome, console: Console) -> None:
    took = seconds(outcome.seconds)
    if outcome.failure is None:
        how = "Finished" if outcome.status == "finished" else "Stopped as asked"
        sentence(console, f"{how} after step {outcome.last_step}, {took}.", style="bold")
        if outcome.status == "stopped" and outcome.checkpoint is not None:
            sentence(console, f"The last checkpoint is {outcome.checkpoint}; --resume_from_checkpoint goes on from it.")
        elif outcome.status == "stopped":
            sentence(console, "No checkpoint of the Trainer was seen.")
        return
    failure = outcome.failure
    where = "" if failure.rank is None else f", first on rank {failure.rank}"
    sentence(console, f"{KINDS[failure.kind]}{where}, after step {failure.step}, {took}.", style="bold")
    sentence(console, failure.message)
    for evidence in failure.evidence:
        sentence(console, f"Evidence: {evidence}.")
    if outcome.checkpoint is not None:
        sentence(console, f"The last checkpoint is {outcome.checkpoint}.")
    log = outcome.folder / ("launcher.log" if failure.rank is None else f"rank{failure.rank}.log")
    for line in _tail(log):
        row(console, Text(f"  | {line}", style="dim"))


def render_figures(request: LaunchRequest, outcome: Outcome, console: Console) -> None:
    """Measured beside predicted; what the device has no counter for is left out."""
    row(console, Text(f" {'':<20}{'measured':>12}{'predicted':>12}", style="bold"))
    for name, measured, predicted in _figures(request, outcome):
        if measured is not None:
            row(console, Text(f" {name:<20}{measured:>12}{predicted or '-':>12}"))


def _figures(request: LaunchRequest, outcome: Outcome) -> list[tuple[str, str | None, str | None]]:
    """(name, measured, predicted), None for what is not known."""

    def said(value: T | None, unit: Callable[[T], str]) -> str | None:
        return None if value is None else unit(value)

    peaks, prediction = outcome.peaks, request.prediction
    memory, time = (prediction.memory, prediction.time) if prediction is not None else (None, None)
    return [
        ("tokens/s", said(outcome.tokens_per_s, rate), None if time is None else rate(time.tokens_per_s)),
        ("step", said(outcome.step_s, seconds), None if time is None else seconds(time.step_s)),
        (
            "GPU GiB, device",
            said(peaks.device_bytes, gib),
            None if memory is None else gib(memory.device_bytes_per_gpu),
        ),
        (
            "GPU GiB, reserved",
            said(peaks.reserved_bytes, gib),
            None if memory is None else gib(memory.reserved_bytes_per_gpu),
        ),
        (
            "GPU GiB, allocated",
            said(peaks.allocated_bytes, gib),
            None if memory is None else gib(memory.allocated_bytes_per_gpu),
        ),
        ("host GiB", gib(peaks.host_bytes), said(predicted_host_bytes(request), gib)),
    ]


def dry_lines(request: LaunchRequest) -> list[tuple[str, str]]:
    """(where, the line that runs there) for every node, exactly as `launch` starts it, but for the port on one node,
    which is a free one then."""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in environment_of(request).items())
    meeting = request.rendezvous
    if meeting is None or meeting.kind != "static":
        where = {"hostfile": "on this node, which reaches the others by ssh", "slurm": "in the allocation"}
        return [
            ("on this node" if meeting is None else where[meeting.kind], variables + shell_line(launch_line(request)))
        ]
    return [
        (
            f"on node {node}",
            variables
            + shell_line(
                launch_line(
                    replace(
                        request,
                        rendezvous=replace(meeting, node_rank=str(node)),
                        folder=request.folder.with_name(f"node{node}"),
                    )
                )
            ),
        )
        for node in range(request.cluster.nodes)
    ]


def json_form(session: Session) -> dict[str, Any]:
    """One object: why it was not started, or every attempt."""
    return {
        "started": not session.objections,
        "objections": [{"what": each.what, "fix": each.fix} for each in session.objections],
        "attempts": [_attempt(request, outcome) for request, outcome in session.attempts],
        "next": None
        if session.next is None
        else {
            "what": session.next.what,
            "command": session.next.command if session.next.question is not None else None,
        },
    }


def _attempt(request: LaunchRequest, outcome: Outcome) -> dict[str, Any]:
    form: dict[str, Any] = without_nan(
        {
            **asdict(outcome),
            "folder": str(outcome.folder),
            "checkpoint": None if outcome.checkpoint is None else str(outcome.checkpoint),
        }
    )
    return {"launcher": request.launcher, "config": str(request.config_path), **form}


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
