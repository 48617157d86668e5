"""`ds-advise train` from the options to the exit code: a new training, a dry run of one, a resumed one.

A proposal is checked and launched, continued with less memory if memory runs out, and its adapters are merged.
`options` are the command's options by name; `advice` are the keyword arguments of `advise` among them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ...ds_configs.files import free_bytes, write_config
from ...ds_configs.read import saves_model
from ...ds_configs.training_script import training_arguments
from ...estimators.errors import ClusterError, ConfigFileError, WorkloadError
from ...estimators.estimate import Estimate
from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import phrase
from ...estimators.time.job import checkpoint_bytes
from ...probes.run import Device, Run
from ...validate.checkpoint import step_of
from ..answer.recommendation import Recommendation
from ..data.tokenizing import weights_folder
from ..launch.check import prediction_of
from ..launch.request import LaunchOutcome, LaunchRequest
from ..launch.script_source import Script
from ..launch.session import Continuation, make_attempts, with_less_memory
from ..question.cluster import cluster_here, cluster_of, memory_limit_bytes
from ..question.model_source import load_model
from ..question.question import Question
from ..question.run import read_ds_config, run_of
from ..text.labels import plan_title
from ..text.output import Output
from ..text.units import gib
from ..verification.past_results import probe_and_keep
from ..verification.probe_order import as_measured
from ..verification.verify import by_speed, verify
from .folder import TrainingFolder, TrainingJob, read_job, read_result, write_record
from .proposal import KEPT_CHECKPOINTS, Proposal, job_of, propose
from .report import Trained, render_proposal, render_proven, render_start, render_trained, training_report
from .settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class TrainingControls:
    """How a training is launched."""

    output: Output
    fallback: bool
    """Whether the training continues with the next plan that fits if memory runs out."""
    verbose: bool
    """Whether to show the first rank's output."""


def train_anew(
    options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, controls: TrainingControls, *, force: bool
) -> int:
    """Propose, check, train and save. Returns the exit code. The options are kept for --resume. force: whether to use a
    folder that is not empty."""
    output, folder, trained = controls.output, TrainingFolder(path), None
    settings, shape = _read(options)
    cluster = cluster_here(options)
    folder.claim(force=force)
    with folder.held():
        write_config(options, folder.options, force=True)
        ready = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if ready.answer.recommended is not None:
            proposed, ready = ready, proven(ready, memory_limit_bytes=memory_limit_bytes(options), output=output)
            if output.mode == "human":
                render_proven(proposed, ready, output.console())
        if ready.answer.recommended is not None:
            weights = weights_folder(settings.model, ready.answer.question.model, offline=settings.offline)
            job = job_of(ready, weights)
            trained = _train(request_of_proposal(ready), job, folder, controls, merging=settings.merge)
    return _show_end(trained, ready, output)


def show(options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, output: Output) -> int:
    """Print the files that `train_anew` would write into the folder and the command it would start. All files are
    temporary."""
    settings, shape = _read(options)
    cluster = cluster_of(options)
    with TemporaryDirectory() as temporary:
        folder = TrainingFolder(Path(temporary))
        folder.claim(force=False)
        proposed = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if proposed.answer.recommended is None:
            return _show_end(None, proposed, output)
        request = request_of_proposal(proposed, TrainingFolder(path))
        output.show(lambda: training_report(proposed, None), lambda console: render_start(request, console))
        return 0


def go_on(given: Mapping[str, Any], path: Path, controls: TrainingControls) -> int:
    """Resume the training in a folder from its last whole checkpoint, with its configuration, its data and its kept
    options. The given options must equal the kept ones.

    Raises ConfigFileError if there is no checkpoint or the training has ended, and ClusterError for another number of
    ranks, because a ZeRO checkpoint has one file per rank.
    """
    folder = TrainingFolder(path)
    options = folder.kept_options(given)
    settings, shape = _read(options)
    cluster = cluster_here(options)
    with folder.held():
        job = read_job(folder.job)
        if cluster.world_size != job.ranks:
            raise ClusterError(
                phrase(
                    "the training had {ranks} ranks, and here are {world_size}",
                    ranks=job.ranks,
                    world_size=cluster.world_size,
                ),
                why="each rank of a ZeRO checkpoint reads its own file",
                fix=phrase("give it {ranks} again", ranks=job.ranks),
            )
        earlier = read_result(folder.result)
        if earlier is not None and earlier.finished:
            raise ConfigFileError(
                phrase("the training in {path} has ended after {step} steps", path=folder.path, step=earlier.step),
                why="there is nothing to resume",
                fix="start another one in another --output-dir",
            )
        checkpoint = folder.newest_usable(job.ranks, controls.output.say)
        if checkpoint is None:
            raise folder.without_checkpoint(phrase("the training ended before the first one"))
        for broken in folder.remove_broken():
            controls.output.say(phrase("{name} was incomplete; removed", name=broken.name))
        arguments = job.arguments
        if step_of(checkpoint) < arguments["max_steps"]:
            controls.output.say(phrase("going on from {name}", name=checkpoint.name))
        else:
            controls.output.say(phrase("all steps are made; saving from {name}", name=checkpoint.name))
        run = Run(
            config=read_ds_config(folder.ds_config),
            model={},
            model_name=shape.name,
            shape=shape,
            cluster=cluster,
            workload=job.workload,
            micro_batch_size=arguments["per_device_train_batch_size"],
            gradient_accumulation_steps=arguments["gradient_accumulation_steps"],
            gradient_checkpointing=arguments["gradient_checkpointing"],
        )
        request = _request(run, prediction_of(run), folder, device=job.device, steps=arguments["max_steps"])
        request = replace(request, resumes_after=step_of(checkpoint))
        trained = _train(request, replace(job, checkpoint=str(checkpoint)), folder, controls, merging=settings.merge)
    return _show_end(trained, None, controls.output)


def _read(options: Mapping[str, Any]) -> tuple[TrainingSettings, ModelShape]:
    settings = TrainingSettings.of(options)
    return settings, load_model(settings.model, offline=settings.offline)


def _proposed(
    settings: TrainingSettings, shape: ModelShape, question: Mapping[str, Any], folder: TrainingFolder, output: Output
) -> Proposal:
    proposed = propose(settings, shape, question, folder, output.say)
    if output.mode == "human":
        render_proposal(proposed, output.console())
    return proposed


def _show_end(trained: Trained | None, proposed: Proposal | None, output: Output) -> int:
    def render(console: Console) -> None:
        if trained is not None:
            render_trained(trained, console)

    output.show(lambda: training_report(proposed, trained), render)
    return 0 if trained is not None and trained.finished else 1


def proven(proposed: Proposal, *, memory_limit_bytes: int | None, output: Output) -> Proposal:
    """The proposal under the fastest plan that passes the check. `proposed` must have a plan; `answer.recommended` is
    None if no plan passes. Raises ConfigFileError if the disk has no room, and the errors of `prove`."""
    settings, question = proposed.settings, proposed.answer.question
    if Path(settings.model).expanduser().exists():  # weights on the Hub are downloaded after the check
        weights_folder(settings.model, question.model, offline=settings.offline)
    if settings.proof == "none":
        return proposed
    assert proposed.answer.recommended is not None
    check_disk(question, proposed.answer.recommended.plan.zero_stage, proposed.folder.path)
    answer = prove(proposed.answer, settings, memory_limit_bytes=memory_limit_bytes, output=output)
    return replace(proposed, answer=answer)


def check_disk(question: Question, zero_stage: int, folder: Path) -> None:
    """Raise ConfigFileError if the folder has no room for `KEPT_CHECKPOINTS`, the one being written, and the model."""
    checkpoint = checkpoint_bytes(question.model, question.workload, zero_stage)
    needed = (KEPT_CHECKPOINTS + 1) * checkpoint + question.workload.weight_bytes * question.model.parameters
    free = free_bytes(folder)
    if needed > free:
        raise ConfigFileError(
            phrase(
                "{folder} has {free} GiB free, but checkpoints and the model need {needed}",
                folder=folder,
                free=gib(free),
                needed=gib(needed),
            ),
            why="a full disk would end the training at a checkpoint",
            fix="pass an --output-dir with more room, or --no-check",
        )


def prove(
    answer: Recommendation, settings: TrainingSettings, *, memory_limit_bytes: int | None, output: Output
) -> Recommendation:
    """The answer, with the fastest plan that passes the check as the recommended one, or None.

    "probe": a few real steps with random weights and full sequences; the next best plan if memory runs out.
    "dry-run": the same with dry runs.

    Raises WorkloadError if a probe fails for a reason other than memory, because the training would fail too.
    """
    if settings.proof == "dry-run":
        return verify(
            answer,
            offline=settings.offline,
            on_start=lambda candidate: output.say(phrase("dry run of {rung} ...", rung=candidate.rung)),
        )
    for candidate in by_speed(answer):
        if candidate.estimate.evidence == "probe":  # it has already run on this machine
            return replace(answer, recommended=candidate)
        plan = candidate.plan
        title, size = plan_title(plan), plan.micro_batch_size
        output.say(phrase("probe of {plan}, micro batch {size}: a few real steps ...", plan=title, size=size))
        result = probe_and_keep(
            run_of(answer.question, plan, offline=settings.offline),
            device=settings.device,
            memory_limit_bytes=memory_limit_bytes,
        )
        if result.failure is None:
            speed = f"{result.tokens_per_s:,.0f}"
            output.say(phrase("it ran, {speed} tokens/s with full sequences", speed=speed))
            return replace(answer, recommended=candidate.with_estimate(as_measured(candidate.estimate, result)))
        if result.failure.kind != "out_of_memory":
            raise WorkloadError(
                phrase("the probe failed: {message}", message=result.failure.message),
                why="the training runs the same steps",
                fix="repair that, or pass --no-check to start anyway",
            )
        output.say(phrase("out of memory; the next best"))
    return replace(answer, recommended=None)


def request_of_proposal(proposed: Proposal, folder: TrainingFolder | None = None) -> LaunchRequest:
    """The launch request of the recommended plan, in the proposal's folder or another."""
    return _request(
        proposed.run,
        proposed.chosen.estimate,
        folder or proposed.folder,
        device=proposed.settings.device,
        steps=proposed.steps,
    )


def _request(
    run: Run, prediction: Estimate | None, folder: TrainingFolder, *, device: Device, steps: int
) -> LaunchRequest:
    return LaunchRequest(
        script=Script(target=f"{__package__}.rank", arguments=(str(folder.job),), is_module=True),
        run=run,
        config_path=folder.ds_config,
        launcher="torchrun",
        folder=folder.new_launch(),
        device=device,
        passes_config=False,
        prediction=prediction,
        total_steps=steps,
    )


def _train(
    request: LaunchRequest, job: TrainingJob, folder: TrainingFolder, controls: TrainingControls, *, merging: bool
) -> Trained:
    """Train. If memory runs out and a fallback is requested, continue with less memory. Then merge."""

    def prepare(attempt: LaunchRequest) -> None:
        write_config(attempt.run.config, folder.ds_config, force=True)
        write_record(job if attempt is request else _job_of_fallback(job, attempt, folder), folder.job)
        folder.result.unlink(missing_ok=True)
        folder.remove_broken()

    def follow(attempt: LaunchRequest, outcome: LaunchOutcome, _: Path) -> Continuation:
        checkpoint = folder.newest_usable(job.ranks, controls.output.say)
        return with_less_memory(attempt, outcome, checkpoint, folder.new_launch())

    session = make_attempts(
        request, follow, fallback=controls.fallback, verbose=controls.verbose, output=controls.output, prepare=prepare
    )
    result = read_result(folder.result)
    merged = merging and job.workload.method != "full" and result is not None and result.finished and result.whole
    if merged:
        merge(Path(job.model), folder.path, folder.merged, dtype=job.dtype)
    return Trained(session=session, result=result, job=job, folder=folder, merged=merged)


def _job_of_fallback(job: TrainingJob, request: LaunchRequest, folder: TrainingFolder) -> TrainingJob:
    assert request.prediction is not None, "a plan that is predicted to fit"
    plan, checkpoint = request.prediction.plan, folder.newest_whole() if request.resumes_after else None
    changed = training_arguments(plan, job.workload, request.run.cluster, config_path=str(folder.ds_config))
    changed["output_dir"] = job.arguments["output_dir"]
    if "per_device_eval_batch_size" in job.arguments:
        changed.setdefault("per_device_eval_batch_size", plan.micro_batch_size)
    return replace(
        job,
        arguments={**job.arguments, **changed},
        gathers=saves_model(request.run.config),
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def merge(base: Path, adapter: Path, destination: Path, *, dtype: str) -> None:
    """Save the base model with the adapters' products added to its weights, and the adapter's tokenizer. The merge runs
    on the CPU, in this process, after the ranks have ended, and needs RAM for the base model's weights. A base model
    that was trained in 4 bits is merged in `dtype`, so that no weight is quantized twice."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # peft imports DeepSpeed, which would warn of a missing GPU
    peft: Any = import_module("peft")
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a rename in transformers that peft has not followed
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(base), dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
        )
        peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().save_pretrained(str(destination))
    transformers.AutoTokenizer.from_pretrained(str(adapter), trust_remote_code=False).save_pretrained(str(destination))
