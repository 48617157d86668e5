"""A training and, where memory ran out, those that go on with it under plans that need less. Each goes into the store,
measured beside predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import WorkloadError
from ...probes.store import record_of, try_store
from ..text.output import Output
from .check import How, Objection, objections, prediction_of
from .command import environment_of, kept_settings
from .fallback import Continuation, next_launch
from .question import source_of, uses_trainer
from .request import FAILURE_TITLES, LaunchOutcome, LaunchRequest
from .run import launch
from .script_arguments import ScriptArguments

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


Check = Literal["auto", "dry-run", "probe"]
"""How to see that it fits; "auto": a probe where the ranks of the whole job can run here, else a dry run."""

_USES_CPU = ("use_cpu", "no_cuda")
"""The option of TrainingArguments, and its older name."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What came of a launch: either of the two is empty."""

    objections: tuple[Objection, ...] = ()
    """Why nothing was started."""
    attempts: Attempts = field(default_factory=Attempts)

    @property
    def finished(self) -> bool:
        return bool(self.attempts.made) and self.attempts.made[-1][1].status == "finished"


def run_session(
    request: LaunchRequest, check: Check | None, *, fallback: bool, verbose: bool, output: Output
) -> Session:
    """Check the training, unless `check` is None, and launch it.

    Raises WorkloadError where a check is wanted and the model is not known; what `launch` and the check raise.
    """
    variables = environment_of(request)
    if variables:
        output.say("sets " + " ".join(f"{name}={value}" for name, value in variables.items()))
    if kept := kept_settings(request):
        output.say("keeps " + ", ".join(kept))
    if check is not None:
        against = _objections(request, check, output.say)
        if against:
            return Session(objections=tuple(against))
        request = replace(request, prediction=prediction_of(request.run))  # the check may have measured the speed
    return Session(attempts=make_attempts(request, next_launch, fallback=fallback, verbose=verbose, output=output))


def _objections(request: LaunchRequest, check: Check, say: Callable[[str], None]) -> list[Objection]:
    run, arguments = request.run, ScriptArguments(request.script.arguments)
    if not run.model:
        raise WorkloadError(
            "the model is not known, so whether it fits cannot be checked",
            why="the script's arguments name none",
            fix="pass --model NAME, or --no-check to start it all the same",
        )
    if _trainer_refuses_cpu(request):
        what = "transformers refuses --bf16 without a GPU unless it is told to use the CPU"
        return [Objection(what=what, fix="add --use_cpu to the script's arguments")]
    runs_here = run.cluster.is_this_machine and run.cluster.nodes == 1
    how: How = "probe" if check == "probe" or (check == "auto" and runs_here) else "dry-run"
    return objections(
        run,
        request.prediction,
        how=how,
        anew=check == "probe",
        device=request.device,
        output_dir=arguments.output_dir,
        checkpoints=arguments.checkpoints if run.workload.framework == "hf" else None,
        on_progress=say,
    )


def _trainer_refuses_cpu(request: LaunchRequest) -> bool:
    """Whether TrainingArguments will raise: bf16 without a GPU and without `use_cpu` (transformers 5.23
    `training_args.py` `_validate_args`), which neither a probe nor a dry run goes through."""
    arguments = ScriptArguments(request.script.arguments)
    uses_cpu = any(arguments.flag(name) for name in _USES_CPU)
    if request.device != "cpu" or not arguments.flag("bf16") or uses_cpu:
        return False
    source = source_of(request.script)
    return uses_trainer(source) and not any(name in source for name in _USES_CPU)
