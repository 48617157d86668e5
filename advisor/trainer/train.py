"""`train()`: question, advice, proof, launch, and the model saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.read import plan_from_ds_config
from ...ds_configs.write import write_config
from ...estimators.cluster import Cluster
from ...estimators.errors import ClusterError, ConfigFileError
from ...estimators.estimate import Estimate
from ...estimators.memory import estimate_memory
from ...estimators.model_shape import ModelShape
from ...estimators.throughput import estimate_time
from ...probes.real_run.job import Device
from ..dry_run_answer import read_ds_config
from ..launch.kept import keep_training
from ..launch.request import LaunchRequest, Outcome, Script
from ..launch.run import launch
from ..question import Question
from .check import check_disk, prove
from .checkpoints import newest_whole, remove_broken, step_of
from .job import Job, Result, read_job, read_result, write_job
from .merge import merge
from .model_files import weights_folder
from .output import Output
from .proposal import Proposal, config_of, job_of, propose, with_answer
from .settings import Settings

RANK_MODULE = f"{__package__}.rank"

Say = Callable[[str], None]


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


def proposal(settings: Settings, shape: ModelShape, question: Mapping[str, Any], output: Output, say: Say, *,
             memory_limit_bytes: int | None, show: Callable[[Proposal], None]) -> Proposal:
    """The training that is proposed and, unless `settings.proof` is "none", proven to fit; its `answer.recommended` is None
    where nothing fits. show: called with the proposal before the proof."""
    proposed = propose(settings, shape, question, output, say)
    show(proposed)
    if proposed.answer.recommended is None or settings.proof == "none":
        return proposed
    check_disk(proposed.answer.question, output.path)
    return with_answer(proposed, prove(proposed.answer, settings.proof, device=settings.device, offline=settings.offline,
                                       memory_limit_bytes=memory_limit_bytes, say=say))


def start(proposed: Proposal, *, verbose: bool) -> Trained:
    """Write configuration and job into the output folder, and train.

    Raises ModelConfigError where there are no weights, ConfigFileError where a file cannot be written.
    """
    settings, output, question = proposed.settings, proposed.output, proposed.answer.question
    recommended = proposed.answer.recommended
    assert recommended is not None
    weights = weights_folder(settings.model, question.model, offline=settings.offline)
    job = job_of(proposed, weights)
    config = config_of(proposed)
    write_config(config, output.ds_config, force=True)
    write_job(job, output.job)
    return _run(job, output, question, recommended.estimate, config, verbose=verbose, merging=settings.merge)


def resume(settings: Settings, shape: ModelShape, cluster: Cluster, output: Output, say: Say, *,
           verbose: bool) -> Trained:
    """Go on with the training in the output folder from its last whole checkpoint, with its configuration and its data.

    Raises ConfigFileError where there is no checkpoint to go on from, or the training has ended; ClusterError where there are
    other ranks than it had, because ZeRO's checkpoints are one file a rank.
    """
    job, config = read_job(output.job), read_ds_config(output.ds_config)
    if cluster.world_size != job.ranks:
        raise ClusterError(f"the training had {job.ranks} ranks, and here are {cluster.world_size}",
                           why="each rank of a ZeRO checkpoint reads its own file", fix=f"give it {job.ranks} again")
    earlier = read_result(output.result)
    if earlier is not None and earlier.finished:
        raise ConfigFileError(f"the training in {output.path} has ended after {earlier.step} steps",
                              why="there is nothing to resume", fix="start another one in another --output-dir")
    checkpoint = newest_whole(output.path)
    if checkpoint is None:
        raise ConfigFileError(f"{output.path} has no whole checkpoint", why="the training ended before the first one",
                              fix="start it again with --force in place of --resume")
    for broken in remove_broken(output.path):
        say(f"{broken.name} was cut off while it was written; removed")
    say(f"going on from {checkpoint.name}")
    output.result.unlink(missing_ok=True)
    job = replace(job, checkpoint=str(checkpoint))
    write_job(job, output.job)
    workload = job.workload
    plan = plan_from_ds_config(
        config, shape, cluster, micro_batch_size=job.arguments["per_device_train_batch_size"],
        gradient_accumulation_steps=job.arguments["gradient_accumulation_steps"],
        gradient_checkpointing=job.arguments["gradient_checkpointing"])
    estimate = Estimate(plan=plan, memory=estimate_memory(shape, workload, cluster, plan),
                        time=estimate_time(shape, workload, cluster, plan))
    return _run(job, output, Question(model=shape, workload=workload, cluster=cluster), estimate, config, verbose=verbose,
                merging=settings.merge)


def request_of(output: Output, question: Question, estimate: Estimate, config: Mapping[str, Any], *, device: Device,
               steps: int) -> LaunchRequest:
    """The training as `launch` takes it."""
    return LaunchRequest(
        script=Script(target=RANK_MODULE, arguments=(str(output.job),), is_module=True), config=config,
        config_path=output.ds_config, framework="hf", launcher="torchrun", cluster=question.cluster,
        folder=output.new_launch(), device=device, passes_config=False, prediction=estimate, model=question.model,
        model_name=question.model.name, workload=question.workload,
        gradient_checkpointing=estimate.plan.gradient_checkpointing, total_steps=steps)


def _run(job: Job, output: Output, question: Question, estimate: Estimate, config: Mapping[str, Any], *, verbose: bool,
         merging: bool) -> Trained:
    request = request_of(output, question, estimate, config, device=job.device, steps=job.arguments["max_steps"])
    request = replace(request, resumes_after=step_of(Path(job.checkpoint)) if job.checkpoint else 0)
    outcome = launch(request, verbose=verbose)
    keep_training(request, outcome)
    result = read_result(output.result)
    merged = merging and job.workload.method != "full" and result is not None and result.finished and result.whole
    if merged:
        merge(Path(job.model), output.path, output.merged, dtype=job.dtype)
    return Trained(request=request, outcome=outcome, result=result, job=job, output=output, merged=merged)
