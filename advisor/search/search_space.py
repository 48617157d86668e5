"""The ways to run a rung, in the order in which they are tried until something fits, and their candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...ds_configs.presets import plan_for
from ...estimators.models.expert_parallel import unspreadable
from ...estimators.plan import RUNGS, PlainPyTorch, Plan, Rung
from ...estimators.time.collective_time import ring
from ...estimators.unsupported import unsupported
from ..question.question import CheckpointingChoice, Question, quantized
from .batch_sweep import Series
from .candidate import Candidate
from .choice import SAME_SPEED


def candidates_of(
    rung: Rung | PlainPyTorch, question: Question, *, settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[list[Candidate], str]:
    """All candidates of a rung, or of plain PyTorch, or the reason why it has none.

    settings: fields of `Plan` that differ from the rung's preset.
    """
    candidates: list[Candidate] = []
    ways = ways_of(rung, question, settings)
    obstacle = ways[0][0].obstacle()
    if obstacle is not None:
        return [], obstacle
    for number, way in enumerate(ways):
        candidates += _of_way(way)
        if not _lack_gpu_memory(candidates) or not worth_going_on(ways, number):
            break
    return candidates, ""


def _of_way(way: Sequence[Series]) -> list[Candidate]:
    """The candidates of several series; where sizes double, also those between the last that holds and the next, as far
    as one may be as fast as the fastest."""
    rising = [[series.timed(judged) for judged in series.rising()] for series in way]
    if not way[0].question.is_batch_free:
        return [candidate for found in rising for candidate in found]
    held = [[each for each in found if series.holds(each.fit)] for series, found in zip(way, rising, strict=True)]
    enough = max((each.tokens_per_s for found in held for each in found), default=0.0) * (1 - SAME_SPEED)
    for series, found, holding in zip(way, rising, held, strict=True):
        if 0 < len(holding) < len(found):
            between = series.between(holding[-1], found[len(holding)], enough)
            found += [series.timed(judged) for judged in between if judged.fit.gpu_likely_suffices]
            found.sort(key=lambda candidate: candidate.plan.micro_batch_size)
        taken = [each for each in found if each.fit.probability >= series.least]
        if taken:
            found += series.taking_back(max(taken, key=lambda candidate: candidate.tokens_per_s))
    return [candidate for found in rising for candidate in found]


def ways_of(
    rung: Rung | PlainPyTorch, question: Question, settings: Mapping[str, Any] = MappingProxyType({})
) -> list[list[Series]]:
    """The series of each way to run a rung; each way needs less of the GPU than those before it, and is tried where
    they lack memory."""
    preset = plan_for(
        rung,
        question.model,
        question.workload,
        question.cluster,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
    )
    return [
        [
            Series(
                preset=quantized(preset, question.cluster) if in_fewer_bits else preset,
                settings=settings,
                question=question,
                sequence_parallel_size=sharing,
                checkpointing=checkpointing,
                zero_hpz_partition_size=copied,
                autotp_size=split_by,
                autoep_size=spread_over,
            )
            for checkpointing in choices
            for sharing, split_by in _together(rung, question, size, settings)
            for spread_over in _spread(rung, question, sharing * split_by, settings)
            for copied in _second_copies(rung, question, spread_over, settings)
            for in_fewer_bits in _fewer_bits(rung, question, sharing * split_by * spread_over)
        ]
        for choices, size in _ways(question, settings)
    ][: None if rung in RUNGS else 1]  # plain PyTorch does neither


def worth_going_on(ways: Sequence[Sequence[Series]], number: int) -> bool:
    """Whether there are ways after one that lacks memory: after the first only where the last may fit."""
    return number + 1 < len(ways) and (number > 0 or ways[-1][-1].may_fit())


def _ways(question: Question, settings: Mapping[str, Any]) -> Iterator[tuple[tuple[CheckpointingChoice, ...], int]]:
    """Checkpointing, and how many GPUs share a sample, in the order in which they are tried until something fits; each
    needs less of the GPU than those before it.

    Shared samples want a script that knows of them, layers' inputs in host RAM cost time; both win nothing but memory.
    """
    asked, sizes = question.gradient_checkpointing, question.sequence_parallel_sizes()
    if "sequence_parallel_size" in settings or settings.get("autotp_size", 1) > 1:
        sizes = (settings.get("sequence_parallel_size", 1),)
    for size in sizes:
        yield ("off", "on") if asked == "auto" else (asked,), size
    if asked == "auto" and "cpu_checkpointing" not in settings and not question.cluster.gpu.is_cpu:
        for size in sizes:
            yield ("offload",), size


def _together(
    rung: Rung | PlainPyTorch, question: Question, sharing: int, settings: Mapping[str, Any]
) -> list[tuple[int, int]]:
    """(sequence_parallel_size, autotp_size) to try where so many GPUs have to share a sample: Ulysses, and layers split
    instead (AutoTP) where the batch has fewer samples than there are GPUs, the only place where it may be faster."""
    wanted, ranks, cluster = question.workload.global_batch_size, settings.get("autotp_size", 1), question.cluster
    if ranks > 1:
        return [(1, ranks)]
    small = wanted is not None and wanted < cluster.world_size and question.sequence_parallel_size is None
    if sharing == 1 or not small or settings or rung not in RUNGS:
        return [(sharing, 1)]
    split = Plan(zero_stage=1, micro_batch_size=1, autotp_size=sharing)
    possible = unsupported(question.model, question.workload, split, cluster) is None
    return [(sharing, 1), *[(1, sharing)] * possible]


def _spread(
    rung: Rung | PlainPyTorch, question: Question, ranks_per_sample: int, settings: Mapping[str, Any]
) -> tuple[int, ...]:
    """Sizes of the groups that experts are spread over: none, and those that divide experts and GPUs and lie within a
    node or take whole ones."""
    if question.experts == "zero" or settings or ranks_per_sample > 1 or rung not in ("zero1", "zero2", "zero3"):
        return (1,)
    ranks, local = question.cluster.world_size, question.cluster.gpus_per_node
    sizes = (size for size in range(2, ranks + 1) if not ranks % size and (not local % size or not size % local))
    return 1, *(size for size in sizes if unspreadable(question.model, size) is None)


def _second_copies(
    rung: Rung | PlainPyTorch, question: Question, spread_over: int, settings: Mapping[str, Any]
) -> tuple[int, ...]:
    """Sizes of hpZ's groups to try: none, and a node, where ZeRO-3 would gather over a network that is slower than the
    links of a node."""
    cluster = question.cluster
    worth = rung == "zero3" and "zero_hpz_partition_size" not in settings and spread_over == 1
    worth = worth and min(cluster.nodes, cluster.gpus_per_node) > 1
    return (1, cluster.gpus_per_node) if worth and ring(cluster).resource == "network" else (1,)


def _fewer_bits(rung: Rung | PlainPyTorch, question: Question, ranks_together: int) -> tuple[bool, ...]:
    """Whether weights and gradients travel in fewer bits: not, and where that was asked for and ZeRO-3 sends them.

    ranks_together: how many share a sample, split layers or keep some experts each.
    """
    possible = rung in ("zero3", "zero3-offload-param", "zero3-offload") and ranks_together == 1
    wanted = question.collectives == "quantized" and possible and question.obstacle_to_quantized is None
    return (False, True) if wanted else (False,)


def _lack_gpu_memory(candidates: Sequence[Candidate]) -> bool:
    """Whether none of them surely fits on the GPU."""
    return all(candidate.fit.limit == "gpu" and not candidate.fit.fits for candidate in candidates)
