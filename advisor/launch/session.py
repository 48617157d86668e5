"""`ds-advise launch` from the request to the end: check that it fits, start, and go on with less memory where that is
requested. Every training is kept in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...probes.store import record_of, try_store
from ..text.output import Output
from .check import Check, Objection, objections, prediction_of
from .command import environment_of, kept_settings
from .fallback import Continuation, next_launch
from .request import FAILURE_TITLES, Attempt, LaunchOutcome, LaunchRequest
from .run import launch

_MAX_ATTEMPTS = 4
"""Plans that are tried one after the other: each takes at least 5 % less, and the ladder has no more steps."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A launch with its attempts, or the objections for which nothing was started."""

    objections: tuple[Objection, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    following: Continuation | None = None
    """How to go on after the last attempt; None where memory did not run out."""

    @property
    def finished(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].outcome.status == "finished"


def run_session(
    request: LaunchRequest, check: Check | None, *, fallback: bool, verbose: bool, output: Output
) -> Session:
    """Check the training, unless `check` is None, and launch it. Raises what `launch` and the check raise."""
    variables = environment_of(request)
    if variables:
        output.say("sets " + " ".join(f"{name}={value}" for name, value in variables.items()))
    if kept := kept_settings(request):
        output.say("keeps " + ", ".join(kept))
    if check is not None:
        if against := objections(request, check, output.say):
            return Session(objections=tuple(against))
        request = replace(request, prediction=prediction_of(request.run))  # the check may have measured the speed
    return make_attempts(request, next_launch, fallback=fallback, verbose=verbose, output=output)


def make_attempts(
    request: LaunchRequest,
    follow: Callable[[LaunchRequest, LaunchOutcome, Path], Continuation],
    *,
    fallback: bool,
    verbose: bool,
    output: Output,
    prepare: Callable[[LaunchRequest], None] = lambda _: None,
) -> Session:
    """Launch the training; with `fallback` go on with the next plan each time that memory runs out.

    follow: returns the next attempt after one that ran out of memory, in the folder that it gets.
    prepare: called before each launch.

    Raises what `launch`, `follow` and `prepare` raise.
    """
    console = output.console(on_stderr=True)
    attempts: list[Attempt] = []
    first_folder = request.folder
    while True:
        prepare(request)
        outcome = launch(request, verbose=verbose, console=console)
        attempt = Attempt(request=request, outcome=outcome)
        keep_training(attempt)
        attempts.append(attempt)
        failure = outcome.failure
        if failure is None or not failure.is_out_of_memory:
            return Session(attempts=tuple(attempts))
        following = follow(request, outcome, first_folder / f"fallback-{len(attempts)}")
        if not fallback or following.request is None or len(attempts) == _MAX_ATTEMPTS:
            return Session(attempts=tuple(attempts), following=following)
        output.say(f"{FAILURE_TITLES[failure.kind]} ({failure.message}); going on with {following.description}")
        request = following.request


def keep_training(attempt: Attempt) -> int | None:
    """Keep a training of a known model in the store; returns its number, None where nothing was kept: the engine never
    stepped, or by another plan."""
    request, outcome = attempt.request, attempt.outcome
    run, prediction = request.run, request.prediction
    if run.shape is None or not outcome.last_step or outcome.differences:
        return None
    result: dict[str, Any] = {
        "status": outcome.status,
        "failure": None if outcome.failure is None else asdict(outcome.failure),
        "world_size": run.cluster.world_size,
        "device": request.device,
        "steps": outcome.last_step,
        "seconds": outcome.seconds,
        "step_s": outcome.step_s,
        "tokens_per_step": outcome.tokens_per_step,
        "tokens_per_s": outcome.tokens_per_s,
        "peaks": asdict(outcome.peaks),
    }
    if prediction is not None:
        memory = prediction.memory
        result["predicted"] = {
            "evidence": prediction.evidence,
            "step_s": prediction.time.step_s,
            "tokens_per_s": prediction.time.tokens_per_s,
            "allocated_bytes": memory.allocated_bytes_per_gpu,
            "reserved_bytes": memory.reserved_bytes_per_gpu,
            "device_bytes": memory.device_bytes_per_gpu,
            "host_bytes": request.predicted_host_bytes,
        }
    record = record_of(run, "training", result)
    return try_store(lambda store: store.add(record), None)
