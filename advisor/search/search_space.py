"""The plans of a strategy: the product of the dimensions below, in stages of falling GPU memory.

The first stage gives each GPU whole samples. A later stage shares each sample among more GPUs, or holds checkpointed
layer inputs on the host: it needs changes to the training script or costs time, and saves only memory. So it is
searched only if the earlier stages lack GPU memory. The members of a stage are sweeps of the micro batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from ...ds_configs.presets import plan_for
from ...estimators.models.rank_part import why_no_expert_parallelism
from ...estimators.plan import STRATEGIES, PlainPyTorch, Plan, Strategy
from ...estimators.time.collective_time import ring
from ...estimators.unsupported import unsupported
from ..question.options import CheckpointingChoice
from ..question.question import Question
from .batch_sweep import BatchSweep

PlanFields = Mapping[str, Any]
NO_SETTINGS: PlanFields = MappingProxyType({})

SHAPE_FIELDS = ("zero_stage", "sharding", "micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
"""Fields of a plan that follow from the strategy and the question."""


class Stage(NamedTuple):
    """A stage of the search, from which the dimensions derive their values."""

    strategy: Strategy | PlainPyTorch
    preset: Plan
    question: Question
    settings: PlanFields
    """Fields of `Plan` that the user sets; a dimension with a field set has one value."""
    checkpointing: tuple[CheckpointingChoice, ...]
    ranks_per_sample: int

    def sweeps(self) -> list[BatchSweep]:
        """Return the product of the dimensions as sweeps."""
        in_bf16 = self.question.options["optimizer_dtype"] == "bf16"
        states = {"bf16_master_weights_and_grads": in_bf16, "bf16_optimizer_states": in_bf16}
        product: list[PlanFields] = [states]
        for dimension in DIMENSIONS:
            product = [{**chosen, **fields} for chosen in product for fields in dimension(self, chosen)]
        return [BatchSweep(self.question, self.preset, {**chosen, **self.settings}) for chosen in product]


def _checkpointing(stage: Stage, _: PlanFields) -> Iterator[PlanFields]:
    for choice in stage.checkpointing:
        yield {"gradient_checkpointing": choice != "off", "cpu_checkpointing": choice == "offload"}


def _sample_sharing(stage: Stage, _: PlanFields) -> Iterator[PlanFields]:
    """Yield a Ulysses degree and, for a global batch below the number of GPUs, an AutoTP degree, which splits layers:
    AutoTP can be faster only there."""
    question, ranks = stage.question, stage.ranks_per_sample
    split = stage.settings.get("autotp_size", 1)
    if split > 1:
        yield {"sequence_parallel_size": 1, "autotp_size": split}
        return
    yield {"sequence_parallel_size": ranks, "autotp_size": 1}
    batch = question.workload.global_batch_size
    is_small = batch is not None and batch < question.cluster.world_size
    is_small = is_small and question.options["sequence_parallel_size"] is None
    if is_small and ranks > 1 and not stage.settings and stage.strategy in STRATEGIES:
        plan = Plan(zero_stage=1, micro_batch_size=1, autotp_size=ranks)
        if unsupported(question.model, question.workload, plan, question.cluster) is None:
            yield {"sequence_parallel_size": 1, "autotp_size": ranks}


def _expert_groups(stage: Stage, chosen: PlanFields) -> Iterator[PlanFields]:
    """Yield AutoEP group sizes that divide the experts and the GPUs, and that divide a node or consist of whole
    nodes."""
    question = stage.question
    yield {"autoep_size": 1}
    if question.options["experts"] == "zero" or stage.settings or stage.strategy not in ("zero1", "zero2", "zero3"):
        return
    if _ranks_together(chosen) > 1:
        return
    ranks, local = question.cluster.world_size, question.cluster.gpus_per_node
    for size in range(2, ranks + 1):
        divides = not ranks % size and (not local % size or not size % local)
        if divides and why_no_expert_parallelism(question.model, size) is None:
            yield {"autoep_size": size}


def _secondary_copy(stage: Stage, chosen: PlanFields) -> Iterator[PlanFields]:
    """Yield hpZ settings: a copy of the weights in each node, for ZeRO-3 over a network slower than the links of a
    node."""
    cluster = stage.question.cluster
    yield {"zero_hpz_partition_size": 1}
    has_choice = stage.strategy == "zero3" and "zero_hpz_partition_size" not in stage.settings
    has_choice = has_choice and chosen["autoep_size"] == 1 and min(cluster.nodes, cluster.gpus_per_node) > 1
    if has_choice and ring(cluster).resource == "network":
        yield {"zero_hpz_partition_size": cluster.gpus_per_node}


def _quantized_collectives(stage: Stage, chosen: PlanFields) -> Iterator[PlanFields]:
    """Yield ZeRO++ settings: ZeRO-3's weights sent in 8 bits and, between nodes, gradients in 4, if the user allows
    it."""
    question = stage.question
    yield {}
    if not question.options["zeropp"] or stage.strategy not in ("zero3", "zero3-offload-param", "zero3-offload"):
        return
    if _ranks_together(chosen) * chosen["autoep_size"] == 1 and question.obstacle_to_zeropp is None:
        yield {"zero_quantized_weights": True, "zero_quantized_gradients": question.cluster.nodes > 1}


def _ranks_together(chosen: PlanFields) -> int:
    return int(chosen["sequence_parallel_size"] * chosen["autotp_size"])


DIMENSIONS = (_checkpointing, _sample_sharing, _expert_groups, _secondary_copy, _quantized_collectives)
"""Functions that yield the fields of `Plan` to try, given the stage and the fields chosen by earlier dimensions."""


def search_stages(
    strategy: Strategy | PlainPyTorch, question: Question, settings: PlanFields = NO_SETTINGS
) -> list[Stage]:
    """Return the stages of a strategy, each needing less GPU memory than the one before. Plain PyTorch has only the
    first. settings: fields of `Plan` that replace the strategy's preset."""
    preset = plan_for(
        strategy,
        question.model,
        question.workload,
        question.cluster,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
    )
    requested = cast(CheckpointingChoice, question.options["gradient_checkpointing"])
    sizes = question.sequence_parallel_sizes()
    if "sequence_parallel_size" in settings or settings.get("autotp_size", 1) > 1:
        sizes = (settings.get("sequence_parallel_size", 1),)
    on_gpu: tuple[CheckpointingChoice, ...] = ("off", "on") if requested == "auto" else (requested,)
    choices = [on_gpu]
    offloads = question.offloads_checkpoints and not question.cluster.gpu.is_cpu and question.model.module is None
    if requested == "auto" and "cpu_checkpointing" not in settings and offloads:
        choices.append(("offload",))
    stages = [Stage(strategy, preset, question, settings, choice, size) for choice in choices for size in sizes]
    return stages if strategy in STRATEGIES else stages[:1]
