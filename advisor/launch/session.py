"""`ds-advise launch` from the options to the answer: check that it fits, start, and go on with less memory where that
is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ...estimators.errors import WorkloadError
from ..text.output import Output
from .attempts import Attempts, make_attempts
from .check import How, Objection, objections, prediction_of
from .environment import environment_of, kept_settings
from .fallback import next_launch
from .framework import source_of, uses_trainer
from .request import LaunchRequest
from .script_arguments import ScriptArguments

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
