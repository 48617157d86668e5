"""Gradient memory: the part common to all ZeRO stages, and stage 0, which keeps all gradients, w Pt, until the step.

The methods of a stage return the terms of one GPU in the phases of a step:

    forward, tiled_loss      a micro batch runs forward; a tiled loss is computed again in the backward pass
    head, head_reduction     the output head's gradient is made; it is reduced, and the logits are freed
    layer, reduction         the last layer runs backward, with the gradient of one of its weights; a full bucket is
                             reduced meanwhile
    end, step                the embedding's gradient is made; the optimizer steps
    idle                     between two steps
"""

from __future__ import annotations

from operator import add

from ..estimate import MEMORY_SYMBOLS, Formula, Terms
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .trainable import ShardedTensors, gradient_buckets

NORM_BYTES = 8
"""Bytes per element of a gradient cast to fp64 for its norm, tensor by tensor (deepspeed 0.19.8 runtime/zero/utils.py
`get_norm_dtype`)."""

SYMBOLS = {
    **MEMORY_SYMBOLS,
    "r": "bytes of a gradient while it is reduced",
    "cast": "elements of gradients that are cast for their reduction",
    "a": "bytes of an accumulated gradient",
    "alive": "elements of whole gradients that are alive at this moment",
    "bucket": "elements of a reduction bucket (reduce_bucket_size)",
    "copied": "elements of a bucket that are copied while it is reduced",
    "s": "bytes of the optimizer's temporaries per master weight",
    "b": "buckets: 2 with overlap_comm",
    "slice": "elements of the largest tensor within one rank's partition",
    "clone": "elements of a gradient that is copied before it is reduced",
    "piece": "one rank's part of a gradient during its copy to the host",
    "chunk": "elements per partial norm",
    "waiting": "fp32 elements on the GPU that wait to be written to the disk",
    "shard": "one rank's shard of the largest tensor",
}
STEP_NOT_COVERED = "optimizers that bring kernels of their own"


class GradientMemory:
    """Gradient sizes of one plan, in elements, on the GPU with the largest ones."""

    def __init__(self, sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int) -> None:
        tensors = sharded.tensors
        self.sharded = sharded
        self.tensors = tensors
        self.plan = plan
        self.optimizer = optimizer
        self.local_ranks = local_ranks
        self.width = tensors.workload.weight_bytes
        self.reduced_width = plan.reduced_bytes(tensors.workload.precision)
        """Bytes per element of a copy in another type for the reduction; 0 without one."""
        self.accumulated_width = plan.accumulated_bytes(self.width)
        self.trainable = tensors.trainable_numel
        self.bucket_size = plan.reduce_bucket_size
        self.offloaded = plan.offload_optimizer != "none"
        self.accumulates = plan.gradient_accumulation_steps > 1
        self.accumulated = self.trainable if self.accumulates and plan.zero_stage < 2 else 0
        """Gradients of earlier micro batches."""
        self.fills = gradient_buckets(tensors, self.bucket_size, stage=plan.zero_stage)
        self.copies = sharded.world_size > 1
        """Whether a bucket is copied before it is reduced, because it has gradients for several ranks."""
        self.layer = max(tensors.trainable_layer, default=0)
        """The largest gradient of a layer."""
        self.live_layer = 0 if tensors.model.module else self.layer
        """The layer's gradient in its backward pass; 0 for a module, whose passes count gradients themselves."""
        backward = tensors.trainable_layer[::-1] if self.live_layer else ()
        oversized = [numel if numel > self.bucket_size else 0 for numel in backward]
        self.oversized = max(oversized, default=0)
        """The largest gradient of a layer that exceeds the bucket. It is alive until the next one is made."""
        self.oversized_pair = max(map(add, [0, *oversized], backward), default=0)
        """The largest sum of such a gradient and the next one."""
        self.head = tensors.head if tensors.trains_head else 0
        self.tied_head = self.head if tensors.tied else 0
        """The gradient of a tied head, alive through all layers until the embedding's is made."""
        self.oversized_head = self.head if self.head > self.bucket_size else 0
        self.last = self.live_at_end = self.layer
        """The last gradient, and all gradients that are alive when it is made."""
        if self.tied_head:  # a tied embedding has two gradients and their sum
            self.last = self.head
            self.live_at_end = 3 * self.head
        elif tensors.trains_embedding:
            self.last = self.live_at_end = tensors.embedding

    @property
    def overflow(self) -> int:
        """The part of a layer's gradient that does not fit into the bucket."""
        return min(self.live_layer, self.fills.unfit)

    @property
    def largest_in_bucket(self) -> int:
        """Elements of the largest tensor in a full bucket. An untied head that fits is in the first bucket."""
        return max(self.layer, 0 if self.tied_head or self.oversized_head else self.head)

    @property
    def first_reduced(self) -> int:
        """Minimum elements of layers in the first full bucket, which takes the head's gradient first."""
        if not self.plan.zero_stage or not self.fills.flushed:
            return 0
        head = 0 if self.tensors.tied or self.tensors.head > self.bucket_size else self.tensors.head
        # A bucket is reduced when the next gradient does not fit, so it may lack up to one tensor.
        return max(0, self.bucket_size - self.layer - head)

    def live(self, numel: int, *, reduces: bool = False) -> Terms:
        """Return gradients of `numel` elements with the buffers alive then. reduces: whether buckets are allocated."""
        raise NotImplementedError

    def forward_terms(self) -> Terms:
        return self.live(self.accumulated)

    def tiled_loss_terms(self, tiles: int) -> Terms:
        accumulates = tiles > 1
        return self.live(self.accumulated + self.head * accumulates, reduces=accumulates)

    def head_terms(self) -> Terms:
        return self.live(self.accumulated + self.head)


ALLREDUCE_BUCKET = 500_000_000
"""Maximum elements flattened for one all-reduce (engine.py MEMORY_OPT_ALLREDUCE_SIZE)."""

_SOURCE = "deepspeed 0.19.8 runtime/engine.py allreduce_bucket"
_GRADIENTS = Formula("gradients", "w alive", _SOURCE, SYMBOLS)
_FLATTENED = Formula("reduce_buckets", "w min(Pt, 5e8 + largest)", _SOURCE)
_STEP = Formula(
    "step_temporaries",
    "4 Pt + s Pt",
    "deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, unfused_optimizer.py step",
    SYMBOLS,
    STEP_NOT_COVERED,
)


class Stage0(GradientMemory):
    """Stage 0. The backward pass adds a new gradient, a temporary, to the one of earlier micro batches."""

    def live(self, numel: int, *, reduces: bool = False) -> Terms:  # noqa: ARG002  there are no buckets
        return _GRADIENTS.term(self.width * numel, w=self.width, alive=numel)

    def idle_terms(self) -> Terms:
        return ()

    def head_reduction_terms(self) -> Terms:
        return self.head_terms()

    def layer_terms(self, _weight: int) -> Terms:
        return self.reduction_terms()

    def reduction_terms(self) -> Terms:
        return self.live(self.accumulated + self.head + self.live_layer)

    def end_terms(self) -> Terms:
        width, trainable, largest = self.width, self.trainable, self.tensors.largest_trainable
        # DeepSpeed closes the bucket with the tensor that exceeds the limit, so it may be larger by one tensor.
        copied = min(trainable, ALLREDUCE_BUCKET + largest)
        return self.live(trainable + self.live_at_end - self.last) + _FLATTENED.term(
            width * copied, w=width, Pt=trainable, largest=largest
        )

    def step_terms(self) -> Terms:
        temporaries = 4 * self.optimizer.step_elements
        at_once, name = self.trainable, "Pt"
        if self.tensors.workload.software.optimizer_step == "loop":
            at_once, name = self.tensors.largest_trainable, "largest"
        if self.tensors.workload.precision == "fp32":
            formula, size = _STEP._replace(text=f"s {name}"), temporaries * at_once
        elif self.optimizer.is_adam:
            # fp32 copies of all gradients, and the flat tensor made of them.
            formula, size = _STEP._replace(text="(4 + 4) Pt"), 8 * self.trainable
        else:
            formula, size = _STEP._replace(text=f"4 Pt + s {name}"), 4 * self.trainable + temporaries * at_once
        largest = self.tensors.largest_trainable
        return self.live(self.trainable) + formula.term(size, Pt=self.trainable, s=temporaries, largest=largest)
