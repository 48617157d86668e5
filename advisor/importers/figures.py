"""The figures of an imported run without changes, and the best plan of the same training."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...ds_configs.launch_commands import ALLOCATOR_SETTING, unset_threads
from ...ds_configs.presets import plan_for
from ...ds_configs.read import batch_numbers_in, plan_from_ds_config, sequence_parallel_size_in
from ...estimators.errors import ConfigFileError, WorkloadError
from ...estimators.hardware import Cluster, cores_per_rank, cpu_cores
from ...estimators.memory.plan_memory import has_room_for_pinned
from ...estimators.memory.trainable import tensor_set
from ...estimators.models.families import supports
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.plan import PlainPyTorch, Plan
from ...estimators.time.step_time import estimate_time, gain_of_bf16
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ..advise import predicted, strategy_candidate
from ..answer.facts import loading_peak
from ..answer.recommendation import Recommendation
from ..answer.verdict import what_lacks
from ..question.cluster import machine_arguments
from ..question.options import CheckpointingChoice, Risk
from ..question.question import Question, script_constraints
from ..question.workload import apply_model_options, configured_workload
from ..search.candidate import LEAST, Candidate, predict
from ..search.choice import is_as_fast, other_taken_plans
from ..text.units import counted_noun, gib, times
from .imported_run import ImportedRun

_LEAST_GAIN = 1.1
"""Least speed-up by more threads of the host, or by another training backend, that is worth a change."""

_WITHOUT_CONFIG: Mapping[str, Any] = {"zero_optimization": {"stage": 0}, "bf16": {"enabled": "auto"}}
"""The configuration of a run without DeepSpeed, which leaves all settings to the run's own options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFigures:
    """Figures of a run, and a better plan for it."""

    question: Question
    """The same training and global batch on the same machines, as `advise` asks it; with the loss of `recommended`."""
    own: Question
    """The run as it is: with the loss, the allocator and the threads that it has today."""
    plan: Plan
    """The run's own plan."""
    as_is: Candidate | None
    """The run without changes; None if its plan cannot run at all."""
    refusal: str
    """Why the run's plan cannot run; "" if it can."""
    recommended: Candidate | None
    """The fastest plan that fits with the same training and global batch; None if none does."""
    is_better: bool
    """Whether the recommended plan fits when the run does not, or is faster."""
    lacking: str | None = None
    """What the closest plan lacks, as a sentence, if a search found no plan that fits."""
    command: str = ""
    """The command that lists the changes that would help; "" without a search."""
    variables: tuple[str, ...] = ()
    """The environment variables that the better plan needs and the run does not have, as NAME=VALUE."""
    remarks: tuple[str, ...] = ()


def import_figures(
    run: ImportedRun,
    model: ModelShape,
    cluster: Cluster,
    *,
    risk: Risk,
    offloads_checkpoints: bool,
    micro_batch: int | None = None,
    checkpointing: CheckpointingChoice = "auto",
) -> ImportFigures:
    """The figures of a run on these GPUs.

    offloads_checkpoints: whether the file has a key that offloads the inputs of checkpointed layers.
    micro_batch, checkpointing: the user's, which other plans keep if one fits with them; None and "auto" leave the
        search free.

    Raises ConfigFileError and WorkloadError if the run contradicts itself or names something unknown.
    """
    part, remarks = run.deepspeed, list[str]()
    if part is not None and part.config is None:
        raise ConfigFileError(
            f"the configuration {part.name[:80]} is not on this machine",
            why="it determines the memory of each GPU",
            fix="run this on the machine that has it, or pass --ds-config FILE",
        )
    config = _WITHOUT_CONFIG if part is None or part.config is None else part.config
    as_started = cluster
    if run.launcher is not None and cluster.world_size > 1 and cluster.threads_per_rank is None:
        as_started = replace(cluster, threads_per_rank=unset_threads(run.launcher, cluster))
    software = {**run.training.get("software", {}), "expandable-segments": run.expandable_segments}
    options = {**run.training, "software": software}
    if options.get("kernels") == "liger" or options.get("loss") == "fused":
        unpatched = None if supports(model, "liger") else f"Liger has no kernels for {model.model_type} models"
        if (obstacle := unpatched or cluster.gpu.obstacle_to_triton) is not None:
            options = {name: value for name, value in options.items() if name not in ("kernels", "loss")}
            remarks.append(f"{obstacle}: counted without Liger's kernels")
    model = apply_model_options(model, options)
    workload = _with_loaded_weights(run, configured_workload(config, options, model, cluster.gpu), model, remarks)
    if workload.optimizer not in OPTIMIZERS:
        raise WorkloadError(f"not predicted: the optimizer {workload.optimizer[:40]}", why="its states are not known")
    plan = _plan(run, config, model, workload, as_started)
    refusal = unsupported(model, workload, plan, as_started) or ""
    if refusal:
        refusal += _ways_out(run, config, model, workload, as_started)
    as_is = None if refusal else predict(model, workload, as_started, plan)
    if as_is is not None:
        remedy = " (pure_bf16: true avoids it)" if run.tool == "LLaMA-Factory" and as_is.plan.zero_stage < 3 else ""
        remarks.extend(f"{text[:1].lower()}{text[1:-1]}{remedy}" for text in loading_peak(as_is))
    if as_is is not None and as_is.plan.offload_optimizer != "none":
        gain = as_is.time.step_s / predict(model, workload, cluster, plan).time.step_s
        if gain >= _LEAST_GAIN:
            own = counted_noun(as_started.threads_per_rank or 1, "thread")
            cores, is_assumed = f"{cpu_cores(cluster)} CPU cores", cluster.cpu_cores_per_node is None
            remarks.append(
                f"the optimizer runs on the host with {own} per rank: OMP_NUM_THREADS={cores_per_rank(cluster)} would "
                f"make the run {times(gain)} as fast on a node with {cores}"
                + (", which are assumed (--host)" if is_assumed else "")
            )
        remarks += _slow_offload(as_is.plan, model, workload, as_started)
    if run.training.get("seq_len") is None:
        remarks.append(f"the sample length is not given: {workload.seq_len:,} tokens are assumed (--seq-len)")
    splits_layers = plan.autotp_size > 1  # the script's data loader depends on the groups
    samples = None if splits_layers else plan.samples_per_step(cluster.world_size)
    workload = replace(workload, global_batch_size=samples)
    own_question = Question(
        model=model, workload=workload, cluster=as_started, risk=risk, options=script_constraints(plan)
    )
    recommended, lacking, command, question = None, None, "", own_question
    if splits_layers:
        remarks.append("other plans are not searched for a run with AutoTP")
    else:
        asked = _asked(own_question, run, cluster, has_loss=options.get("loss", "auto") != "auto")
        kept = replace(asked, micro_batch_size=micro_batch).replace_options(gradient_checkpointing=checkpointing)
        recommended, searched = _recommended(kept, run, offloads_checkpoints=offloads_checkpoints)
        if recommended is None and kept != asked:
            recommended, searched = _recommended(asked, run, offloads_checkpoints=offloads_checkpoints)
        question, missed = searched.question, searched.closest
        lacking = None if missed is None or recommended is not None else what_lacks(question, missed)
        command = _command(run, workload, model, cluster)
    fits = as_is is not None and as_is.fit.probability >= LEAST[risk]
    is_better = recommended is not None and (not fits or as_is is None or _is_faster(recommended, as_is))
    variables = () if recommended is None or not is_better else _variables(run, own_question, cluster, recommended.plan)
    if not run.expandable_segments and ALLOCATOR_SETTING not in variables:
        remarks.append(f"{ALLOCATOR_SETTING} is not set, which wastes memory")
    advised = recommended if is_better else as_is
    # For one process outside a process group DeepSpeed looks for MPI and stops (0.19.8 comm/comm.py `mpi_discovery`).
    # accelerate starts it in a group if its configuration uses DeepSpeed.
    in_group = cluster.world_size > 1 or (run.launcher == "accelerate" and run.sharding == "zero")
    if advised is not None and advised.plan.sharding == "zero" and run.one_process and not in_group:
        remarks.append(f"DeepSpeed needs a launcher even for one process: start it with {run.one_process}")
    return ImportFigures(
        question=question,
        own=own_question,
        plan=plan,
        as_is=as_is,
        refusal=refusal,
        recommended=recommended,
        is_better=is_better,
        lacking=lacking,
        command=command,
        variables=variables,
        remarks=tuple(remarks),
    )


def _ways_out(
    run: ImportedRun, config: Mapping[str, Any], model: ModelShape, workload: Workload, cluster: Cluster
) -> str:
    """Which key of `zero_optimization` keeps the run from running, and whether AdamW also ends it: `; it can without
    ...`. "" if neither does alone."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return ""
    block: Mapping[str, Any] = zero

    def runs(changed: Mapping[str, Any], by: Workload) -> bool:
        with suppress(ConfigFileError, WorkloadError):
            return not unsupported(model, by, _plan(run, changed, model, by, cluster), cluster)
        return False

    def without(key: str) -> dict[str, Any]:
        return {**config, "zero_optimization": {name: each for name, each in block.items() if name != key}}

    name = "the file" if run.deepspeed is None else run.deepspeed.name
    ways = [
        f"without zero_optimization.{key} of {name}" for key in block if key != "stage" and runs(without(key), workload)
    ]
    if "optimizer" not in config and runs(config, replace(workload, optimizer="adamw")):
        ways.append("with adamw as the optimizer")
    return f"; it can {' or '.join(ways)}" if ways else ""


def _is_faster(recommended: Candidate, as_is: Candidate) -> bool:
    """Whether a plan is worth the change. Another training backend must gain as much as costly features."""
    gain = recommended.tokens_per_s / as_is.tokens_per_s
    return not is_as_fast(as_is, recommended) and (
        recommended.plan.sharding == as_is.plan.sharding or gain >= _LEAST_GAIN
    )


def _with_loaded_weights(run: ImportedRun, workload: Workload, model: ModelShape, remarks: list[str]) -> Workload:
    """The workload with the type in which the script loads the weights that train, where no engine casts them: they
    stay in fp32 under autocast (accelerate 1.15 accelerator.py `native_amp`), always with fp16, whose gradients torch's
    scaler refuses (2.13 amp/grad_scaler.py `_unscale_grads_`)."""
    if run.sharding == "none" and workload.method == "lora" and run.loads_fp32 and not run.assumes_fp32:
        tensors = tensor_set(model, workload)
        more = gib(2 * (tensors.numel - tensors.trainable_numel))
        remarks.append(
            f"frozen weights are counted in 16 bits, in which dtype: bfloat16 loads them; without dtype in the file "
            f"{run.tool} loads them in fp32, which takes {more} GiB more on each GPU"
        )
    software = workload.software
    if run.loads_fp32 and not run.assumes_fp32 and software.loading == "host":
        workload = replace(workload, software=replace(software, loading="host-fp32"))
    is_cast = run.sharding != "none" or workload.method != "full" or workload.precision == "fp32"
    if is_cast or workload.software.autocast or not (run.loads_fp32 or workload.precision == "fp16"):
        return workload
    if run.assumes_fp32 and workload.precision != "fp16":
        remarks.append(
            "the script is assumed to load the weights in fp32, which autocast needs; loaded in 16 bits (dtype), "
            "weights, gradients and states take half"
        )
    return replace(workload, software=replace(workload.software, autocast=True))


def _asked(own: Question, run: ImportedRun, cluster: Cluster, *, has_loss: bool) -> Question:
    """The question as `advise` asks it about the same training: what the file leaves to defaults is free, and the
    variables of the start are set."""
    reentrant = own.workload.software.reentrant and not run.frees_reentrant
    software = replace(own.workload.software, expandable_segments=True, reentrant=reentrant)
    workload = replace(own.workload, software=software)
    shared = own.options["sequence_parallel_size"]
    asked = replace(own, workload=workload, cluster=cluster, free_loss=run.leaves_loss and not has_loss)
    return asked.replace_options(sequence_parallel_size=None if shared == 1 else shared)


def _variables(run: ImportedRun, own: Question, cluster: Cluster, plan: Plan) -> tuple[str, ...]:
    variables = list[str]()
    if not run.expandable_segments and cluster.gpu.vendor == "NVIDIA":
        variables.append(ALLOCATOR_SETTING)
    if plan.offload_optimizer != "none" and own.cluster.threads_per_rank != cluster.threads_per_rank:
        variables.append(f"OMP_NUM_THREADS={cores_per_rank(cluster)}")
    return tuple(variables)


def _recommended(
    question: Question, run: ImportedRun, *, offloads_checkpoints: bool
) -> tuple[Candidate | None, Recommendation]:
    """(the recommended plan, the search). The plan is the best one with DeepSpeed, or the own plan of a run without
    DeepSpeed if that is as fast."""
    searched = predicted(question)
    best = searched.recommended
    offloads = best is not None and best.plan.cpu_checkpointing and not offloads_checkpoints
    shares = best is not None and best.plan.ranks_per_sample > 1 and question.options["sequence_parallel_size"] is None
    if best is not None and (offloads or shares):
        searched = _best_writable(question, best, offloads_checkpoints=offloads_checkpoints)
        best = searched.recommended
    if run.sharding == "zero" or _hybrid_shard_size(run, question.cluster):
        return best, searched
    asked = searched.question
    own = strategy_candidate(asked, _plain_strategy(run, asked.model, asked.workload, asked.cluster))
    stays = own.fit.probability >= LEAST[question.risk] and (best is None or is_as_fast(own, best))
    return own if stays else best, searched


def _best_writable(question: Question, advised: Candidate, *, offloads_checkpoints: bool) -> Recommendation:
    """The search of the fastest plan that the file's keys can express, with either loss: the file has no key for
    samples that GPUs share, which also needs another data loader, and may have none for checkpoints in host RAM. A plan
    with more costly features replaces a simpler one that is slower than the advised plan."""
    alone = replace(question, offloads_checkpoints=offloads_checkpoints)
    alone = alone.replace_options(sequence_parallel_size=question.options["sequence_parallel_size"] or 1)
    if not offloads_checkpoints and question.options["gradient_checkpointing"] == "offload":
        alone = alone.replace_options(gradient_checkpointing="auto")
    losses = [alone] if alone.offered_loss_question is None else [alone, alone.offered_loss_question]
    found = [predicted(loss) for loss in losses]
    best = max(found, key=lambda each: each.recommended.tokens_per_s if each.recommended else 0.0)
    if best.recommended is None or is_as_fast(best.recommended, advised):
        return best
    taken = [(plan.tokens_per_s, each, plan) for each in found for plan in other_taken_plans(each.ladder, None)]
    _, search, fastest = max(taken, key=lambda each: each[0])
    return replace(search, recommended=fastest)


def _command(run: ImportedRun, workload: Workload, model: ModelShape, cluster: Cluster) -> str:
    """The command that asks about the same training on the same machines."""
    options = {name: value for name, value in run.training.items() if name != "software"}
    options |= {"precision": workload.precision, "optimizer": workload.optimizer, "seq_len": workload.seq_len}
    for name in ("lora_targets", "freeze"):  # a text model has no parts that ms-swift and LLaMA-Factory freeze
        if options.pop(name, None) is not None and getattr(workload, name):
            options[name] = getattr(workload, name)
    words = ["ds-advise", model.name]
    for name, value in {**machine_arguments(cluster), **options, "global_batch": workload.global_batch_size}.items():
        text = ",".join(value) if isinstance(value, tuple | list) else str(value)
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join(words)


def _plain_strategy(run: ImportedRun, model: ModelShape, workload: Workload, cluster: Cluster) -> PlainPyTorch:
    """The strategy of plain PyTorch; FSDP 1 replaces FSDP2 if FSDP2 is not predicted."""
    if cluster.world_size == 1 or not run.is_fsdp:
        return "torch"
    sharded = Plan(zero_stage=3, sharding=run.sharding, micro_batch_size=1)
    return "fsdp" if unsupported(model, workload, sharded) is not None else sharded.strategy  # type: ignore[return-value]


def _slow_offload(plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> Iterator[str]:
    """Yield what an offload loses by pageable memory and by fp16."""
    if not plan.pin_memory and has_room_for_pinned(model, workload, cluster, plan):
        pinned = plan.replace_fields(pin_memory=True)
        pageable_s, pinned_s = (estimate_time(model, workload, cluster, each).step_s for each in (plan, pinned))
        if pageable_s >= _LEAST_GAIN * pinned_s:
            gain = times(pageable_s / pinned_s)
            yield f"the offload is not pinned: pin_memory would make the run {gain} as fast"
    if (gain_of_type := gain_of_bf16(model, workload, cluster, plan)) >= _LEAST_GAIN:
        yield f"the host checks fp16 gradients for infinities: bf16 would make the run {times(gain_of_type)} as fast"


def _hybrid_shard_size(run: ImportedRun, cluster: Cluster) -> int:
    size = cluster.gpus_per_node if run.hybrid_shard_size == "node" else run.hybrid_shard_size or 0
    return size if run.is_fsdp and size < cluster.world_size else 0


def _plan(run: ImportedRun, config: Mapping[str, Any], model: ModelShape, workload: Workload, cluster: Cluster) -> Plan:
    micro, accumulation = run.micro_batch_size or 1, run.gradient_accumulation_steps
    samples = batch_numbers_in(config).get("train_batch_size") if run.leaves_batch_to_script else None
    if samples and run.micro_batch_size is None:  # the only one with which the script starts
        micro = samples // (accumulation or 1) * sequence_parallel_size_in(config) // cluster.world_size or 1
    if accumulation is None:
        # ms-swift accumulates up to a global batch.
        accumulation = max(1, -(-(run.least_global_batch or 1) // (micro * cluster.world_size)))
    batch: dict[str, Any] = {
        "micro_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_checkpointing": bool(run.gradient_checkpointing),
    }
    offloads = run.gradient_checkpointing == "offload"
    if run.sharding != "zero":
        strategy = _plain_strategy(run, model, workload, cluster)
        plan = plan_for(strategy, model, workload, cluster, **batch)
        return replace(plan, cpu_checkpointing=offloads, hybrid_shard_size=_hybrid_shard_size(run, cluster))
    try:
        return plan_from_ds_config(
            config, model, cluster, cpu_checkpointing=offloads, software=workload.software, **batch
        )
    except ConfigFileError as error:
        name = run.deepspeed.name if run.deepspeed is not None else ""
        raise ConfigFileError(f"{name[:80]}: {error.what}", why=error.why, fix=error.fix) from error
