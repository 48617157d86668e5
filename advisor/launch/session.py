"""`ds-advise launch` from the request to the end: checks that the training fits, starts it, and continues with less
memory if requested. Every training is kept in the store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.emit import merge_plan_into_config
from ...ds_configs.files import config_text, write_text
from ...estimators.errors import DsAdviseError
from ...estimators.estimate import Estimate, total_bytes
from ...estimators.hardware import Cluster
from ...estimators.json_form import to_json
from ...estimators.memory.host_memory import process_terms
from ...estimators.plan import Plan
from ...probes.failures.out_of_memory import memory_figures
from ...probes.run import Run
from ...probes.store import build_record, try_store
from ...validate.checkpoint import CHECKPOINT_LAYOUTS, checkpoint_step, checkpoints_in, newest_usable
from ..answer.command_answer import CommandAnswer
from ..command.changes import changed_command
from ..question.cluster import machines_label
from ..text.labels import plan_title
from ..text.output import Output
from ..text.units import capitalised, ended, memory_size, shown_path
from .check import Check, Objection, check, observe, plans_that_fit
from .command import kept_settings, launch_environment
from .oversized import MISPREDICTED, judge_allocation, most_bytes_in
from .request import FAILURE_TITLES, Attempt, FailureKind, LaunchOutcome, LaunchRequest
from .run import launch, make_folder, new_folder

_LESS = (0.95, 0.75, 0.5)
"""Largest memory need of the next plan as a share of the failed plan's need, by the number of earlier failures. A plan
closer than the first share would also run out, within the accuracy of the closed form. The further shares are smaller,
so that the last attempt needs an eighth of the first or the least possible."""


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The next attempt."""

    description: str
    """The plan and the start of the attempt, or the reason that there is none."""
    request: LaunchRequest | None = None

    @property
    def command(self) -> str | None:
        """The command line that starts the attempt, without options that only name this machine's GPUs; None if there
        is no attempt."""
        if self.request is None:
            return None
        request, words = self.request, ["ds-advise", "launch"]
        words += [str(request.config_path)] if request.config_path else []
        if request.device == "cpu":
            words += ["--device", "cpu", "--ranks", str(request.run.cluster.gpus_per_node)]
        return shlex.join([*words, "--", *request.words])


def reduce_memory(
    request: LaunchRequest, outcome: LaunchOutcome, checkpoint: Path | None, folder: Path
) -> Continuation:
    """The same training under the fastest plan that needs less of the memory that ran out. It resumes from a checkpoint
    of the Trainer, or starts from the beginning if there is none.

    Only plans that can read the checkpoint are considered. If there is none, nothing is started. folder: the folder of
    the new request.
    """
    run, failed, failure = request.run, request.estimate, outcome.failure
    assert failure is not None, "a training that failed"
    if failed is None:
        return Continuation(description="the model is not known, so no smaller plan can be named: pass --model")
    had = tensor_bytes(failed, failure.kind, run.cluster)
    if (found := most_bytes_in(memory_figures(failure.message))) > MISPREDICTED * had:
        return Continuation(
            description=f"the message has {memory_size(found)} of tensors, and {memory_size(had)} were predicted: the "
            "prediction is not that of this training, so no smaller plan can be named"
        )
    plans = plans_that_fit(run, offloads_checkpoints=request.dry_run is None)  # else `changed_command` writes the plan
    needs = [(tensor_bytes(each.estimate, failure.kind, run.cluster), each.estimate) for each in plans]
    smaller = [(need, estimate) for need, estimate in needs if need <= _LESS[0] * had]
    if not smaller:
        return Continuation(
            description="no other plan with this global batch is predicted to need at least 5 % less memory; try LoRA, "
            "a shorter sequence or a smaller model"
        )
    layout = CHECKPOINT_LAYOUTS[failed.plan.zero_stage]
    readable = [pair for pair in smaller if checkpoint is None or CHECKPOINT_LAYOUTS[pair[1].plan.zero_stage] == layout]
    if not readable:
        return Continuation(
            description=f"{plan_title(smaller[0][1].plan)} would fit, but it cannot load the optimizer states of "
            f"{checkpoint} (ZeRO-3 stores them in another layout): export its weights by ds-advise checkpoint --to-hf "
            "and start from them"
        )
    # Each failure shows that the prediction is too low, so the next plan leaves more room.
    most = _LESS[min(request.fallbacks, len(_LESS) - 1)] * had
    need, chosen = next((pair for pair in readable if pair[0] <= most), min(readable, key=lambda pair: pair[0]))
    plan, planned = chosen.plan, run.replace_plan(chosen.plan)
    start = f"from {checkpoint}" if checkpoint else "from the beginning, since no checkpoint was saved"
    return Continuation(
        description=f"{plan_title(plan)}, micro batch {plan.micro_batch_size} x "
        f"{plan.gradient_accumulation_steps}, {start} (predicted tensors: {memory_size(need)} in place of "
        f"{memory_size(had)})",
        request=replace(
            request,
            run=replace(planned, config=merge_plan_into_config(run.config, planned.config, plan)),
            estimate=chosen,
            folder=folder,
            fallbacks=request.fallbacks + 1,
            resumes_after=0 if checkpoint is None else checkpoint_step(checkpoint),
        ),
    )


def tensor_bytes(estimate: Estimate, kind: FailureKind, cluster: Cluster) -> int:
    """Bytes of tensors in the memory that ran out, of a GPU or of the node. The memory of processes, contexts and
    libraries is excluded, because it is equal for all plans."""
    memory = estimate.memory
    if kind != "host_out_of_memory":
        return memory.allocated_bytes_per_gpu
    loading = memory.host_loading_bytes_per_node - total_bytes(process_terms(cluster))
    on_cpu = cluster.gpus_per_node * memory.allocated_bytes_per_gpu if cluster.gpu.is_cpu else 0
    return max(loading, on_cpu + memory.host_tensor_bytes_per_node)


def next_launch(
    request: LaunchRequest, outcome: LaunchOutcome, folder: Path, *, say: Callable[[str], None] = lambda _: None
) -> Continuation:
    """The continuation of a user's command after memory ran out, from its last checkpoint with intact files. Its
    configuration is written into `folder`. Raises ConfigFileError if the configuration cannot be written."""
    options, seen = request.options, request.dry_run and request.dry_run.arguments
    takes_config = request.config_path is not None or bool(options.configs)
    uses_trainer = bool(seen.trainer) if seen else options.are_training_arguments and takes_config
    checkpoint = None
    if uses_trainer and (last := outcome.checkpoint) is not None:
        earlier = [path for path in checkpoints_in(last.parent) if checkpoint_step(path) <= checkpoint_step(last)]
        usable, _ = newest_usable(earlier, say=say)
        checkpoint = usable.folder if usable else None
    following = reduce_memory(request, outcome, checkpoint, folder)
    if following.request is None or following.request.estimate is None:
        return following
    run, plan = following.request.run, following.request.estimate.plan
    by_hand = ""
    if request.dry_run is not None:
        words, files, by_hand = _changed(request, request.dry_run, plan, checkpoint, folder)
    elif uses_trainer:
        words, files = _with_options(request, run, checkpoint, folder)
    else:
        words, files, by_hand = (), {}, "how the script takes these settings is not known"
    if by_hand:
        return Continuation(
            description=f"{plan_title(plan)} with micro batch {run.micro_batch_size} x "
            f"{run.gradient_accumulation_steps} and checkpointing {'on' if run.gradient_checkpointing else 'off'} is "
            f"predicted to fit; it is not started, because {by_hand}"
        )
    make_folder(folder, "the next plan's configuration is written there")
    for path, text in files.items():
        write_text(text, Path(path), force=True)
    config_path = None if request.config_path is None else folder / _CONFIG
    return replace(following, request=replace(following.request, words=words, config_path=config_path))


_CONFIG = "ds_config.json"


def _changed(
    request: LaunchRequest, seen: CommandAnswer, plan: Plan, checkpoint: Path | None, folder: Path
) -> tuple[tuple[str, ...], dict[str, str], str]:
    """(the words of the observed command under the plan, the files that they name, what the user must change in the
    script by hand; "" for nothing)."""
    run = request.run
    assert run.shape is not None, "the plan is of a known model"
    changed = changed_command(
        seen.words,
        Path.cwd(),
        seen.found,
        plan,
        shape=run.shape,
        workload=run.workload,
        cluster=run.cluster,
        given_config=request.config_path,
        destination=str(folder / _CONFIG),
        settings={} if checkpoint is None else {"resume_from_checkpoint": str(checkpoint)},
    )
    lines = [
        line.text + (f" after {line.after}" if line.after else "") + (f" at {line.place}" if line.place else "")
        for line in changed.lines
    ]
    by_hand = f"the script sets these itself: write {', '.join(lines)}" if lines else ""
    # What is given in front of `--` stays there, in place of variables in front of the command.
    return changed.words[changed.words.index(seen.words[0]) :], changed.files, by_hand


def _with_options(
    request: LaunchRequest, run: Run, checkpoint: Path | None, folder: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """(the words of a command that was not observed, with the options of TrainingArguments for the run, the files that
    they name)."""
    path = folder / _CONFIG
    values = {
        "per_device_train_batch_size": str(run.micro_batch_size),
        "gradient_accumulation_steps": str(run.gradient_accumulation_steps),
        "gradient_checkpointing": str(run.gradient_checkpointing),
    }
    if run.cpu_checkpointing:
        values["gradient_checkpointing_kwargs"] = json.dumps({"use_reentrant": False, "offload": True})
    values |= dict.fromkeys(request.options.configs, str(path))
    if checkpoint is not None:
        values["resume_from_checkpoint"] = str(checkpoint)
    words = request.command.replace_arguments(request.options.replace_values(values))
    return words, {str(path): config_text(run.config)}


_MAX_ATTEMPTS = 4
"""Maximum number of plans that are tried: the first, and one for each of `_LESS`."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A launch with its attempts, or the objections that prevented a start."""

    objections: tuple[Objection, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    following: Continuation | None = None
    """The next attempt after the last one; None if memory did not run out."""

    @property
    def finished(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].outcome.status == "finished"

    @property
    def following_sentence(self) -> str:
        """The next attempt as a sentence, which ends in a colon if a command follows."""
        assert self.following is not None, "memory ran out"
        description = self.following.description
        if self.following.request is None:
            return ended(capitalised(description))
        if len(self.attempts) == _MAX_ATTEMPTS:
            return f"Memory ran out under {_MAX_ATTEMPTS} plans, so --fallback ended; the next plan is {description}:"
        return f"--fallback would continue with {description}:"


def check_session(request: LaunchRequest, how: Check | None, output: Output) -> tuple[LaunchRequest, Session | None]:
    """(the request as it is launched, the session that ends here because of an objection). how: None starts without a
    check. Raises the errors of the check."""
    against: list[Objection] = []
    if how is not None:
        request, against = check(request, how, output)
    if request.command.program is not None and request.requested_launcher is None and request.launcher == "deepspeed":
        output.say("the ranks are started by deepspeed, because the script takes --local_rank")
    return request, Session(objections=tuple(against)) if against else None


def run_session(
    request: LaunchRequest,
    *,
    fallback: bool,
    verbose: bool,
    output: Output,
    was_busy: str = "",
    prepare: Callable[[LaunchRequest], None] = lambda _: None,
) -> Session:
    """Launch a training that may start. With `fallback`, continue with the next plan each time that memory runs out.
    Raises the errors of `launch`.

    was_busy: why the speed may be too low, by `busy`. prepare: called before each launch.
    """
    variables = launch_environment(request)
    if variables:
        output.say(f"setting {' '.join(f'{name}={value}' for name, value in variables.items())}")
    if kept := kept_settings(request):
        output.say(f"keeping {', '.join(kept)}")
    console = output.console(on_stderr=True)
    attempts: list[Attempt] = []
    first_folder = request.folder if request.is_folder_given else new_folder(request.folder)
    request = replace(request, folder=first_folder)
    while True:
        prepare(request)
        output.say(f"output of the ranks: {shown_path(request.folder)}/rank*.log")
        outcome, started = launch(request, verbose=verbose, console=console), request
        if (failure := outcome.failure) is not None and failure.is_out_of_memory:
            request = _observed(request, output)
            failure = judge_allocation(failure, request.prediction, request.run.cluster)
            outcome = replace(outcome, failure=failure)
        attempt = Attempt(request=started, outcome=outcome, was_busy=was_busy)
        keep_training(attempt)
        attempts.append(attempt)
        if failure is None or not failure.is_out_of_memory:
            return Session(attempts=tuple(attempts))
        following = next_launch(request, outcome, first_folder / f"fallback-{len(attempts)}", say=output.say)
        if not fallback or following.request is None or len(attempts) == _MAX_ATTEMPTS:
            return Session(attempts=tuple(attempts), following=following)
        title = f"{FAILURE_TITLES[failure.kind]} ({failure.message})"
        output.say(f"{title}; continuing with {following.description}")
        request = following.request


def _observed(request: LaunchRequest, output: Output) -> LaunchRequest:
    """The request with a dry run of the command, if it was started without a check: smaller plans follow from it."""
    if request.dry_run is None and request.estimate is None:
        with suppress(DsAdviseError):
            return observe(request, output)[0]
    return request


def keep_training(attempt: Attempt) -> None:
    """Keep a training in the store, with the plan that its engine used."""
    request, outcome = attempt.request, attempt.outcome
    run, prediction = request.run, outcome.predicted
    kept = ("status", "failure", "seconds", "step_s", "tokens_per_step", "tokens_per_s", "peaks", "warnings")
    result: dict[str, Any] = {name: to_json(getattr(outcome, name)) for name in kept}
    result |= {"world_size": run.cluster.world_size, "device": request.device, "steps": outcome.last_step}
    result["log_folder"] = str(outcome.folder.absolute())
    output_folder, losses = request.arguments.output_dir, [loss for _, loss in outcome.losses if loss is not None]
    if output_folder is not None and output_folder.is_dir():
        result["output_folder"] = str(output_folder.absolute())
    if losses:
        result |= {"first_loss": losses[0], "last_loss": losses[-1]}
    if prediction is not None and not outcome.differences:
        result["predicted"] = prediction.stored()
    conditions: dict[str, Any] = {"gpus": machines_label(run.cluster)}
    if request.is_users:
        run = replace(run, model_name=run.model_name or Path(request.target).name)
        conditions["command"] = shlex.join(request.words)
    if request.dry_run is not None:
        conditions["observed_seq_len"] = request.dry_run.training.seq_len
    record = build_record(run, "training", result, config=_config_that_ran(run, outcome), **conditions)
    try_store(lambda store: store.add(record), None)


def _config_that_ran(run: Run, outcome: LaunchOutcome) -> dict[str, Any]:
    """The configuration with the stage and the batch of the engine, which a script may have set itself."""
    config, engine = run.config_with_batch, outcome.engine
    if not engine:
        return config
    if outcome.differences:
        config.pop("train_batch_size", None)
    micro, steps = engine["micro_batch_size"], engine["gradient_accumulation_steps"]
    zero = {**(config.get("zero_optimization") or {}), "stage": engine["zero_stage"]}
    batch = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
    return {**config, **batch, "zero_optimization": zero}
