"""The amount of training, and its duration and cost under a plan: steps, checkpoints, evaluations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, lcm, sqrt
from typing import Literal, NamedTuple

from ..estimate import Spread, TimeEstimate
from ..hardware import Cluster, nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ..memory.trainable import tensor_set
from ..models.model_shape import ModelShape
from ..optimizers import OPTIMIZERS
from ..plan import Plan
from ..rollouts import Rollouts
from ..workload import Workload
from .step_time import estimate_forward_s, estimate_time

PADDED_TO = 8
"""Batch lengths are padded to a multiple of this, for tensor cores (NVIDIA, Deep Learning Performance Guide)."""


class SamplesOfLength(NamedTuple):
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The amount of training: `samples` for `epochs` epochs, or `tokens` once."""

    samples: int | None = None
    """Samples of one epoch, after packing and truncation."""
    tokens: int | None = None
    """Total tokens, in full samples; used if `samples` is None."""
    epochs: float = 1.0
    lengths: tuple[SamplesOfLength, ...] = ()
    """Number of samples by length, in ascending order; () if each sample fills the sequence length."""
    evaluation_samples: int = 0
    """Samples of each evaluation; one evaluation per checkpoint."""
    evaluation_batch: int | None = None
    """Evaluation batch size per GPU; None for that of the training."""

    def __post_init__(self) -> None:
        assert (self.samples is None) != (self.tokens is None), "a job has a number of samples or of tokens"
        assert not self.lengths or sum(each.samples for each in self.lengths) == self.samples

    def samples_in_all(self, seq_len: int) -> float:
        if self.samples is not None:
            return self.epochs * self.samples
        assert self.tokens is not None
        return self.epochs * self.tokens / seq_len

    def tokens_in_all(self, seq_len: int) -> float:
        """Return the tokens of all epochs, without padding."""
        return self.samples_in_all(seq_len) * self.mean_len(seq_len)

    def mean_len(self, seq_len: int) -> float:
        """Return the tokens of the average sample, without padding."""
        if not self.lengths:
            return seq_len
        return sum(tokens * samples for tokens, samples in self.lengths) / sum(each.samples for each in self.lengths)

    def steps(self, samples_per_step: int, seq_len: int) -> int:
        """Return the number of optimizer steps."""
        return max(1, ceil(self.epochs * self.steps_per_epoch(samples_per_step, seq_len)))

    def steps_per_epoch(self, samples_per_step: int, seq_len: int) -> float:
        """Return the optimizer steps of an epoch. Its last one may have fewer samples, because the Trainer makes no
        batch of two epochs; tokens are no epochs."""
        if self.samples is not None:
            return ceil(self.samples / samples_per_step)
        assert self.tokens is not None
        return self.tokens / seq_len / samples_per_step

    def padded_len(self, seq_len: int, draws: int, multiple: int = PADDED_TO) -> float:
        """Return the expected length of the longest of `draws` samples, to which the others are padded.

            sum over lengths l of l (F(l)^draws - F(below l)^draws)

        F is the share of samples up to a length, each rounded up to a multiple and at most `seq_len`. Samples are
        drawn at random, as Trainer's sampler does; grouping by length pads less.
        """
        return self._longest(seq_len, draws, multiple)[0]

    def waited_len(self, seq_len: int, plan: Plan, ranks: int) -> float:
        """Return the expected length of the longest sample that a micro batch waits for.

        If ranks exchange data in each micro batch (stages 2 and 3, or no accumulation), this is `padded_len` of the
        samples of all ranks. Otherwise they wait for the rank with the largest sum over n micro batches; the result is
        at most the former:

            mean + deviation / sqrt(n) x z,  z = inverse normal of (N - 3/8) / (N + 1/4)

        Mean and deviation are those of one rank's micro batch; z is the expected largest of N normal values (G. Blom,
        1958).
        """
        replicas, multiple = ranks // plan.ranks_per_sample, length_multiple(plan)
        longest = self.padded_len(seq_len, plan.micro_batch_size * replicas, multiple)
        if replicas == 1 or plan.zero_stage >= 2 or plan.gradient_accumulation_steps == 1:
            return longest
        mean, variance = self._longest(seq_len, plan.micro_batch_size, multiple)
        from statistics import NormalDist  # slow to import, and rarely needed

        slowest = NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
        return min(longest, mean + sqrt(variance / plan.gradient_accumulation_steps) * slowest)

    def _longest(self, seq_len: int, draws: int, multiple: int) -> tuple[float, float]:
        """Return mean and variance of the length of the longest of `draws` samples, rounded up to `multiple`."""
        if not self.lengths:
            return seq_len, 0.0
        total, seen, below, mean, square = sum(each.samples for each in self.lengths), 0, 0.0, 0.0, 0.0
        for tokens, samples in self.lengths:
            seen += samples
            upto = (seen / total) ** draws
            length = min(-(-tokens // multiple) * multiple, seq_len)
            mean += length * (upto - below)
            square += length * length * (upto - below)
            below = upto
        return mean, max(0.0, square - mean * mean)


def length_multiple(plan: Plan) -> int:
    """Return the multiple to which batch lengths are padded, from `PADDED_TO` and the ranks that share a sample."""
    return lcm(PADDED_TO, plan.sequence_parallel_size)


HOUR_S = 3600.0


class Price(NamedTuple):
    """Price per hour of a GPU or a node."""

    per_hour: float
    unit: Literal["gpu", "node"] = "gpu"
    currency: str = ""
    """Currency sign before the figure ("$"); may be ""."""

    def cost(self, cluster: Cluster, duration_s: float) -> float:
        """Return per_hour x hours x GPUs (or nodes), billed by the second."""
        machines = cluster.world_size if self.unit == "gpu" else cluster.nodes
        return self.per_hour * machines * duration_s / HOUR_S


_MASTER_BYTES = 4
_ADAPTER_BYTES = 4
"""peft writes adapters in fp32."""

_LARGEST_STATES_BYTES = 8.0
"""Assumed for an unknown optimizer: Adam's two fp32 states."""


def checkpoint_bytes(model: ModelShape, workload: Workload, zero_stage: int, *, only_model: bool = False) -> int:
    """Return the bytes of one checkpoint of the Trainer under DeepSpeed, all ranks: (2 W + 4 + O) P, at stage 3
    (W + 4 + O) P.

    W bytes per weight in the model's own format and, below stage 3, again in DeepSpeed's (at stage 3 its files hold
    only the masters); 4 bytes of fp32 masters; O bytes of states. LoRA: (4 + W + 4 + O) Pt and (4 + 4 + O) Pt, because
    DeepSpeed omits frozen weights (transformers 5.23.0 `_save_optimizer_and_scheduler`). Not counted: scheduler and
    random states, some kB per rank.

    only_model: whether `save_only_model` is set, which leaves W P or the adapters.
    """
    tensors = tensor_set(model, workload)
    trained = tensors.trainable_numel
    optimizer = OPTIMIZERS.get(workload.optimizer)
    states = _LARGEST_STATES_BYTES if optimizer is None else optimizer.state_bytes
    whole = tensors.trainable_numel if workload.method == "full" else tensors.copied
    saved = workload.weight_bytes * whole + _ADAPTER_BYTES * (trained - whole)
    saved += workload.weight_bytes * sum(tensors.frozen) * (workload.method == "full")
    if only_model:
        return int(saved)
    return int(saved + engine_state_bytes(trained, zero_stage, workload.weight_bytes, states))


def engine_state_bytes(
    trained: int, zero_stage: int, weight_bytes: float = 2.0, states_bytes: float = _LARGEST_STATES_BYTES
) -> float:
    """Return the bytes that DeepSpeed itself writes into a checkpoint: (W + 4 + O) Pt, at stage 3 (4 + O) Pt, as in
    `checkpoint_bytes`."""
    own = 0 if zero_stage == 3 else weight_bytes
    return (own + _MASTER_BYTES + states_bytes) * trained


GPU_HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419
"""50,700 hours: 419 unexpected interruptions in 54 days of training on 16,384 H100 (Llama 3, arXiv:2407.21783 section
3.3.4)."""

MOST_LOST_SHARE = 0.1
"""Largest share of a run between two checkpoints. `ds-advise train` uses it too."""

MOST_WRITING_SHARE = 0.03
"""Largest share of the time for writing checkpoints in order to keep `MOST_LOST_SHARE`."""

LEAST_LOST_S = 600.0
"""Shortest training worth a checkpoint, if failures are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    size_bytes: int
    """Bytes of one checkpoint, all ranks together."""
    write_s: float
    """Seconds that one checkpoint stops training."""
    interval_s: float
    """Seconds of training between two checkpoints."""
    count: int
    """Number of checkpoints of the run, including the last one."""

    @property
    def total_s(self) -> float:
        return self.count * self.write_s


def saving(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, training_s: float) -> Saving:
    """Return the checkpoints of a training of `training_s` seconds.

        write = bytes / nodes / rate of a node's drive
        interval = `young_interval_s`, but at most a tenth of the run (or ten minutes) if that costs at most 3 %

    Not covered: a network drive that all nodes share; asynchronous checkpoints.
    """
    size = checkpoint_bytes(model, workload, plan.zero_stage)
    # Ranks write their parts at the same time, each node to its own drive.
    write = size / cluster.nodes / nvme_write_bytes_per_s(cluster)
    between_failures = GPU_HOURS_BETWEEN_FAILURES * HOUR_S / cluster.world_size
    # On one machine failures are so rare that Young's optimum would be longer than the run.
    seldom = max(MOST_LOST_SHARE * training_s, write / MOST_WRITING_SHARE, LEAST_LOST_S)
    interval = min(young_interval_s(write, between_failures), seldom, training_s)
    return Saving(size_bytes=size, write_s=write, interval_s=interval, count=max(1, round(training_s / interval)))


def young_interval_s(write_s: float, between_failures_s: float) -> float:
    """Return sqrt(2 write_s between_failures_s), the seconds between checkpoints that minimize writing and lost work
    (J. W. Young, 1974, doi:10.1145/361147.361115). between_failures_s: mean seconds between two failures."""
    return sqrt(2 * write_s * between_failures_s)


START_UP_S = 20.0
"""Imports of torch, transformers and DeepSpeed (8.5 s measured on a Xeon of 2.5 GHz), CUDA contexts, NCCL's first
connections, the engine. Assumed."""

_SAVED_WEIGHT_BYTES = 2
"""Bytes per weight on the drive. Models are published in bf16 or fp16; 4-bit bases are quantized while they load."""


class JobDuration(NamedTuple):
    cluster: Cluster
    """All paid hardware, including the GPUs of a rollout server."""
    steps: int
    step_s: float
    """Seconds of the average step; samples may be shorter than the sequence length."""
    tokens: float
    """Trained tokens, without padding."""
    computed_tokens: float
    """Computed tokens, with padding to the longest sample of each micro batch."""
    mean_len: float
    timed_len: int
    """Tokens of the sample that each micro batch waits for."""
    loading_s: float
    """Start of the processes, and reading the weights from each node's drive."""
    evaluation_s: float
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
        """80 % interval of the duration. The step's spread applies to training and evaluation."""
        return self.spread and (self._duration_s(self.spread.high), self._duration_s(self.spread.low))

    def _duration_s(self, speed: float) -> float:
        # Loading and saving depend on the drive, so the error of the predicted speed does not apply to them.
        return (self.training_s + self.evaluation_s) / speed + self.loading_s + self.saving.total_s

    @property
    def gpu_hours(self) -> float:
        return self.cluster.world_size * self.duration_s / HOUR_S

    @property
    def padding(self) -> float:
        return 1 - self.tokens / self.computed_tokens

    def cost(self, price: Price) -> float:
        return price.cost(self.cluster, self.duration_s)

    def cost_range(self, price: Price) -> tuple[float, float] | None:
        ends = self.duration_s_range
        return ends and (price.cost(self.cluster, ends[0]), price.cost(self.cluster, ends[1]))


def server_cluster(cluster: Cluster, rollouts: Rollouts) -> Cluster:
    """Return the training's cluster with the rollout server's GPUs, in separate nodes if several nodes train."""
    if rollouts.server_gpus and (rollouts.server_has_node or cluster.nodes > 1):
        return replace(cluster, nodes=cluster.nodes + ceil(rollouts.server_gpus / cluster.gpus_per_node))
    return replace(cluster, gpus_per_node=cluster.gpus_per_node + rollouts.server_gpus)


def job_duration(
    model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, time: TimeEstimate, job: Job
) -> JobDuration:
    """Return the duration of a job under a plan.

        duration = loading + steps step(length) + checkpoints x writing + evaluations x forward passes
        step(length) = step of `time` x predicted(length) / predicted(seq_len)

    time: at the workload's sequence length, predicted or corrected by a probe. length: `Job.waited_len`.

    Not covered: slow data loading, queues for machines, failures and lost work; the first steps, in which libraries
    select their kernels.
    """
    ranks, seq_len = cluster.world_size, workload.seq_len
    samples, multiple = plan.samples_per_step(ranks), length_multiple(plan)
    waited = job.waited_len(seq_len, plan, ranks)
    computed = job.padded_len(seq_len, plan.micro_batch_size, multiple)
    shorter = replace(workload, seq_len=min(seq_len, max(multiple, round(waited / multiple) * multiple)))
    step_s, steps = time.step_s, job.steps(samples, seq_len)
    if shorter.seq_len != seq_len:
        at_length = {length: estimate_time(model, length, cluster, plan).step_s for length in (workload, shorter)}
        # A ratio of predictions, because `time` may be a measurement, which knows the longest samples only.
        step_s *= at_length[shorter] / at_length[workload]
    saved = saving(model, workload, cluster, plan, steps * step_s)
    evaluation_s = 0.0
    if job.evaluation_samples:
        evaluated = plan
        if job.evaluation_batch is not None:
            evaluated = plan.replace_fields(micro_batch_size=job.evaluation_batch, gradient_accumulation_steps=1)
        batches = ceil(job.evaluation_samples / evaluated.samples_per_step(ranks))
        evaluation_s = saved.count * batches * estimate_forward_s(model, shorter, cluster, evaluated)
    in_all = job.samples_in_all(seq_len)
    return JobDuration(
        cluster=cluster if workload.rollouts is None else server_cluster(cluster, workload.rollouts),
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
