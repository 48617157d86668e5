"""From a proposal to a saved model: proof, launch, less memory where it ran out, merging; and how a training goes
on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.read import plan_from_ds_config
from ...ds_configs.write import write_config
from ...estimators.errors import ClusterError, ConfigFileError
from ...estimators.estimate import Estimate
from ...estimators.estimate_plan import estimate_plan
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...probes.real_run.job import Device
from ..launch.keep import keep_training
from ..launch.request import LaunchRequest, Outcome, Script
from ..launch.run import launch
from ..question.ds_config_file import read_ds_config
from ..question.question import Question
from ..terminal.words import plan_title
from .attempt import ATTEMPTS, Attempt
from .check import Say, check_disk, prove
from .checkpoints import newest_whole, remove_broken, step_of
from .job import Job, Result, read_job, read_result, write_job
from .merge import merge
from .model_files import weights_folder
from .output import Output
from .proposal import Proposal, config_of, job_of
from .settings import Settings

RANK_MODULE = f"{__package__}.rank"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a training.

    request, outcome: of the launch. result: None where rank 0 left none, because the training failed.
    job:      as the ranks got it.
    """

    request: LaunchRequest
    outcome: Outcome
    result: Result | None
    job: Job
    output: Output
    merged: bool

    @property
    def finished(self) -> bool:
        return self.result is not None and self.result.finished


def proven(proposed: Proposal, *, memory_limit_bytes: int | None, say: Say) -> Proposal:
    """The proposal under the fastest plan that stood the proof; its `answer.recommended` is None where none did.

    Raises ConfigFileError where the disk has no room; what `prove` raises.
    """
    settings = proposed.settings
    if Path(settings.model).expanduser().exists():  # what is still to be fetched is fetched once it is known to fit
        weights_folder(settings.model, proposed.answer.question.model, offline=settings.offline)
    if proposed.answer.recommended is None or settings.proof == "none":
        return proposed
    check_disk(proposed.answer.question, proposed.output.path)
    return replace(
        proposed,
        answer=prove(
            proposed.answer,
            settings.proof,
            device=settings.device,
            offline=settings.offline,
            memory_limit_bytes=memory_limit_bytes,
            say=say,
        ),
    )


def start(proposed: Proposal, *, fallback: bool, verbose: bool, say: Say) -> Trained:
    """Write configuration and job into the output folder, and train.

    fallback: where memory runs out, go on with the next plan that fits.

    Raises ModelConfigError where there are no weights, ConfigFileError where a file cannot be written.
    """
    settings, output, question = proposed.settings, proposed.output, proposed.answer.question
    recommended = proposed.answer.recommended
    assert recommended is not None
    job = job_of(proposed, weights_folder(settings.model, question.model, offline=settings.offline))
    attempt = Attempt(job=job, config=config_of(proposed), estimate=recommended.estimate)
    return _run(attempt, question, output, fallback=fallback, verbose=verbose, merging=settings.merge, say=say)


def resume(
    settings: Settings, shape: ModelShape, cluster: Cluster, output: Output, *, fallback: bool, verbose: bool, say: Say
) -> Trained:
    """Go on with the training in the output folder from its last whole checkpoint, with its configuration and its data.

    Raises ConfigFileError where there is no checkpoint to go on from, or the training has ended; ClusterError where
    there are other ranks than it had, because ZeRO's checkpoints are one file a rank.
    """
    job, config = read_job(output.job), read_ds_config(output.ds_config)
    if cluster.world_size != job.ranks:
        raise ClusterError(
            f"the training had {job.ranks} ranks, and here are {cluster.world_size}",
            why="each rank of a ZeRO checkpoint reads its own file",
            fix=f"give it {job.ranks} again",
        )
    earlier = read_result(output.result)
    if earlier is not None and earlier.finished:
        raise ConfigFileError(
            f"the training in {output.path} has ended after {earlier.step} steps",
            why="there is nothing to resume",
            fix="start another one in another --output-dir",
        )
    checkpoint = newest_whole(output.path)
    if checkpoint is None:
        raise ConfigFileError(
            f"{output.path} has no whole checkpoint",
            why="the training ended before the first one",
            fix="start it again with --force in place of --resume",
        )
    for broken in remove_broken(output.path):
        say(f"{broken.name} was cut off while it was written; removed")
    say(f"going on from {checkpoint.name}")
    job = replace(job, checkpoint=str(checkpoint))
    question = Question(model=shape, workload=job.workload, cluster=cluster)
    attempt = Attempt(job=job, config=config, estimate=_estimate(job, config, question))
    return _run(attempt, question, output, fallback=fallback, verbose=verbose, merging=settings.merge, say=say)


def request_of(
    output: Output, question: Question, estimate: Estimate, config: Mapping[str, Any], *, device: Device, steps: int
) -> LaunchRequest:
    """The training as `launch` takes it."""
    return LaunchRequest(
        script=Script(target=RANK_MODULE, arguments=(str(output.job),), is_module=True),
        config=config,
        config_path=output.ds_config,
        framework="hf",
        launcher="torchrun",
        cluster=question.cluster,
        folder=output.new_launch(),
        device=device,
        passes_config=False,
        prediction=estimate,
        model=question.model,
        model_name=question.model.name,
        workload=question.workload,
        gradient_checkpointing=estimate.plan.gradient_checkpointing,
        total_steps=steps,
    )


def _run(
    attempt: Attempt, question: Question, output: Output, *, fallback: bool, verbose: bool, merging: bool, say: Say
) -> Trained:
    """Train, with less memory where that ran out and `fallback` is wanted; then merge."""
    tried = 0
    while True:
        request, outcome = _launched(attempt, question, output, verbose=verbose)
        tried += 1
        go_on = attempt.with_less_memory(question, outcome, output) if fallback and tried < ATTEMPTS else None
        if go_on is None:
            break
        from_where = (
            Path(go_on.job.checkpoint).name if go_on.job.checkpoint else "the beginning, for want of a checkpoint"
        )
        say(
            f"memory ran out; going on with {plan_title(go_on.estimate.plan)}, micro batch "
            f"{go_on.estimate.plan.micro_batch_size}, from {from_where}"
        )
        remove_broken(output.path)
        attempt = go_on
    job, result = attempt.job, read_result(output.result)
    merged = merging and job.workload.method != "full" and result is not None and result.finished and result.whole
    if merged:
        merge(Path(job.model), output.path, output.merged, dtype=job.dtype)
    return Trained(request=request, outcome=outcome, result=result, job=job, output=output, merged=merged)


def _launched(attempt: Attempt, question: Question, output: Output, *, verbose: bool) -> tuple[LaunchRequest, Outcome]:
    """Write what the ranks read, start them, and keep what was measured."""
    job = attempt.job
    write_config(attempt.config, output.ds_config, force=True)
    write_job(job, output.job)
    output.result.unlink(missing_ok=True)
    request = request_of(
        output, question, attempt.estimate, attempt.config, device=job.device, steps=job.arguments["max_steps"]
    )
    request = replace(request, resumes_after=step_of(Path(job.checkpoint)) if job.checkpoint else 0)
    outcome = launch(request, verbose=verbose)
    keep_training(request, outcome)
    return request, outcome


def _estimate(job: Job, config: Mapping[str, Any], question: Question) -> Estimate:
    """What was predicted for the plan that a job runs under."""
    shape, workload, cluster = question.model, question.workload, question.cluster
    plan = plan_from_ds_config(
        config,
        shape,
        cluster,
        micro_batch_size=job.arguments["per_device_train_batch_size"],
        gradient_accumulation_steps=job.arguments["gradient_accumulation_steps"],
        gradient_checkpointing=job.arguments["gradient_checkpointing"],
    )
    return estimate_plan(shape, workload, cluster, plan)
