"""A training and, where memory ran out, those that go on with it under plans that need less. Each goes into the store,
measured beside predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...probes.store import record_of, try_store
from ..text.output import Output
from .fallback import Continuation
from .request import FAILURE_TITLES, LaunchOutcome, LaunchRequest
from .run import launch

_MOST_ATTEMPTS = 4
"""Plans that are tried one after the other: each takes at least 5 % less, and the ladder has no more steps than
these."""


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """What was run, in order."""

    made: tuple[tuple[LaunchRequest, LaunchOutcome], ...] = ()
    following: Continuation | None = None
    """How to go on after the last of them; None where memory did not run out."""


def make_attempts(
    request: LaunchRequest,
    follow: Callable[[LaunchRequest, LaunchOutcome, Path], Continuation],
    *,
    fallback: bool,
    verbose: bool,
    output: Output,
    prepare: Callable[[LaunchRequest], None] = lambda _: None,
) -> Attempts:
    """Launch the training; with `fallback` go on with the next plan each time that memory runs out.

    follow: the next attempt after one that ran out of memory, and the folder that it gets.
    prepare: called before each launch.

    Raises what `launch`, `follow` and `prepare` raise.
    """
    console = output.console(on_stderr=True)
    made: list[tuple[LaunchRequest, LaunchOutcome]] = []
    first_folder = request.folder
    while True:
        prepare(request)
        outcome = launch(request, verbose=verbose, console=console)
        keep_training(request, outcome)
        made.append((request, outcome))
        failure = outcome.failure
        if failure is None or not failure.is_out_of_memory:
            return Attempts(made=tuple(made))
        following = follow(request, outcome, first_folder / f"fallback-{len(made)}")
        if not fallback or following.request is None or len(made) == _MOST_ATTEMPTS:
            return Attempts(made=tuple(made), following=following)
        output.say(f"{FAILURE_TITLES[failure.kind]} ({failure.message}); going on with {following.description}")
        request = following.request


def keep_training(request: LaunchRequest, outcome: LaunchOutcome) -> int | None:
    """Keep a training of a known model in the store; answers its number, None where nothing was kept: the engine never
    stepped, or by another plan than this."""
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
