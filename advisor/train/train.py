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
from itertools import dropwhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ...ds_configs.files import write_config
from ...estimators.errors import ClusterError, ConfigFileError, WorkloadError
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import TORCH_DTYPES
from ...probes.real_run.command import STEPS
from ...probes.run import Run
from ...validate.checkpoint import checkpoint_step
from ..answer.recommendation import Recommendation
from ..data.tokenizing import is_local, weights_folder
from ..importers.script_arguments import ScriptArguments
from ..launch.check import disk_objections, predict_run
from ..launch.records import nan_from
from ..launch.request import LaunchRequest
from ..launch.session import run_session
from ..question.cluster import build_cluster, cluster_here, memory_limit_bytes
from ..question.model_source import load_model
from ..question.run import build_run, read_ds_config
from ..text.labels import plan_title
from ..text.output import Output
from ..text.units import gib, rate
from ..verification.past_results import probe_and_keep
from ..verification.prediction import by_estimate
from ..verification.probe_order import measured_estimate
from ..verification.run_view import shown_probe
from ..verification.verify import by_speed, verify
from .folder import TrainingFolder, TrainingJob
from .proposal import Proposal, build_request, proposal_request, propose
from .report import Trained, render_checked, render_proposal, render_start, render_trained, training_report
from .settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class TrainingControls:
    """How a training is launched."""

    output: Output
    fallback: bool
    """Whether the training continues with the next plan that fits if memory runs out."""
    stall_s: float | None
    """Seconds without a step or a line of output after which it is ended; None to wait."""
    verbose: bool
    """Whether to show the first rank's output."""
    was_busy: str = ""
    """Why the speed may be too low: what `busy` said before any process of the training."""


def train_anew(
    options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, controls: TrainingControls, *, force: bool
) -> int:
    """Propose, check, train and save. Returns the exit code. The options are kept for --resume. force: whether to use a
    folder that is not empty."""
    output, folder, trained = controls.output, TrainingFolder(path), None
    settings, shape = _read(options)
    cluster = cluster_here(options)
    inputs = [Path(path) for path in (settings.model, settings.data, settings.eval_data) if path]
    folder.claim(force=force, inputs=inputs)
    with folder.locked():
        write_config(options, folder.options, force=True)
        ready = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if ready.answer.recommended is not None:
            proposed = ready
            ready = verify_proposal(proposed, memory_limit_bytes=memory_limit_bytes(options), output=output)
            if output.mode == "human":
                render_checked(proposed, ready, output.console())
        if ready.answer.recommended is not None:
            weights = weights_folder(settings.model, shape, offline=settings.offline)
            trained = _train(proposal_request(ready, str(weights)), folder, controls, merging=settings.merge)
    return _show_end(trained, ready, output)


def show(
    options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, output: Output, *, force: bool = False
) -> int:
    """Print the files that `train_anew` would write into the folder and the command it would start, and whether it
    would refuse the folder. All files are temporary."""
    settings, shape = _read(options)
    cluster = build_cluster(options)
    with TemporaryDirectory() as temporary:
        folder = TrainingFolder(Path(temporary))
        folder.claim(force=False)
        proposed = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if proposed.answer.recommended is None:
            return _show_end(None, proposed, output)
        request = proposal_request(proposed, settings.model, TrainingFolder(path))
        output.show(lambda: training_report(proposed, None), lambda console: render_start(request, console))
        if not force and (refused := TrainingFolder(path).in_use()) is not None:
            output.warn(f"it would not start without --dry: {refused}")
        return 0


def resume_training(passed: Mapping[str, Any], path: Path, controls: TrainingControls) -> int:
    """Resume the training in a folder from its last whole checkpoint, with its configuration, its data and its kept
    options. The options that the user `passed` must equal the kept ones.

    Raises ConfigFileError if there is no checkpoint or the training has ended, and ClusterError for another number of
    ranks, because a ZeRO checkpoint has one file per rank.
    """
    folder = TrainingFolder(path)
    options = folder.kept_options(passed)
    try:
        settings, shape = _read(options)
    except (KeyError, TypeError) as problem:
        raise folder.not_understood(folder.options) from problem
    cluster = cluster_here(options)
    with folder.locked():
        job = folder.read_job()
        if cluster.world_size != job.ranks:
            raise ClusterError(
                f"the training has {job.ranks} ranks, not {cluster.world_size}",
                why="each rank of a ZeRO checkpoint reads its own file",
                fix="resume with the same number of ranks",
            )
        if losses := folder.logged("loss"):
            raise ConfigFileError(
                f"the training in {folder.path} has ended after {losses[-1][0]} steps",
                why="there is nothing to resume",
                fix="start another one in another --output-dir",
            )
        folder.check_files(job)
        folder.write_script()
        checkpoint = folder.newest_usable(job.ranks, controls.output.say)
        arguments = ScriptArguments(job.arguments)
        if checkpoint_step(checkpoint) < (arguments.number("max_steps") or 0):
            controls.output.say(f"resuming from {checkpoint.name}")
        else:
            controls.output.say(f"all steps are made; saving from {checkpoint.name}")
        run = Run(
            config=read_ds_config(folder.ds_config),
            model={},
            model_name=shape.name,
            shape=shape,
            cluster=cluster,
            workload=job.workload,
            micro_batch_size=arguments.number("per_device_train_batch_size"),
            gradient_accumulation_steps=arguments.number("gradient_accumulation_steps"),
            gradient_checkpointing=bool(arguments.flag("gradient_checkpointing")),
        )
        job = replace(job, arguments=arguments.replace_values({"resume_from_checkpoint": str(checkpoint)}))
        request = replace(build_request(run, predict_run(run), job, folder), resumes_after=checkpoint_step(checkpoint))
        trained = _train(request, folder, controls, merging=settings.merge)
    return _show_end(trained, None, controls.output)


def _read(options: Mapping[str, Any]) -> tuple[TrainingSettings, ModelShape]:
    """The settings and the model. Raises ModelConfigError for a model in a folder without weights; those on the Hub are
    downloaded after the check."""
    settings = TrainingSettings.from_options(options)
    shape = load_model(settings.model, offline=settings.offline)
    if is_local(settings.model):
        weights_folder(settings.model, shape, offline=settings.offline)
    return settings, shape


def _proposed(
    settings: TrainingSettings, shape: ModelShape, question: Mapping[str, Any], folder: TrainingFolder, output: Output
) -> Proposal:
    with output.waiting(f"reading {settings.data.name}"):
        proposed = propose(settings, shape, question, folder)
    if output.mode == "human":
        render_proposal(proposed, output.console())
    return proposed


def _show_end(trained: Trained | None, proposed: Proposal | None, output: Output) -> int:
    def render(console: Console) -> None:
        if trained is not None:
            render_trained(trained, console)

    output.show(lambda: training_report(proposed, trained), render)
    return 0 if trained is not None and trained.finished else 1


def verify_proposal(proposed: Proposal, *, memory_limit_bytes: int | None, output: Output) -> Proposal:
    """The proposal under the fastest plan that passes the check. `proposed` must have a plan; `answer.recommended` is
    None if no plan passes. Raises ConfigFileError if the disk has no room, and the errors of `verify_answer`."""
    settings = proposed.settings
    if settings.check == "none":
        return proposed
    for objection in disk_objections(proposal_request(proposed, settings.model), output.say):
        raise ConfigFileError(
            objection.what,
            why="a full disk would end the training at a checkpoint",
            fix="pass an --output-dir with more room, or --no-check",
        )
    answer = verify_answer(proposed.answer, settings, memory_limit_bytes=memory_limit_bytes, output=output)
    return replace(proposed, answer=answer)


def verify_answer(
    answer: Recommendation, settings: TrainingSettings, *, memory_limit_bytes: int | None, output: Output
) -> Recommendation:
    """The answer, with the fastest plan that passes the check as the recommended one, or None.

    "probe": a few real steps with random weights and full sequences; the next best plan if memory runs out.
    "dry-run": the same with dry runs.

    Raises WorkloadError if a probe fails for a reason other than memory, because the training would fail too.
    """
    if settings.check == "dry-run":
        return verify(answer, offline=settings.offline, output=output)
    for candidate in by_speed(answer):
        if candidate.estimate.evidence == "probe":  # it has already run on this machine
            return replace(answer, recommended=candidate)
        plan = candidate.plan
        output.say(f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}: a few real steps ...")
        cluster = answer.question.cluster
        predicted = by_estimate(candidate.estimate, cluster)
        with shown_probe(output, cluster, predicted, STEPS) as on_progress:
            result = probe_and_keep(
                build_run(answer.question, plan, offline=settings.offline),
                device=settings.device,
                memory_limit_bytes=memory_limit_bytes,
                predicted=predicted,
                on_progress=on_progress,
            )
        if result.failure is None:
            full = f"full sequences of {answer.question.workload.seq_len:,} tokens"
            peak = f", at most {gib(result.host_peak_bytes)} GiB of host RAM" if result.host_peak_bytes else ""
            output.say(f"it ran, {rate(result.tokens_per_s)} tokens/s with {full}{peak}")
            return replace(
                answer, recommended=candidate.replace_estimate(measured_estimate(candidate.estimate, result))
            )
        if result.failure.kind != "out_of_memory":
            raise WorkloadError(
                f"the probe failed: {result.failure.message}",
                why="the training runs the same steps",
                fix=result.failure.fix or "fix this error, or use --no-check to start anyway",
            )
        output.say("out of memory; trying the next best plan")
    return replace(answer, recommended=None)


def _train(request: LaunchRequest, folder: TrainingFolder, controls: TrainingControls, *, merging: bool) -> Trained:
    """Train. If memory runs out and a fallback is requested, continue with less memory. Then merge."""
    run = request.run

    def keep(attempt: LaunchRequest) -> None:
        """Keep what resumes the attempt."""
        write_config(attempt.run.config, folder.ds_config, force=True)
        kept = attempt.options.without([*folder.script_paths(), "resume_from_checkpoint"])
        job = TrainingJob(
            arguments=tuple(dropwhile(lambda word: not word.startswith("--"), kept)),  # behind the script
            workload=run.workload,
            device=request.device,
            ranks=run.cluster.world_size,
            zero_stage=attempt.run.config["zero_optimization"]["stage"],
        )
        folder.write_job(job)
        folder.state.unlink(missing_ok=True)

    fallback, verbose, output = controls.fallback, controls.verbose, controls.output
    request = replace(request, stall_s=controls.stall_s)
    session = run_session(
        request, fallback=fallback, verbose=verbose, output=output, was_busy=controls.was_busy, prepare=keep
    )
    outcome = session.attempts[-1].outcome
    if outcome.failure is not None and outcome.failure.kind == "nan_loss":
        folder.set_aside(nan_from(outcome.losses), output.say)
    trained = Trained(session=session, folder=folder)
    if merging and run.workload.method != "full" and trained.finished and trained.is_whole:
        with output.progress("merging the adapters") as show:
            show(f"{trained.base.name} on the CPU")
            merge(trained.base, folder.path, folder.merged, dtype=TORCH_DTYPES[run.workload.precision])
        trained = replace(trained, merged=True)
    return trained


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
