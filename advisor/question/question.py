"""A `Question`: a model, a workload, a cluster, and the constraints on the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log2, sqrt
from typing import Any, Literal, Unpack

from ...estimators.errors import WorkloadError
from ...estimators.hardware import Cluster, node_with_ram
from ...estimators.memory.activations.loss import why_no_tiling
from ...estimators.memory.trainable import tensor_set
from ...estimators.models.families import supports
from ...estimators.models.model_shape import ModelShape
from ...estimators.objectives import OBJECTIVES, default_loss, offered_loss, unusable_loss
from ...estimators.optimizers import optimizer
from ...estimators.plan import Plan
from ...estimators.rollouts import Rollouts
from ...estimators.time.job import Job, Price
from ...estimators.unsupported import context_parallel_advice, unsupported, why_no_sequence_parallelism
from ...estimators.workload import NEXT_TOKEN, Workload
from .option import LARGEST_COUNT
from .options import GLOBAL_BATCH, PlanOptions, Risk, plan_options

MAX_TOKENS_PER_STEP = 4 * 2**20
"""The largest batch that the search tries, in tokens per optimizer step: about that of the largest published
pre-training runs (GPT-3 3.2 M, arXiv:2005.14165 table 2.1; Llama 3 405B starts with 4 M, arXiv:2407.21783 section 3.4).
Larger batches slow convergence, which tokens per second do not reflect."""

STEPS_PER_EPOCH = 10
"""Least optimizer steps per epoch; the default global batch is reduced to reach them."""

LEAST_STEPS = 100
"""The fewest optimizer steps of a job; the search does not raise the batch further."""

MAX_MICRO_BATCH = 1024
"""Limit of the search; a GPU's efficiency saturates at much smaller micro batches."""


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The result of an option that was "max", such as `--seq-len max`."""

    option: Literal["seq_len", "micro_batch"]
    value: int | None
    """The largest value with which a plan can be recommended. None if even the smallest value fails."""
    too_large: int | None
    """The smallest value found too large; None if `value` is the largest possible one."""


def script_constraints(plan: Plan) -> PlanOptions:
    """The features that another plan for the same training must keep: the sequence-parallel groups, on which the
    script's data loader depends, and the numerics."""
    return {
        **plan_options(),
        "sequence_parallel_size": plan.sequence_parallel_size,
        "experts": "autoep" if plan.autoep_size > 1 else "zero",
        "optimizer_dtype": "bf16" if plan.bf16_optimizer_states else "fp32",
        "zeropp": plan.quantizes_collectives,
    }


@dataclass(frozen=True, kw_only=True)
class Question:
    """All inputs of an answer. The options are declared in `advisor.question.options`."""

    model: ModelShape
    workload: Workload
    cluster: Cluster
    micro_batch_size: int | None = None
    """Samples per GPU and forward pass; None leaves it to the search."""
    options: PlanOptions = field(default_factory=plan_options, hash=False)
    """Features of the plans to try."""
    free_loss: bool = False
    """Whether the search may turn on the loss that the training backend offers by one argument."""
    free_precision: bool = False
    """Whether the precision follows the GPUs (`about_cluster`)."""
    free_batch: bool = False
    """Whether the global batch is the default (`default_batch`) and follows the GPUs (`about_cluster`)."""
    free_rollouts: tuple[str, ...] = ()
    """Fields of the workload's `Rollouts` that the search chooses (`question.rollouts`)."""
    free_generation: bool = False
    """Whether the search may generate the completions of a step in parts (`rollouts.generation_choices`)."""
    offloads_checkpoints: bool = True
    """Whether the search may keep the inputs of layers in host RAM; not where the answer does not set it."""
    risk: Risk = "safe"
    largest: Largest | None = None
    """The result of the option that was "max"; None if no option was."""
    job: Job | None = None
    """The amount of training; None if not given."""
    price: Price | None = None
    job_basis: tuple[str, ...] = ()
    """Counts and assumptions from the job's data, as sentences."""
    job_is_packed: bool = False
    """Whether a sample may hold several rows of the data."""
    asked: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)
    """The name of the model as `model`, and the options that the user gave (`question.file_question`); None for a
    question about a model without a name."""

    def __post_init__(self) -> None:
        workload, model = self.workload, self.model
        if self._asked_sharing is not None:
            self._check_sequence_parallel_size(self._asked_sharing)
        in_bf16 = self.options["optimizer_dtype"] == "bf16"
        if in_bf16 and (workload.precision != "bf16" or not optimizer(workload.optimizer).is_adam):
            raise WorkloadError(
                f"optimizer states in bf16 are not possible with "
                f"{workload.optimizer if workload.precision == 'bf16' else workload.precision}",
                why="DeepSpeed keeps them in bf16 for AdamW and Adam in bf16 training only",
                fix="leave --optimizer-dtype out",
            )
        per_gpu = self.micro_batch_size or (workload.global_batch_size or LARGEST_COUNT) // self.cluster.world_size
        if per_gpu < (least := OBJECTIVES[workload.objective].least_samples) and least > 1:
            raise WorkloadError(
                f"a micro batch of {per_gpu} is too small for {workload.objective}",
                why="its loss pairs each sample with the answer of another sample of the micro batch",
                fix=f"pass --micro-batch {least}, and a --global-batch of at least {least * self.cluster.world_size}",
            )
        if workload.global_batch_size is not None and not self.sequence_parallel_sizes():
            raise self._indivisible(workload.global_batch_size)
        if workload.rollouts is not None and not self.free_rollouts and not self.batch_shapes():
            raise self._incomplete_groups(workload.rollouts)
        if workload.document_len is not None and workload.attention not in ("flash", "triton"):
            raise WorkloadError(
                "--document-len needs --attention flash",
                why="other kernels compute the scores of the whole sample and mask those between documents",
                fix="pass --attention flash, or leave --document-len out",
            )
        unpatched = f"Liger does not patch {model.model_type} models"
        no_kernels = unpatched if workload.kernels == "liger" and not supports(model, "liger") else None
        if workload.kernels != "torch":
            no_kernels = no_kernels or self.cluster.gpu.obstacle_to_triton
        # The obstacles to AutoEP do not depend on the size of its groups: two stands for all.
        spread = Plan(
            zero_stage=1,
            micro_batch_size=1,
            autoep_size=2,
            bf16_master_weights_and_grads=in_bf16,
            bf16_optimizer_states=in_bf16,
        )
        no_autoep = unsupported(model, workload, spread) if self.options["experts"] == "autoep" else None
        no_loss = f"the {workload.loss} loss is not possible here"
        unfused = f"{workload.kernels.capitalize()}'s kernels are not possible here"
        for what, why, option in (
            ("AutoEP is not possible here", no_autoep, "--experts"),
            ("tiles are not possible here", why_no_tiling(model, workload), "--mlp and --loss tiled"),
            (no_loss, unusable_loss(model, workload.loss, self.cluster.gpu), "--loss"),
            (unfused, no_kernels, "--kernels"),
        ):
            if why is not None:
                raise WorkloadError(what, why=why, fix=f"leave {option} out")

    def replace_options(self, **options: Unpack[PlanOptions]) -> Question:
        """The question with other features of plans. Raises WorkloadError for impossible features."""
        return replace(self, options={**self.options, **options})

    def about_cluster(self, cluster: Cluster) -> Question:
        """The question about other machines. Settings that were left to the GPUs follow the new ones. Raises
        WorkloadError if the question is impossible for them."""
        workload = self.workload
        if self.free_precision:
            workload = replace(workload, precision=cluster.gpu.half_precision)
        if self.free_batch:
            workload = replace(workload, global_batch_size=self.default_batch(cluster))
        return replace(self, cluster=cluster, workload=workload)

    def with_default_batch(self) -> Question:
        """The question with the default global batch for its machines, length and job."""
        batch = self.default_batch(self.cluster)
        return replace(self, workload=replace(self.workload, global_batch_size=batch), free_batch=True)

    def default_batch(self, cluster: Cluster, wanted: float = GLOBAL_BATCH) -> int:
        """The global batch nearest to `wanted` samples, as a ratio, among N m 1, N m 2, N m 4 ...

        N is the number of GPUs, or of the groups that share samples if their size is fixed or if one sample for each
        GPU would be more than `MAX_TOKENS_PER_STEP`. m is the micro batch if it is fixed, else the fewest samples that
        the objective needs; so every GPU has a sample, and every micro batch that is a power of two divides its part.
        `wanted` is reduced to `MAX_TOKENS_PER_STEP`, and to an epoch of `STEPS_PER_EPOCH` steps.
        """
        spec = OBJECTIVES[self.workload.objective]
        wanted = min(wanted, *self._batch_limits().values())
        replicas = cluster.world_size // (self._asked_sharing or self._sharing_of_long_samples(cluster))
        unit = max(1, replicas) * (self.micro_batch_size or spec.least_samples)
        return unit << max(0, round(log2(max(1.0, wanted) / unit)))

    def _sharing_of_long_samples(self, cluster: Cluster) -> int:
        """The fewest GPUs that have to share each sample so that a step has about `MAX_TOKENS_PER_STEP` or fewer; the
        most that can, if they are too few."""
        most, ranks = sqrt(2) * self._batch_limits()["long samples"], cluster.world_size
        if ranks <= most:
            return 1
        sizes = [*self._sharing_sizes(ranks)]
        return next((size for size in sizes if ranks // size <= most), sizes[-1] if sizes else 1)

    @property
    def reason_for_fewer_samples(self) -> str:
        """What reduces the default global batch below `GLOBAL_BATCH`: "long samples", "few samples" or ""."""
        limit, reason = min((limit, reason) for reason, limit in self._batch_limits().items())
        batch = self.workload.global_batch_size or GLOBAL_BATCH
        return reason if self.free_batch and batch < GLOBAL_BATCH and limit < GLOBAL_BATCH else ""

    def _batch_limits(self) -> dict[str, float]:
        """The largest default global batches, each by its reason."""
        job, length = self.job, self.workload.seq_len
        limits = {"long samples": MAX_TOKENS_PER_STEP / (OBJECTIVES[self.workload.objective].sequences * length)}
        if job is not None:
            limits["few samples"] = (job.samples or job.samples_in_all(length)) // STEPS_PER_EPOCH
        return limits

    def _check_sequence_parallel_size(self, size: int) -> None:
        ranks = self.cluster.world_size
        obstacle = why_no_sequence_parallelism(self.model, self.workload, size)
        obstacle = obstacle or (f"{ranks} GPUs are not divisible into groups of {size}" if ranks % size else None)
        if obstacle is not None:
            raise WorkloadError(
                f"{size} GPUs cannot share a sample",
                why=obstacle,
                fix="pass another --sequence-parallel-size, or leave it out"
                + context_parallel_advice(self.model, self.workload, size),
            )

    def _indivisible(self, global_batch: int) -> WorkloadError:
        ranks = self.cluster.world_size // (self._asked_sharing or 1)
        least = OBJECTIVES[self.workload.objective].least_samples
        micro = self.micro_batch_size or least
        lower = global_batch // (ranks * micro) * ranks * micro
        possible = f"--global-batch {lower + ranks * micro}" + (f" or {lower}" if lower else "")
        if global_batch % ranks:
            sharing = self._sharing_sizes(self.cluster.world_size) if self._asked_sharing is None else ()
            size = next((size for size in sharing if self._divides_batch(ranks // size)), None)
            return WorkloadError(
                f"a global batch of {global_batch} is not divisible by {ranks} GPUs",
                why="every GPU takes the same number of samples per optimizer step, unless GPUs share samples",
                fix=f"pass {possible}" + (f", or --sequence-parallel-size {size}" if size else ""),
            )
        each = global_batch // ranks
        smaller = max(divisor for divisor in _divisors(each) if divisor <= micro)
        return WorkloadError(
            f"a global batch of {global_batch} over {ranks} GPUs is {each} samples per GPU, which is not a multiple of "
            f"micro batch {micro}",
            why="global batch = micro batch x accumulation steps x GPUs",
            fix=f"pass --micro-batch {smaller}, or {possible}" if smaller >= least else f"pass {possible}",
        )

    def _incomplete_groups(self, rollouts: Rollouts) -> WorkloadError:
        ranks, group = self.cluster.world_size, rollouts.group_size(self.cluster.world_size)
        return WorkloadError(
            f"the completions of {ranks} GPUs do not form whole groups of {rollouts.num_generations}",
            why="micro batch x steps per generation x GPUs must be a multiple of --num-generations",
            fix=f"pass a --global-batch that is a multiple of {ranks * group}, or another --num-generations",
        )

    @property
    def trainable_parameters(self) -> int:
        """Pt: number of parameters that the optimizer updates."""
        return tensor_set(self.model, self.workload).trainable_numel

    @cached_property
    def obstacle_to_zeropp(self) -> str | None:
        """The reason that ZeRO-3's collectives cannot be quantized; None if they can."""
        plan = Plan(
            zero_stage=3,
            micro_batch_size=1,
            zero_quantized_weights=True,
            # The 4-bit gradients of ZeRO++ are for the network between nodes.
            zero_quantized_gradients=self.cluster.nodes > 1,
        )
        return unsupported(self.model, self.workload, plan, self.cluster)

    @cached_property
    def cluster_without_storage(self) -> Cluster:
        """The cluster without sizes of RAM and NVMe, which limit a plan but change no more of its prediction than the
        assumed host."""
        unbounded = replace(self.cluster, host_memory_bytes_per_node=None, nvme_bytes_per_node=None)
        return node_with_ram(unbounded, self.cluster.host_memory_bytes_per_node or 0)

    @cached_property
    def offered_loss_question(self) -> Question | None:
        """The question with the loss that one argument turns on; None if the loss is fixed or there is no other."""
        may_change = self.free_loss and self.options["experts"] == "zero" and not self.cluster.gpu.is_cpu
        loss = offered_loss(self.model, self.workload, self.cluster.gpu) if may_change else None
        return None if loss is None else replace(self, workload=replace(self.workload, loss=loss))

    @property
    def default_loss_question(self) -> Question:
        """The question with the training backend's default loss, if the loss is free."""
        loss = default_loss(self.workload.framework, self.workload.software)
        if not self.free_loss or self.workload.loss == loss or self.workload.objective != NEXT_TOKEN:
            return self
        return replace(self, workload=replace(self.workload, loss=loss))

    @property
    def is_batch_free(self) -> bool:
        """Whether the search chooses the number of samples per GPU."""
        return self.micro_batch_size is None and self.workload.global_batch_size is None

    def sequence_parallel_sizes(self) -> tuple[int, ...]:
        """Possible sequence-parallel sizes in ascending order: model, sequence and batch are divisible by them."""
        global_batch, ranks = self.workload.global_batch_size, self.cluster.world_size
        if self._asked_sharing is not None:
            sizes: Iterable[int] = (self._asked_sharing,)
        elif global_batch is not None and global_batch >= ranks and not self._divides_batch(ranks):
            return ()  # more likely a typing error than a request for sequence parallelism
        else:
            sizes = self._sharing_sizes(ranks)
        return tuple(size for size in sizes if self._divides_batch(ranks // size))

    @property
    def _asked_sharing(self) -> int | None:
        """The sequence-parallel size that the user gave; None if the search chooses it."""
        size = self.options["sequence_parallel_size"]
        return None if size is None else int(size)

    def _sharing_sizes(self, ranks: int) -> Iterator[int]:
        """Yield the sequence-parallel sizes of the model and the training on a number of GPUs, in ascending order; 1 is
        the first."""
        for size in _divisors(ranks):
            if why_no_sequence_parallelism(self.model, self.workload, size) is None:
                yield size

    def _divides_batch(self, replicas: int) -> bool:
        global_batch = self.workload.global_batch_size
        return global_batch is None or (
            global_batch % replicas == 0 and (global_batch // replicas) % (self.micro_batch_size or 1) == 0
        )

    def batch_shapes(self, sequence_parallel_size: int = 1) -> tuple[tuple[int, int], ...]:
        """(micro batch, accumulation steps) pairs to try, by ascending micro batch.

        With a global batch they are its exact factorisations. Without one there is no accumulation, and the micro
        batch doubles up to the largest within `MAX_TOKENS_PER_STEP`.
        """
        global_batch, fixed = self.workload.global_batch_size, self.micro_batch_size
        ranks, spec = self.cluster.world_size // sequence_parallel_size, OBJECTIVES[self.workload.objective]
        if global_batch is not None:
            per_gpu = global_batch // ranks
            if fixed is not None:
                return self._in_groups(((fixed, per_gpu // fixed),))
            micros = [micro for micro in _divisors(per_gpu) if spec.least_samples <= micro <= MAX_MICRO_BATCH]
            return self._in_groups(tuple((micro, per_gpu // micro) for micro in micros))
        if fixed is not None:
            return self._in_groups(((fixed, 1),))
        tokens = spec.sequences * self.workload.seq_len * ranks
        largest = max(spec.least_samples, min(MAX_MICRO_BATCH, int(self._most_tokens_per_step() // tokens)))
        doubled = [2**power for power in range(largest.bit_length()) if 2**power >= spec.least_samples]
        return self._in_groups(tuple((micro, 1) for micro in dict.fromkeys([*doubled, largest])))

    def _in_groups(self, shapes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The shapes whose generations are whole groups of completions; all shapes without completions."""
        rollouts = self.workload.rollouts
        if rollouts is None:
            return shapes
        group, parts = rollouts.group_size(self.cluster.world_size), rollouts.generations_per_step
        return tuple(
            (micro, steps)
            for micro, steps in shapes
            if steps % parts == 0 and micro * rollouts.micro_batches(steps) % group == 0
        )

    @property
    def epochs(self) -> float | None:
        """The epochs of the training, a whole number as an int; None if its amount is not given in samples."""
        if self.job is None or self.job.samples is None:
            return None
        return int(self.job.epochs) if self.job.epochs == int(self.job.epochs) else self.job.epochs

    def _most_tokens_per_step(self) -> float:
        if self.job is None:
            return MAX_TOKENS_PER_STEP
        return min(MAX_TOKENS_PER_STEP, self.job.tokens_in_all(self.workload.seq_len) / LEAST_STEPS)


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
