"""The batch that the advice chooses if a configuration leaves it open with `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ...ds_configs.read import plan_from_ds_config
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...validate.lint.linted_config import FilledBatch
from ..question.options import CheckpointingChoice, plan_options
from ..question.question import Question
from ..text.labels import checkpointing_label
from .candidate import LEAST
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
    gradient_checkpointing: CheckpointingChoice = "auto",
) -> FilledBatch:
    """Return the batch of a configuration: the file's value, else the given one, else the advice's for this model and
    these GPUs. The advice's is the fastest that fits with all other settings of the file, or 1 if no plan can be
    predicted.

    gradient_checkpointing: "auto" leaves it to the advice if the micro batch is the advice's, and is on otherwise.
    Raises ConfigFileError for a configuration that DeepSpeed refuses.
    """
    auto_steps = config.get("gradient_accumulation_steps") == "auto"
    recomputes, offloads = gradient_checkpointing != "off", gradient_checkpointing == "offload"
    if micro_batch is not None or config.get("train_micro_batch_size_per_gpu") != "auto":
        return FilledBatch(micro_batch, accumulation or (1 if auto_steps else None), recomputes, offloads)
    total = config.get("train_batch_size")
    if type(total) is int:
        workload = replace(workload, global_batch_size=total)
    open_file = {key: value for key, value in config.items() if key != "train_batch_size"}
    plan = plan_from_ds_config(open_file, model, cluster, micro_batch_size=1, gradient_accumulation_steps=1)
    options = plan_options({"gradient_checkpointing": gradient_checkpointing})
    question = Question(model=model, workload=workload, cluster=cluster, options=options)
    if type(total) is not int and auto_steps and accumulation is None and workload.rollouts is None:
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
