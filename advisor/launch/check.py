"""Checks before a training starts: whether it fits the device, the host and the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ...ds_configs.files import CONFIG_NAME, free_bytes
from ...ds_configs.read import saves_model, zero_stage_in
from ...estimators.errors import ConfigFileError, DsAdviseError, WorkloadError
from ...estimators.estimate import Estimate
from ...estimators.time.job import checkpoint_bytes, engine_state_bytes
from ...probes.command.request import CommandRequest
from ...probes.real_run.command import CommandProbe
from ...probes.real_run.torchrun import free_port
from ...probes.run import Run, check_device
from ...probes.run_errors import NAME_A_CONFIG, DryRunError, NoEngineError, ScriptExitError
from ...probes.store_path import store_exists
from ...validate.checkpoint import read_checkpoint
from ..advise import answer
from ..answer.command_answer import CommandAnswer
from ..command.question import command_question
from ..question.question import Question, script_constraints
from ..search.candidate import LIKELY, Candidate, chance, judge_fit
from ..text.labels import checkpointing_title, plan_title
from ..text.output import Output
from ..text.units import counted_noun, gib, memory_size
from ..verification.command import check_config, command_answer
from ..verification.past_results import PastProbe, PastProbes
from ..verification.probe import compared_command_probe
from ..verification.probe_order import measured_estimate
from .command import launch_line
from .request import LaunchRequest

Check = Literal["dry-run", "probe", "quick"]
"""How to check that the training fits: "dry-run" runs the command on a simulated GPU; "probe" runs its first steps on
this machine; "quick" uses the closed form of a named model, and runs nothing."""

_LIMIT_S = 1800.0

_OTHER_PLAN = "ds-advise --gpus SPEC -- COMMAND names a plan that fits"

_WITH_A_CONFIG = f"ds-advise launch {CONFIG_NAME} -- COMMAND"

_MANY = 100
"""Number of checkpoints that a training does not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A reason against starting the training."""

    what: str
    fix: str


def predict_run(run: Run) -> Estimate | None:
    """The closed-form estimate of a run, with the step time of the newest probe of the same run on this machine. None
    for an unknown model, or for a GPU of unknown speed."""
    estimate, past = run.estimate(), _past_probe(run)
    if estimate is None or past is None or past.result.failure is not None:
        return estimate
    return measured_estimate(estimate, past.result)


def _past_probe(run: Run) -> PastProbe | None:
    if run.shape is None or not run.cluster.is_this_machine or not store_exists():
        return None
    return PastProbes(run.shape, run.workload, run.cluster).find(run)


def plans_that_fit(run: Run, *, offloads_checkpoints: bool = True) -> list[Candidate]:
    """Plans with the same global batch that are predicted to fit, fastest first. Empty for a model of unknown shape.
    offloads_checkpoints: whether the training under the plan can keep the inputs of layers in host RAM."""
    try:
        plan = run.plan()
        if plan is None or run.shape is None or plan.autotp_size > 1:  # the script's data loader depends on the groups
            return []
        question = Question(
            model=run.shape,
            workload=replace(run.workload, global_batch_size=run.samples_per_step),
            cluster=run.cluster,
            options=script_constraints(plan),
            offloads_checkpoints=offloads_checkpoints,
        )
        candidates = answer(question).candidates
    except DsAdviseError:
        return []
    return sorted((each for each in candidates if each.fit.fits), key=lambda candidate: -candidate.tokens_per_s)


def check(request: LaunchRequest, how: Check, output: Output) -> tuple[LaunchRequest, list[Objection]]:
    """(the request with what the check has shown, the reasons against starting it).

    A training without DeepSpeed that would take none of its configurations has no objection against it.

    Raises the errors of the dry run or probe, and WorkloadError for a quick check without a model.
    """
    try:
        if how == "quick":
            found = _by_closed_form(request)
        elif how == "dry-run":
            request, found = observe(request, output)
        else:
            request, found = _probe(request, output)
    except NoEngineError as error:
        if error.takes_config or (request.config_path is not None and request.is_config_given):
            raise  # DeepSpeed was wanted, or may have been forgotten
        output.warn(f"{error.what}: it is not checked, no step of it is seen, and nothing is predicted")
        found = []
    if not found and request.dry_run is not None and request.dry_run.fit.fits:
        output.say(f"by the dry run it fits: {_memory_of(request.dry_run)}")
    return request, [*found, *disk_objections(request, output.say), *_resumption(request, output.say)]


def observe(request: LaunchRequest, output: Output) -> tuple[LaunchRequest, list[Objection]]:
    """(the request with a dry run of its command, the reasons against starting it)."""
    command = CommandRequest(
        words=request.words,
        folder=Path.cwd(),
        cluster=request.run.cluster,
        config_file=request.config_path and request.config_path.absolute(),
        is_default_config=not request.is_config_given,
        offline=request.offline,
    )
    try:
        with output.progress("dry run") as on_progress:
            found = command_answer(command, timeout_s=_LIMIT_S, on_progress=on_progress)
    except DryRunError as error:
        if isinstance(error, NoEngineError):
            error.fix = f"--no-check starts it without DeepSpeed; {error.fix.replace(NAME_A_CONFIG, _WITH_A_CONFIG)}"
        elif not isinstance(error, ScriptExitError):
            error.fix = "; ".join(filter(None, (error.fix, "--no-check starts it without a dry run")))
        raise
    for remark in found.observed.remarks:
        output.warn(f"dry run: {remark}")
    run = _observed_run(request.run, found)
    check_device(run, request.device)
    if request.config_path is not None:
        try:
            check_config(request.config_path, found.arguments)
        except ConfigFileError as error:
            output.say(error.what)
            request = replace(request, config_path=None)
    request = replace(request, run=run, estimate=request.estimate or run.estimate(), dry_run=found)
    objections = memory_objections(found, output.say)
    if found.late_failure is not None:
        what = f"the script fails after its steps: {found.late_failure.cause}"
        objections.append(Objection(what=what.rstrip("."), fix=found.late_failure.fix))
    return request, objections


def _observed_run(described: Run, found: CommandAnswer) -> Run:
    """The run that the dry run saw. Its model is known if the closed form can describe it, or if --model named it."""
    engine = found.engine
    run = replace(
        described,
        config=engine.config,
        micro_batch_size=engine.micro_batch_size,
        gradient_accumulation_steps=engine.gradient_accumulation_steps,
        gradient_checkpointing=found.observed.recomputes,
        model_name=described.model_name or engine.model,
    )
    if run.shape is None:
        with suppress(DsAdviseError):
            question = command_question(found.found, {"gpus": run.cluster})
            run = replace(run, shape=question.model, workload=question.workload, model_name=question.model.name)
    return run


def memory_objections(found: CommandAnswer, say: Callable[[str], None]) -> list[Objection]:
    """Compare the memory that a dry run has shown with the machine's."""
    cluster = found.run.cluster
    probability, host_need = found.fit.probability, found.required_host_bytes_per_node
    if probability >= LIKELY:
        if not found.fit.fits:
            say(f"by the dry run it fits with a probability of {chance(probability)}; the training starts")
        return []
    if found.fit.limit == "host" and cluster.host_memory_bytes_per_node is not None:
        what = f"the dry run needs {gib(host_need)} GiB of the host's {gib(cluster.host_memory_bytes_per_node)}"
    else:
        need = f"{gib(found.required_device_bytes_per_gpu)} GiB of the {cluster.gpu.name}'s "
        what = f"the dry run needs {need}{gib(cluster.gpu.memory_bytes)}: " + (
            f"it fits with a probability of {chance(probability)}"
        )
    change = found.best_change
    fix = _OTHER_PLAN
    if change is not None:
        fix = f"{change.what} would help most (up to {gib(change.saved_bytes)} GiB less); {fix}"
    return [Objection(what=what, fix=fix)]


def _memory_of(found: CommandAnswer) -> str:
    """The memory that a dry run has shown, of the memory that there is: `12.3 of 79.2 GiB per GPU`."""
    cluster, parts = found.run.cluster, list[str]()
    host = cluster.host_memory_bytes_per_node
    if not cluster.gpu.is_cpu:
        parts.append(f"{gib(found.required_device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB per GPU")
    if host is not None:
        parts.append(f"{gib(found.required_host_bytes_per_node)} of {gib(host)} GiB of host RAM per node")
    return ", ".join(parts) or f"{gib(found.required_host_bytes_per_node)} GiB of host RAM per node"


def _probe(request: LaunchRequest, output: Output) -> tuple[LaunchRequest, list[Objection]]:
    """(the request with a dry run of its command, the reasons against starting it by a probe)."""
    try:
        request, _ = observe(request, output)  # it also decides the launcher, and names smaller plans
    except NoEngineError:
        raise  # its first steps are not seen, so a probe would train to the end
    except DryRunError as error:
        if error.misspelt:
            raise  # the ranks' parsers refuse it too
        output.say(f"no dry run: {error.reason}")
    return request, _by_probe(request, output)


def _by_probe(request: LaunchRequest, output: Output) -> list[Objection]:
    cluster = request.run.cluster
    if cluster.nodes > 1:
        raise WorkloadError(
            "a probe starts all ranks on this machine",
            why=f"the training has {cluster.nodes} nodes",
            fix="leave --check out for a dry run",
        )
    port = None if request.command.program is None else free_port()
    probe = CommandProbe(
        words=tuple(launch_line(request, port=port)),
        folder=Path.cwd(),
        ranks=cluster.gpus_per_node,
        device=request.device,
        config_file=request.config_path and request.config_path.absolute(),
    )
    answer = compared_command_probe(probe, cluster, dry=False, offline=request.offline, output=output)
    failure = answer.result.failure
    if failure is None:
        return []
    if failure.kind == "no_step":
        fix = failure.fix.replace(NAME_A_CONFIG, _WITH_A_CONFIG) or "fix this error first"
        return [Objection(what=f"nothing was measured: {failure.message}", fix=fix)]
    # The kernel's OOM killer ends a rank by SIGKILL without a message.
    is_memory = failure.kind in ("out_of_memory", "killed")
    what = f"the probe failed {failure.when} on rank {failure.rank}: {failure.message}"
    return [Objection(what=what, fix=_OTHER_PLAN if is_memory else "fix this error first")]


def _by_closed_form(request: LaunchRequest) -> list[Objection]:
    if request.estimate is None:
        raise WorkloadError(
            "--check quick needs a model that the closed form knows",
            why="it runs nothing, so it does not see what the command trains",
            fix="pass --model NAME, or leave --check out",
        )
    cluster, memory = request.run.cluster, request.estimate.memory
    fit = judge_fit(memory, cluster)
    if fit.probability >= LIKELY:
        return []
    need = f"{gib(memory.device_bytes_per_gpu)} GiB of the {cluster.gpu.name}'s {gib(cluster.gpu.memory_bytes)}"
    what = f"the closed form needs {need}" if fit.limit == "gpu" else f"the plan {fit.reason}"
    what += f": it fits with a probability of {chance(fit.probability)}"
    return [Objection(what=what, fix=_other_plan(request.run))]


def _resumption(request: LaunchRequest, say: Callable[[str], None]) -> list[Objection]:
    """Check the files of the checkpoint from which the script is to resume, if DeepSpeed wrote it."""
    folder = request.arguments.text("resume_from_checkpoint")
    if folder is None or not Path(folder, "latest").exists():
        return []
    say(f"checking {folder} ...")
    checkpoint = read_checkpoint(Path(folder))
    fix = "resume from an earlier checkpoint"
    return [] if checkpoint.is_whole else [Objection(what=f"{folder} is damaged: {checkpoint.problem}", fix=fix)]


def disk_objections(request: LaunchRequest, say: Callable[[str], None]) -> list[Objection]:
    """Check that the disk has room for all checkpoints that the script keeps at once, or for one if their number is
    unknown."""
    arguments, one = request.arguments, _checkpoint_bytes(request)
    output_dir = arguments.output_dir
    if output_dir is None or one is None:
        return []
    kept, free = arguments.checkpoints, free_bytes(output_dir)
    count = 1 if kept is None else kept
    if count * one <= free:
        if kept is None and free < _MANY * one:
            say(
                f"a checkpoint takes {memory_size(one)}, and {free // one:,} fit into the {memory_size(free)} free in "
                f"{output_dir}: the number of kept ones is unknown (--save_total_limit limits it)"
            )
        return []
    needed = f"{counted_noun(count, 'checkpoint')} of {memory_size(one)}"
    what = f"{needed} need more than the {memory_size(free)} free in {output_dir}"
    fix = "free some space, name another --output_dir, or keep fewer with --save_total_limit 1"
    return [Objection(what=what, fix=fix)]


def _checkpoint_bytes(request: LaunchRequest) -> int | None:
    """Bytes of one of the Trainer's checkpoints; None for another script, and for a model that is not known."""
    run, seen, arguments = request.run, request.dry_run, request.arguments
    only_model = saves_model(run.config) and bool(arguments.flag("save_only_model"))
    stage = zero_stage_in(run.config)
    if seen is not None:
        if not seen.arguments.trainer:
            return None
        engine = seen.engine
        is_adapted = engine.trainable_parameters < engine.parameters and "Peft" in engine.model
        saved = 4 * engine.trainable_parameters if is_adapted else 2 * engine.parameters  # adapters are saved in fp32
        return saved if only_model else int(saved + engine_state_bytes(engine.trainable_parameters, stage))
    if run.shape is None or not run.workload.uses_trainer:
        return None
    return checkpoint_bytes(run.shape, run.workload, stage, only_model=only_model)


def _other_plan(run: Run) -> str:
    plans = plans_that_fit(run)
    if not plans or run.shape is None:
        return "no plan with this global batch is predicted to fit; try LoRA, a shorter --seq-len or a smaller model"
    best = plans[0].estimate.plan
    return (
        f"{plan_title(best)} with micro batch {best.micro_batch_size} and {checkpointing_title(best)} is predicted to "
        f"fit: ds-advise {run.shape.name} --seq-len {run.workload.seq_len} --global-batch {run.samples_per_step} "
        "writes it"
    )
