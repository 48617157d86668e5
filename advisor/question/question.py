"""The question: a model, a workload, a cluster, and what the user has already decided about the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypedDict

from ...estimators.errors import WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...estimators.memory.activations.loss import FUSED_LOSS_MODEL_TYPES, untileable
from ...estimators.memory.trainable import tensor_set
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import optimizer
from ...estimators.plan import Plan
from ...estimators.time.job import Job, Price
from ...estimators.unsupported import undividable, unsupported
from ...estimators.workload import Workload

CheckpointingChoice = Literal["auto", "on", "off", "offload"]
Risk = Literal["safe", "balanced", "bold"]
States = Literal["fp32", "bf16"]
Experts = Literal["zero", "autoep"]
Collectives = Literal["exact", "quantized"]


@dataclass(frozen=True, kw_only=True)
class Largest:
    """What was asked to be as large as it may be (`--seq-len max`), and what was found."""

    option: Literal["seq_len", "micro_batch", "model_size"]
    value: int | str | None
    """The largest with which some plan may be recommended, a model by its name; None: not even the smallest tried."""
    too_large: int | str | None
    """The smallest that was found too large; None: there is none larger."""


def quantized(plan: Plan, cluster: Cluster) -> Plan:
    """The plan with all collectives quantized that DeepSpeed can: gradients on several nodes only."""
    return replace(plan, zero_quantized_weights=True, zero_quantized_gradients=cluster.nodes > 1)


class ScriptConstraints(TypedDict):
    """Fields of a `Question` that the script, or what the training promised, decides."""

    sequence_parallel_size: int
    experts: Experts
    states: States
    collectives: Collectives


def script_constraints(plan: Plan) -> ScriptConstraints:
    """What another plan for the same training keeps: the groups that its data loader knows, and what is rounded."""
    return {
        "sequence_parallel_size": plan.sequence_parallel_size,
        "experts": "autoep" if plan.autoep_size > 1 else "zero",
        "states": "bf16" if plan.bf16_optimizer_states else "fp32",
        "collectives": "quantized" if plan.quantizes_collectives else "exact",
    }


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that the answer depends on."""

    model: ModelShape
    workload: Workload
    cluster: Cluster
    micro_batch_size: int | None = None
    """Samples per GPU and forward pass when the user fixes them, None leaves them to the search."""
    gradient_checkpointing: CheckpointingChoice = "auto"
    """"offload" also holds on the host what checkpointing keeps; "auto" tries off and on, and offload where neither
    fits."""
    sequence_parallel_size: int | None = None
    """GPUs that share a sample when the user fixes them; None leaves them to the search."""
    experts: Experts = "zero"
    """Who divides a mixture's experts: ZeRO, like all weights, or, where it is faster, AutoEP: each GPU keeps whole
    ones, and tokens travel to them."""
    states: States = "fp32"
    """The type of master weights and optimizer states; bf16 is for training in bf16 with AdamW or Adam."""
    collectives: Collectives = "exact"
    """Whether ZeRO-3 may also send weights in 8 bits and, between nodes, gradients in 4, where that is faster."""
    risk: Risk = "safe"
    """How sure it must be that a plan fits for it to be recommended."""
    largest: Largest | None = None
    """What was found for the option that was "max"; None where none was."""
    job: Job | None = None
    """How much is trained; None where nobody said."""
    price: Price | None = None
    """What the machines cost; None where nobody said."""
    job_basis: tuple[str, ...] = ()
    """Sentences on what was counted in the job's data, and what was taken for granted."""
    job_is_packed: bool = False
    """Several rows of the data fill a sample."""

    def __post_init__(self) -> None:
        ranks, wanted, micro = self.cluster.world_size, self.workload.global_batch_size, self.micro_batch_size
        shared = self.sequence_parallel_size
        if shared is not None:
            obstacle = undividable(self.model, self.workload, shared)
            obstacle = obstacle or (f"{ranks} GPUs do not divide into groups of {shared}" if ranks % shared else None)
            if obstacle is not None:
                raise WorkloadError(
                    f"{shared} GPUs cannot share a sample",
                    why=obstacle,
                    fix="pass another --sequence-parallel-size, or leave it out",
                )
        if self.experts == "autoep":
            self._check_experts()
        if self.states == "bf16":
            self._check_states()
        if wanted is not None and not self.sequence_parallel_sizes():
            raise self._indivisible(wanted, micro or 1)
        if self.workload.document_len is not None and self.workload.attention not in ("flash", "triton"):
            raise WorkloadError(
                "--document-len wants --attention flash",
                why="other kernels compute the whole sample's scores and mask those between documents",
                fix="pass --attention flash, or leave --document-len out",
            )
        obstacle = untileable(self.model, self.workload)
        if obstacle is not None:
            raise WorkloadError("this cannot be tiled", why=obstacle, fix="leave --mlp and --loss tiled out")
        if self.workload.kernels == "liger" and self.model.model_type not in FUSED_LOSS_MODEL_TYPES:
            raise WorkloadError(
                f"Liger has no kernels for {self.model.name}",
                why=f"it does not patch {self.model.model_type} models",
                fix="leave --kernels out",
            )
        if self.workload.loss == "fused" and self.model.model_type not in FUSED_LOSS_MODEL_TYPES:
            raise WorkloadError(
                f"Liger has no fused loss for {self.model.name}",
                why=f"it does not patch {self.model.model_type} models",
                fix="leave --loss out",
            )

    def _check_experts(self) -> None:
        in_bf16 = self.states == "bf16"
        smallest = Plan(
            zero_stage=1,
            micro_batch_size=1,
            autoep_size=2,
            bf16_master_weights_and_grads=in_bf16,
            bf16_optimizer_states=in_bf16,
        )
        obstacle = unsupported(self.model, self.workload, smallest)
        if obstacle is not None:
            raise WorkloadError("AutoEP cannot divide the experts", why=obstacle, fix="leave --experts out")

    def _check_states(self) -> None:
        precision, kind = self.workload.precision, self.workload.optimizer
        if precision != "bf16" or not optimizer(kind).is_adam:
            raise WorkloadError(
                f"states in bf16 do not go with {kind if precision == 'bf16' else precision}",
                why="DeepSpeed keeps them in bf16 for AdamW and Adam in training in bf16",
                fix="leave --states out",
            )

    def _indivisible(self, wanted: int, micro: int) -> WorkloadError:
        """Why a global batch cannot be had on these GPUs."""
        ranks = self.cluster.world_size // (self.sequence_parallel_size or 1)
        if wanted % ranks:
            lower = wanted // ranks * ranks
            return WorkloadError(
                f"a global batch of {wanted} does not divide over {ranks} GPUs",
                why="every GPU takes the same number of samples per optimizer step",
                fix=f"pass --global-batch {lower + ranks}" + (f" or {lower}" if lower else ""),
            )
        return WorkloadError(
            f"a global batch of {wanted} over {ranks} GPUs is {wanted // ranks} samples per GPU, "
            f"which micro batches of {micro} do not divide",
            why="global batch = micro batch x accumulation steps x GPUs",
            fix=f"pass a --micro-batch that divides {wanted // ranks}, or another --global-batch",
        )

    @property
    def trainable_parameters(self) -> int:
        """Pt: parameters that the optimizer updates."""
        return tensor_set(self.model, self.workload).trainable_numel

    @cached_property
    def obstacle_to_quantized(self) -> str | None:
        """Why ZeRO-3's collectives cannot be quantized; None where they can."""
        plan = quantized(Plan(zero_stage=3, micro_batch_size=1), self.cluster)
        return unsupported(self.model, self.workload, plan, self.cluster)

    @property
    def is_batch_free(self) -> bool:
        """Whether the search may take any number of samples per GPU."""
        return self.micro_batch_size is None and self.workload.global_batch_size is None

    def sequence_parallel_sizes(self) -> tuple[int, ...]:
        """How many GPUs may share a sample, by rising number: those that model, sequence and batch divide among."""
        wanted, ranks = self.workload.global_batch_size, self.cluster.world_size
        if self.sequence_parallel_size is not None:
            sizes: Iterable[int] = (self.sequence_parallel_size,)
        elif wanted is not None and wanted >= ranks and not self._divides_batch(ranks):
            return ()  # more likely a slip than a wish to share samples
        else:
            sizes = (size for size in _divisors(ranks) if self._can_share(size))
        return tuple(size for size in sizes if self._divides_batch(ranks // size))

    def _can_share(self, size: int) -> bool:
        return undividable(self.model, self.workload, size) is None

    def _divides_batch(self, replicas: int) -> bool:
        wanted = self.workload.global_batch_size
        return wanted is None or (wanted % replicas == 0 and (wanted // replicas) % (self.micro_batch_size or 1) == 0)

    def batch_shapes(self, sequence_parallel_size: int = 1) -> tuple[tuple[int, int], ...]:
        """(micro batch, accumulation steps) pairs to try, by rising micro batch, where so many GPUs share a sample.

        With a global batch they are all its exact factorisations. Without one there is no accumulation, and the micro
        batch doubles up to the largest within `MAX_TOKENS_PER_STEP`.
        """
        wanted, fixed = self.workload.global_batch_size, self.micro_batch_size
        ranks = self.cluster.world_size // sequence_parallel_size
        if wanted is not None:
            per_gpu = wanted // ranks
            if fixed is not None:
                return ((fixed, per_gpu // fixed),)
            return tuple((micro, per_gpu // micro) for micro in _divisors(per_gpu) if micro <= MAX_MICRO_BATCH)
        if fixed is not None:
            return ((fixed, 1),)
        largest = min(MAX_MICRO_BATCH, int(self._most_tokens_per_step() // (self.workload.seq_len * ranks)))
        doubled = [2**power for power in range(largest.bit_length())]
        return tuple((micro, 1) for micro in dict.fromkeys([*(doubled or [1]), max(1, largest)]))

    def _most_tokens_per_step(self) -> float:
        """Where the search stops raising an unspecified batch: of a job there are to be enough steps."""
        if self.job is None:
            return MAX_TOKENS_PER_STEP
        return min(MAX_TOKENS_PER_STEP, self.job.tokens_in_all(self.workload.seq_len) / LEAST_STEPS)


MAX_TOKENS_PER_STEP = 4 * 2**20
"""Tokens per optimizer step above which the search stops raising an unspecified batch: about what the largest published
pre-training runs use (GPT-3 3.2 M, arXiv:2005.14165 table 2.1; Llama 3 405B starts with 4 M, arXiv:2407.21783 section
3.4). Beyond that a larger batch costs convergence, which tokens per second do not show."""

LEAST_STEPS = 100
"""Optimizer steps of a job below which the search does not raise an unspecified batch: with fewer there is hardly any
training."""

MAX_MICRO_BATCH = 1024
"""Bounds the search; a GPU's efficiency has levelled off long before."""


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
