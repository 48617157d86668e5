"""How to go on after memory ran out: the next plan that fits, from the last checkpoint, with the same global batch."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ...probes.run import Run
from ..terminal.words import plan_title
from .other_plans import next_plan
from .question.question import LaunchQuestion
from .question.script_arguments import ScriptArguments
from .request import Failure, Outcome, Script


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The next attempt: what it is, and the question that launches it; None with the reason where there is none."""

    what: str
    question: LaunchQuestion | None

    @property
    def command(self) -> str:
        """The line that starts it, apart from options that only name this machine's GPUs."""
        assert self.question is not None, "there is an attempt"
        request = self.question.request
        module = ["--module"] if request.script.is_module else []
        device = ["--device", "cpu", "--ranks", str(request.cluster.gpus_per_node)] if request.device == "cpu" else []
        return shlex.join(
            [
                "ds-advise",
                "launch",
                str(request.config_path),
                *device,
                *module,
                "--",
                request.script.target,
                *request.script.arguments,
            ]
        )


def continuation(question: LaunchQuestion, outcome: Outcome, folder: Path) -> Continuation:
    """What would go on after this outcome; its configuration is written into `folder`.

    A DeepSpeed checkpoint that the next plan cannot read is never passed over in silence: only plans that can read it
    are taken, and where there is none that is the answer.

    Raises ConfigFileError where the configuration cannot be written.
    """
    failure, run, request = outcome.failure, question.run, question.request
    assert failure is not None, "a training that failed"
    if run is None or request.prediction is None or run.shape is None:
        return Continuation(
            what="the model is not known, so neither is a plan that takes less: pass --model", question=None
        )
    if request.framework != "hf" or not question.arguments.are_training_arguments:
        return _by_hand(run, failure, question)
    checkpoint = outcome.checkpoint
    written_by = None if checkpoint is None else request.prediction.plan
    candidate = next_plan(run, request.prediction, failure.kind, reads_checkpoint_of=written_by)
    if candidate is None:
        unread = next_plan(run, request.prediction, failure.kind, reads_checkpoint_of=None)
        what = "no other plan with this global batch is predicted to take enough less"
        if unread is not None:
            what = (
                f"{plan_title(unread.estimate.plan)} would fit, but DeepSpeed cannot load {checkpoint} under it "
                "(another "
                "ZeRO stage partitions the states otherwise): convert it with deepspeed.checkpoint.ds_to_universal "
                "and set "
                "checkpoint.load_universal, or begin anew from the weights in it"
            )
        return Continuation(what=what, question=None)
    plan = candidate.estimate.plan
    next_run = run.with_plan(plan)
    path = folder / "ds_config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigFileError(
            f"{folder} cannot be made ({error.strerror})",
            why="the next plan's configuration goes there",
            fix="free some space, or make the folder writable",
        ) from None
    write_config(next_run.config, path, force=True)
    values = {
        "per_device_train_batch_size": str(plan.micro_batch_size),
        "gradient_accumulation_steps": str(plan.gradient_accumulation_steps),
        "gradient_checkpointing": str(plan.gradient_checkpointing),
    }
    if checkpoint is not None:
        values["resume_from_checkpoint"] = str(checkpoint)
    words = question.arguments.with_values(values)
    how = f"from {checkpoint}" if checkpoint is not None else "from the beginning, since no checkpoint was saved"
    return Continuation(
        what=f"{plan_title(plan)}, micro batch {plan.micro_batch_size} x {plan.gradient_accumulation_steps}, {how}",
        question=replace(
            question,
            arguments=ScriptArguments(words),
            said=(),
            run=next_run,
            request=replace(
                request,
                script=Script(target=request.script.target, arguments=words, is_module=request.script.is_module),
                config=dict(next_run.config),
                config_path=path,
                folder=folder,
                prediction=candidate.estimate,
                gradient_checkpointing=plan.gradient_checkpointing,
                resumes_after=_step(checkpoint),
            ),
        ),
    )


def _by_hand(run: Run, failure: Failure, question: LaunchQuestion) -> Continuation:
    """For a script whose batch size and resumption are its own business."""
    assert question.request.prediction is not None, "called with a prediction"
    candidate = next_plan(run, question.request.prediction, failure.kind, reads_checkpoint_of=None)
    if candidate is None:
        return Continuation(what="no other plan with this global batch is predicted to take enough less", question=None)
    plan = candidate.estimate.plan
    return Continuation(
        question=None,
        what=(
            f"{plan_title(plan)} with micro batch {plan.micro_batch_size} x {plan.gradient_accumulation_steps} and "
            "checkpointing "
            f"{'on' if plan.gradient_checkpointing else 'off'} is predicted to fit; how this script takes them and "
            "resumes cannot "
            "be known, so it is not started"
        ),
    )


def _step(checkpoint: Path | None) -> int:
    """The optimizer step of a Trainer's checkpoint, as its state says; 0 without one."""
    if checkpoint is None:
        return 0
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, KeyError):
        return int(checkpoint.name.rpartition("-")[2])
