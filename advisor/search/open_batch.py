"""The batch that the advice chooses if a configuration leaves it open with `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ...ds_configs.read import plan_from_ds_config
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ...validate.lint.linted_config import FilledBatch
from ..question.options import CheckpointingChoice, plan_options
from ..question.question import Question
from ..text.labels import checkpointing_label
from .candidate import LEAST, predict
from .choice import best_of_strategy
from .search import strategy_candidates
from .search_space import SHAPE_FIELDS


def filled_batch(
    config: Mapping[str, Any],
    model: ModelShape,
    workload: Workload,
    cluster: Cluster,
    *,
    micro_batch: int | None = None,
    accumulation: int | None = None,
    gradient_checkpointing: CheckpointingChoice | None = None,
) -> FilledBatch:
    """Return the batch of a configuration: the file's value, else the given one, else the advice's for this model and
    these GPUs. The advice's micro batch is the fastest that fits with all other settings of the file, or 1 if no plan
    can be predicted; its accumulation makes the global batch of the file, else the workload's, else the default one.

    gradient_checkpointing: "auto": the advice chooses. None (nothing is known of the script): the advice chooses if it
    also chooses the micro batch; otherwise it is on.

    Raises ConfigFileError for a configuration that DeepSpeed refuses, and WorkloadError for a global batch of the
    workload that the micro batch does not divide.
    """
    auto_steps = config.get("gradient_accumulation_steps") == "auto"
    recomputes, offloads = gradient_checkpointing != "off", gradient_checkpointing == "offload"
    written, total = config.get("train_micro_batch_size_per_gpu"), config.get("train_batch_size")
    micro: Any = micro_batch if written == "auto" else written
    is_open = auto_steps and accumulation is None and workload.rollouts is None
    if written != "auto" or micro_batch is not None:
        has_size = is_open and type(micro) is int and micro > 0
        steps = _steps(config, model, workload, cluster, micro) if has_size else 1 if auto_steps else None
        filled = FilledBatch(micro_batch, accumulation or steps, recomputes, offloads)
        is_chosen = gradient_checkpointing == "auto"
        return _with_best_checkpointing(filled, config, model, workload, cluster) if is_chosen else filled
    if type(total) is int:
        workload = replace(workload, global_batch_size=total)
    plan = _with_one_sample(config, model, cluster)
    options = plan_options({"gradient_checkpointing": gradient_checkpointing or "auto"})
    question = Question(model=model, workload=workload, cluster=cluster, options=options)
    if is_open and workload.global_batch_size is None:
        question = question.with_default_batch()
    chosen_here = (*SHAPE_FIELDS, "cpu_checkpointing")
    settings = {each.name: getattr(plan, each.name) for each in fields(Plan) if each.name not in chosen_here}
    candidates, _ = strategy_candidates(plan.strategy, question, settings=settings)
    best = best_of_strategy(candidates, LEAST["safe"])
    if best is None:
        return FilledBatch(1, accumulation or 1, recomputes, offloads)
    chosen = best.plan
    steps = accumulation or (chosen.gradient_accumulation_steps if auto_steps else None)
    by_steps = f" x accumulation {steps}" if steps and steps > 1 else ""
    words = f"`auto` filled with micro batch {chosen.micro_batch_size}{by_steps}"
    words += f", checkpointing {checkpointing_label(chosen)}"
    return FilledBatch(chosen.micro_batch_size, steps, chosen.gradient_checkpointing, chosen.cpu_checkpointing, words)


def _with_best_checkpointing(
    filled: FilledBatch, config: Mapping[str, Any], model: ModelShape, workload: Workload, cluster: Cluster
) -> FilledBatch:
    """Return the batch with the checkpointing, on or off, whose plan is the fastest that fits."""
    choices = [filled._replace(gradient_checkpointing=recomputes) for recomputes in (False, True)]
    plans = [choice.plan(config, model, cluster, workload.software) for choice in choices]
    known = [plan for plan in plans if not unsupported(model, workload, plan, cluster)]
    best = best_of_strategy([predict(model, workload, cluster, plan) for plan in known], LEAST["safe"])
    if best is None:
        return filled
    words = f"checkpointing {checkpointing_label(best.plan)}, the fastest that fits" if best.fit.fits else ""
    return filled._replace(gradient_checkpointing=best.plan.gradient_checkpointing, words=words)


def _steps(config: Mapping[str, Any], model: ModelShape, workload: Workload, cluster: Cluster, micro_batch: int) -> int:
    """Return the accumulation steps with which a micro batch makes the global batch; 1 for a global batch of the file
    that it does not divide, which DeepSpeed refuses."""
    plan, total = _with_one_sample(config, model, cluster), config.get("train_batch_size")
    samples = micro_batch * max(1, plan.samples_per_step(cluster.world_size))
    if type(total) is int:
        return total // samples if total % samples == 0 else 1
    shared = plan.sequence_parallel_size
    options = plan_options({"sequence_parallel_size": shared if shared > 1 else None})
    question = Question(model=model, workload=workload, cluster=cluster, options=options, micro_batch_size=micro_batch)
    question = question if workload.global_batch_size is not None else question.with_default_batch()
    return max(1, (question.workload.global_batch_size or 0) // samples)


def _with_one_sample(config: Mapping[str, Any], model: ModelShape, cluster: Cluster) -> Plan:
    """Return the plan of a configuration with one sample per GPU and step, whatever its global batch is."""
    open_file = {key: value for key, value in config.items() if key != "train_batch_size"}
    open_file |= {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    return plan_from_ds_config(open_file, model, cluster, micro_batch_size=1, gradient_accumulation_steps=1)
