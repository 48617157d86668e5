"""Memory and speed as functions of sequence length, micro batch and number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ...estimators.errors import WorkloadError
from ..question.question import Question
from ..search.candidate import Candidate, predict
from ..search.rollouts import fastest_generation

_MOST_GPUS = 64
_SHORTER, _LONGER = 2, 5
"""Number of powers of two below and above the sequence length."""
_MOST_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One varied quantity of the question, and for each value the plan and its samples per step; None if no plan
    fits."""

    title: str
    values: tuple[str, ...]
    plans: tuple[Candidate | None, ...]
    samples: tuple[int | None, ...]
    own: int
    """Index of the question's own value; -1 if it is not included."""

    @property
    def mixes_batches(self) -> bool:
        """Whether the plans have different global batches, so that their speeds differ for that reason too."""
        return len({samples for samples in self.samples if samples is not None}) > 1


def build_scaling(question: Question, chosen: Candidate) -> tuple[Series, ...]:
    """Return the fastest fitting plan for each sequence length and number of GPUs, and the chosen plan at each micro
    batch. Sequences and micro batches end at the first that does not fit. A series of one value is left out."""
    ranks = question.cluster.world_size
    kinds = (
        ("sequence length", _lengths(question), str(question.workload.seq_len)),
        ("micro batch", _batches(question, chosen), str(chosen.plan.micro_batch_size)),
        ("GPUs", _gpus(question), str(question.cluster.world_size)),
    )
    found = []
    for title, pairs, own in kinds:
        plans = dict(pairs)
        if sum(plan is not None for plan in plans.values()) > 1:
            values = tuple(plans)
            position = values.index(own) if own in plans else -1
            samples = (
                None if plan is None else plan.plan.samples_per_step(int(value) if title == "GPUs" else ranks)
                for value, plan in plans.items()
            )
            found.append(
                Series(title=title, values=values, plans=tuple(plans.values()), samples=tuple(samples), own=position)
            )
    return tuple(found)


Pair = tuple[str, Candidate | None]


def _lengths(question: Question) -> Iterator[Pair]:
    if question.model.fixed_len is not None:
        return
    own = question.workload.seq_len
    power = own.bit_length() - 1
    for length in sorted({own, *(2**each for each in range(max(0, power - _SHORTER), power + _LONGER + 1))}):
        # Too long for the model's positions, or for the GPUs that share a sample.
        with suppress(WorkloadError):
            workload = replace(question.workload, seq_len=length, document_len=None)
            best = fastest_generation(replace(question, workload=workload)).best
            yield str(length), best
            if best is None and length > own:
                return


def _batches(question: Question, chosen: Candidate) -> Iterator[Pair]:
    if question.workload.global_batch_size is not None and not question.free_batch:
        return
    samples = chosen.plan.micro_batch_size * chosen.plan.gradient_accumulation_steps
    for size in sorted({chosen.plan.micro_batch_size, *(2**power for power in range(_MOST_BATCH.bit_length()))}):
        steps = max(1, samples // size)
        plan = chosen.plan.replace_fields(micro_batch_size=size, gradient_accumulation_steps=steps)
        candidate = predict(question.model, question.workload, question.cluster, plan)
        yield str(size), candidate
        if candidate.device_bytes > question.cluster.gpu.memory_bytes:
            return


def _gpus(question: Question) -> Iterator[Pair]:
    cluster = question.cluster
    per_node, count = max(8, cluster.gpus_per_node), 1
    while count <= max(_MOST_GPUS, cluster.world_size) and not cluster.gpu.is_cpu:
        nodes = max(1, count // per_node)
        machines = replace(cluster, nodes=nodes, gpus_per_node=count // nodes)
        with suppress(WorkloadError):  # the global batch does not divide
            yield str(count), fastest_generation(question.about_cluster(machines)).best
        count *= 2
