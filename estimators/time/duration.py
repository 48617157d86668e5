"""How long a plan takes for a job, from start to end."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from ..estimate import Spread, TimeEstimate
from ..hardware.cluster import Cluster
from ..hardware.host_defaults import nvme_read_bytes_per_s
from ..models.model_shape import ModelShape
from ..plan import Plan
from ..workload import Workload
from .job import Job, length_multiple
from .price import HOUR_S, Price
from .saving import Saving, saving
from .step_time import estimate_forward_s, estimate_time

START_UP_S = 20.0
"""Imports of torch, transformers and DeepSpeed (8.5 s measured on a Xeon of 2.5 GHz), CUDA contexts, NCCL's first
connections and the engine; an assumption that only short runs feel."""

_SAVED_WEIGHT_BYTES = 2
"""Models are published in bf16 or fp16; 4-bit bases are made of such files while they load."""


class JobDuration(NamedTuple):
    """A job under one plan: seconds by part, steps, tokens."""

    cluster: Cluster
    steps: int
    step_s: float
    """Seconds of the average optimizer step of this job, whose samples may be shorter than the sequence length."""
    tokens: float
    """Tokens trained in all, padding not counted."""
    computed_tokens: float
    """Tokens computed in all, with padding to the longest sample of each micro batch."""
    mean_len: float
    """Tokens of the average sample."""
    timed_len: int
    """Tokens of a sample whose time every sample of a micro batch takes: of the longest that is waited for."""
    loading_s: float
    """Start of the processes, and the weights from each node's drive."""
    evaluation_s: float
    """All evaluations together."""
    saving: Saving
    spread: Spread | None = None
    """The 80 % interval of the speed, as factors."""

    @property
    def training_s(self) -> float:
        return self.steps * self.step_s

    @property
    def duration_s(self) -> float:
        return self._duration_s(1.0)

    @property
    def duration_s_range(self) -> tuple[float, float] | None:
        """The 80 % interval of `duration_s`: that of the step's time, which evaluation shares."""
        return self.spread and (self._duration_s(self.spread.high), self._duration_s(self.spread.low))

    def _duration_s(self, speed: float) -> float:
        return (self.training_s + self.evaluation_s) / speed + self.loading_s + self.saving.total_s

    @property
    def gpu_hours(self) -> float:
        return self.cluster.world_size * self.duration_s / HOUR_S

    @property
    def padding(self) -> float:
        """Share of the computed tokens that is padding."""
        return 1 - self.tokens / self.computed_tokens

    def cost(self, price: Price) -> float:
        return price.cost(self.cluster, self.duration_s)

    def cost_range(self, price: Price) -> tuple[float, float] | None:
        """The 80 % interval of `cost`."""
        ends = self.duration_s_range
        return ends and (price.cost(self.cluster, ends[0]), price.cost(self.cluster, ends[1]))


def evaluation_plan(plan: Plan, job: Job) -> Plan:
    """The plan with the batches that an evaluation has."""
    if job.evaluation_batch is None:
        return plan
    return replace(plan, micro_batch_size=job.evaluation_batch, gradient_accumulation_steps=1)


def job_duration(
    model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, time: TimeEstimate, job: Job
) -> JobDuration:
    """The whole run of a job under a plan.

        duration = loading + steps step(length) + checkpoints x writing + evaluations x forward passes
        step(length) = step of `time` x predicted(length) / predicted(seq_len)

    time: of the plan at the workload's sequence length, predicted or as a probe corrected it. length: the expected
    longest sample of those that are padded and waited for together (`Job.waited_len`).

    Not covered: data that arrive late, queues for machines, failures and what they undo; the first steps, in which
    libraries choose their kernels.
    """
    ranks, seq_len = cluster.world_size, workload.seq_len
    samples, multiple = plan.samples_per_step(ranks), length_multiple(plan)
    waited = job.waited_len(seq_len, plan, ranks)
    computed = job.padded_len(seq_len, plan.micro_batch_size, multiple)
    shorter = replace(workload, seq_len=min(seq_len, max(multiple, round(waited / multiple) * multiple)))
    step_s, steps = time.step_s, job.steps(samples, seq_len)
    if shorter.seq_len != seq_len:
        at_length = {length: estimate_time(model, length, cluster, plan).step_s for length in (workload, shorter)}
        step_s *= at_length[shorter] / at_length[workload]
    saved = saving(model, workload, cluster, steps * step_s)
    evaluation_s = 0.0
    if job.evaluation_samples:
        evaluated = evaluation_plan(plan, job)
        batches = ceil(job.evaluation_samples / evaluated.samples_per_step(ranks))
        evaluation_s = saved.count * batches * estimate_forward_s(model, shorter, cluster, evaluated)
    in_all = job.samples_in_all(seq_len)
    return JobDuration(
        cluster=cluster,
        steps=steps,
        step_s=step_s,
        tokens=job.tokens_in_all(seq_len),
        computed_tokens=in_all * computed,
        mean_len=job.mean_len(seq_len),
        timed_len=shorter.seq_len,
        loading_s=START_UP_S + _SAVED_WEIGHT_BYTES * model.parameters / nvme_read_bytes_per_s(cluster),
        evaluation_s=evaluation_s,
        saving=saved,
        spread=time.spread,
    )
