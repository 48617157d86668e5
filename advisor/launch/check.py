"""Checks before a training starts: whether it fits the device, the host and the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ...ds_configs.files import free_bytes
from ...ds_configs.read import saves_model
from ...estimators.errors import DsAdviseError, WorkloadError
from ...estimators.estimate import Estimate
from ...estimators.time.job import checkpoint_bytes
from ...estimators.workload import NEXT_TOKEN
from ...probes.machine import installed_version
from ...probes.run import Run
from ...probes.store_path import store_exists
from ...validate.checkpoint import read_checkpoint
from ..advise import answer
from ..question.question import Question, script_constraints
from ..search.candidate import LIKELY, Candidate, chance
from ..text.labels import checkpointing_title, plan_title
from ..text.units import age, counted_noun, gib
from ..verification.dry_run import compared_dry_run
from ..verification.past_results import PastProbe, PastProbes, probe_and_keep
from ..verification.probe_order import measured_estimate
from .request import LaunchRequest
from .script_source import how_to_update

Check = Literal["auto", "dry-run", "probe"]
"""How to check that the training fits: "probe" runs a few real steps on this machine; "dry-run" runs the real engine on
a simulated GPU; "auto" is a probe if this machine can run the ranks of the whole job, else a dry run."""


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


def plans_that_fit(run: Run) -> list[Candidate]:
    """Plans with the same global batch that are predicted to fit, fastest first. Empty for a model of unknown shape."""
    try:
        plan = run.plan()
        if plan is None or run.shape is None or plan.autotp_size > 1:  # the script's data loader depends on the groups
            return []
        question = Question(
            model=run.shape,
            workload=replace(run.workload, global_batch_size=run.samples_per_step),
            cluster=run.cluster,
            options=script_constraints(plan),
        )
        candidates = answer(question).candidates
    except DsAdviseError:
        return []
    return sorted((each for each in candidates if each.fit.fits), key=lambda candidate: -candidate.tokens_per_s)


def objections(request: LaunchRequest, check: Check, say: Callable[[str], None]) -> list[Objection]:
    """All reasons against starting the training; empty if it may start. Raises WorkloadError if the model is unknown,
    and DsAdviseError if the check itself fails."""
    run, script = request.run, request.script
    # Such a script stops at once, so nothing else needs a check.
    outdated = script.source.outdated(script.target, script.options.by_name)
    if outdated:
        return [
            Objection(
                what=f"{place}: transformers {installed_version('transformers')} takes no {', '.join(names)}",
                fix=how_to_update(names),
            )
            for place, names in outdated.items()
        ]
    if request.other_loss is not None:
        say(f"{request.other_loss} has another loss and may hold further models: its memory is not checked")
        return disk_objections(request, say)
    if not run.model:
        raise WorkloadError(
            "the model is not known, so the memory check is not possible",
            why="the script's arguments do not name a model",
            fix="pass --model NAME, or FILE.py:FACTORY for a module of your own, or use --no-check to start anyway",
        )
    _evaluation(request, say)
    found = [*disk_objections(request, say), *_resumption(request, say), *_loading(run, request.prediction)]
    runs_here = run.cluster.is_this_machine and run.cluster.nodes == 1
    if run.workload.objective != NEXT_TOKEN:
        return [*found, *_dry_run(run, say)]  # a probe trains on the next token
    if check == "probe" or (check == "auto" and runs_here):
        return [*found, *_probe(request, say, rerun=check == "probe")]
    return [*found, *_dry_run(run, say)]


def _dry_run(run: Run, say: Callable[[str], None]) -> list[Objection]:
    say("dry run ...")
    answer = compared_dry_run(run)
    probability = answer.fit.probability
    if probability >= LIKELY:
        if not answer.fit.fits:
            say(f"by the dry run it fits with a probability of {chance(probability)}; the training starts")
        return []
    gpu, host_bytes = run.cluster.gpu, run.cluster.host_memory_bytes_per_node
    host_need_bytes = answer.required_host_bytes_per_node
    if host_bytes is not None and host_need_bytes > host_bytes:
        what = f"the dry run needs {gib(host_need_bytes)} GiB of the host's {gib(host_bytes)}"
    else:
        need = f"{gib(answer.required_device_bytes_per_gpu)} GiB of the {gpu.name}'s {gib(gpu.memory_bytes)}"
        what = f"the dry run needs {need}: it fits with a probability of {chance(probability)}"
    return [Objection(what=what, fix=_other_plan(run))]


def _probe(request: LaunchRequest, say: Callable[[str], None], *, rerun: bool) -> list[Objection]:
    """rerun: whether to probe even if there is an earlier probe of the run."""
    run = request.run
    past = None if rerun else _past_probe(run)
    if past is None:
        title = "the probe"
        result = probe_and_keep(run, device=request.device, on_progress=lambda step: say(f"probe: {step} ..."))
    else:
        title = f"probe {past.id} ({age(past.age_s)})"
        result = past.result
        say(f"{title} is used for this plan; --check probe runs a new probe")
    failure = result.failure
    if failure is None:
        return []
    # The kernel's OOM killer ends a rank by SIGKILL without a message.
    is_memory = failure.kind in ("out_of_memory", "killed")
    what = f"{title} failed in {failure.phase} on rank {failure.rank}: {failure.message}"
    return [Objection(what=what, fix=_other_plan(run) if is_memory else "fix this error first")]


def _resumption(request: LaunchRequest, say: Callable[[str], None]) -> list[Objection]:
    """Check the files of the checkpoint from which the script is to resume, if DeepSpeed wrote it."""
    folder = request.script.options.text("resume_from_checkpoint")
    if folder is None or not Path(folder, "latest").exists():
        return []
    say(f"checking {folder} ...")
    checkpoint = read_checkpoint(Path(folder))
    fix = "resume from an earlier checkpoint"
    return [] if checkpoint.is_whole else [Objection(what=f"{folder} is damaged: {checkpoint.problem}", fix=fix)]


def _loading(run: Run, prediction: Estimate | None) -> list[Objection]:
    """Check the host memory at the moment when every local rank holds the model."""
    available = run.cluster.host_memory_bytes_per_node
    need = 0 if prediction is None else prediction.memory.host_loading_bytes_per_node
    if available is None or need <= available:
        return []
    what = f"loading the model needs {gib(need)} GiB of the host's {gib(available)}"
    return [Objection(what=what, fix="use ZeRO-3, which loads the model in shards, or fewer ranks on this node")]


def _evaluation(request: LaunchRequest, say: Callable[[str], None]) -> None:
    """Report the memory of an evaluation if it takes more than a training step, because a probe does not evaluate."""
    run, prediction = request.run, request.prediction
    if prediction is None or prediction.memory.peak.name != "evaluation":
        return
    workload, have = run.workload, run.cluster.gpu.memory_bytes
    step = max(phase.allocated_bytes for phase in prediction.memory.phases if phase.name != "evaluation")
    need = gib(prediction.memory.allocated_bytes_per_gpu)
    parts = [f"evaluation needs {need} GiB of tensors, training {gib(step)}"]
    if workload.eval_logits:
        parts.append(
            "each GPU keeps the logits of its batches for compute_metrics: reduce them in "
            "preprocess_logits_for_metrics, or set eval_accumulation_steps=1"
        )
    if prediction.memory.device_bytes_per_gpu > have:
        parts.append(f"it is predicted to exceed the {gib(have)} GiB of the {run.cluster.gpu.name}")
    say("; ".join(parts))


def disk_objections(request: LaunchRequest, say: Callable[[str], None]) -> list[Objection]:
    """Check that the disk has room for all checkpoints that the script keeps at once, or for one if their number is
    unknown."""
    run, arguments = request.run, request.script.described
    output_dir = arguments.output_dir
    if output_dir is None or run.shape is None:
        return []
    kept = arguments.checkpoints if run.workload.uses_trainer else None
    only_model = saves_model(run.config) and run.workload.uses_trainer and bool(arguments.flag("save_only_model"))
    stage, free = int(run.config.get("zero_optimization", {}).get("stage", 0)), free_bytes(output_dir)
    one = checkpoint_bytes(run.shape, run.workload, stage, only_model=only_model)
    count = 1 if kept is None else kept
    if count * one <= free:
        if kept is None:
            say(
                f"a checkpoint takes {gib(one)} GiB, and {free // one:,} fit into the {gib(free)} GiB free in "
                f"{output_dir}: the number of kept ones is unknown (--save_total_limit limits it)"
            )
        return []
    needed = f"{counted_noun(count, 'checkpoint')} of {gib(one)} GiB"
    what = f"{needed} need more than the {gib(free)} GiB free in {output_dir}"
    fix = "free some space, name another --output_dir, or keep fewer with --save_total_limit 1"
    return [Objection(what=what, fix=fix)]


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
