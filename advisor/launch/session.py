"""A launch from the question to the end: check, start, keep what was measured, and go on with less where that is
wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console

from ...estimators.errors import WorkloadError
from .check import How, Objection, objections, prediction_of
from .fallback import Continuation, continuation
from .keep import keep_training
from .question.question import LaunchQuestion
from .request import LaunchRequest, Outcome
from .run import launch

Check = Literal["auto", "dry-run", "probe"]

_ATTEMPTS = 4
"""Plans that are tried one after the other: each takes at least 5 % less, and the ladder has no more steps than
these."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """objections: why nothing was started. attempts: what was run, in order. next: how to go on after the last of them,
    None where that did not fail."""

    objections: tuple[Objection, ...] = ()
    attempts: tuple[tuple[LaunchRequest, Outcome], ...] = ()
    next: Continuation | None = None


def run_session(
    question: LaunchQuestion,
    *,
    check: Check | None,
    fallback: bool,
    verbose: bool,
    console: Console,
    say: Callable[[str], None],
) -> Session:
    """Launch what is asked.

    check:    how to see beforehand that it fits, None: not at all. "auto": a probe where the ranks of the whole job can
              run here, else a dry run.

    Raises WorkloadError where a check is wanted and the model is not known; what `launch` and the check raise.
    """
    if check is not None:
        found = _check(question, check, say)
        if found:
            return Session(objections=tuple(found))
        if question.run is not None:  # a probe that was just made knows the speed better
            question = replace(question, request=replace(question.request, prediction=prediction_of(question.run)))
    attempts: list[tuple[LaunchRequest, Outcome]] = []
    first = question.request.folder
    while True:
        outcome = launch(question.request, verbose=verbose, console=console)
        keep_training(question.request, outcome)
        attempts.append((question.request, outcome))
        if outcome.failure is None or outcome.failure.kind not in ("gpu_out_of_memory", "host_out_of_memory"):
            return Session(attempts=tuple(attempts))
        go_on = continuation(question, outcome, first / f"fallback-{len(attempts)}")
        if not fallback or go_on.question is None or len(attempts) == _ATTEMPTS:
            return Session(attempts=tuple(attempts), next=go_on)
        say(f"{outcome.failure.message}; going on with {go_on.what}")
        question = go_on.question


def _check(question: LaunchQuestion, check: Check, say: Callable[[str], None]) -> list[Objection]:
    run, request = question.run, question.request
    if run is None:
        raise WorkloadError(
            "the model is not known, so whether it fits cannot be checked",
            why="the script's arguments name none",
            fix="pass --model NAME, or --no-check to start it all the same",
        )
    runs_here = request.cluster.is_this_machine and request.cluster.nodes == 1
    how: How = "probe" if check == "probe" or (check == "auto" and runs_here) else "dry-run"
    kept = question.arguments.number("save_total_limit")
    return objections(
        run,
        request.prediction,
        how=how,
        device=request.device,
        output_dir=question.arguments.output_dir,
        # The Trainer saves a new checkpoint before it removes the oldest.
        checkpoints=1 if kept is None else kept + 1,
        on_progress=say,
    )
