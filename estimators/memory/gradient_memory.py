"""Gradients on the GPU, the buckets they are reduced in, and what leaves them for the host: backward pass and step.

What one GPU holds of gradients (w bytes each; DeepSpeed accumulates in the model's dtype unless told otherwise):

- Stage 0: all of them, w Pt, until the step.
- Stage 1: all of them while micro batches accumulate; at the boundary those that passed through the bucket are freed,
  but a tensor larger than the bucket keeps its gradient until the pass ends.
- Stage 2: the whole gradients of the tensors that the rank's partition touches (not only the part inside it), a second
  time while another micro batch is added.
- Stage 3: one shard of every gradient, in a buffer that is never freed.

Offloaded gradients leave the GPU tensor by tensor; the gradient norm, taken in fp64, needs 8 bytes an element as they
pass.

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`setup_buckets`, `copy_grads_in_partition`, `step`,
`reduce_independent_p_g_buckets_and_remove_grads`, `independent_gradient_partition_epilogue`), runtime/zero/stage3.py
(`_setup_for_real_optimizer`, `partition_grads`, `_prepare_fp32_grad_for_sub_group`), runtime/fp16/fused_optimizer.py
and unfused_optimizer.py `step`, runtime/zero/utils.py `get_norm_dtype`. Checked against dry runs of that engine. Not
covered: Muon's gathered matrices and its Newton-Schulz products (up to a quarter of a GiB and a few matrices).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..estimate import MemoryTerm
from ..optimizers import Optimizer
from ..plan import Plan
from .partition import BucketFills
from .terms import term
from .trainable import (
    ShardedTensors,
    TensorSet,
    gradient_buckets,
    held_before_first,
    optimizer_group_numels,
    shards_below,
)

NORM_BYTES = 8
"""Per element: gradients are cast to fp64 for their norm, tensor by tensor."""

NORM_CHUNK = 250_000_000
"""Elements that stage 3's offload casts for the norm at a time (stage3.py `_constant_buffered_norm2`)."""

ALLREDUCE_BUCKET = 500_000_000
"""Elements that stage 0 flattens for one all-reduce (engine.py MEMORY_OPT_ALLREDUCE_SIZE)."""

SWAP_MIN_BYTES = 1 << 20
"""A smaller tensor is not swapped to NVMe (swap_tensor/constants.py MIN_AIO_BYTES, aio block_size)."""

_STAGE_0 = "deepspeed 0.19.8 runtime/engine.py allreduce_bucket"
_STAGE_1_2 = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMemory:
    """Terms about gradients at the phases of a step.

    forward:        while a micro batch runs forward: gradients of earlier ones, permanent buffers.
    head:           when the output head's gradient is made; nothing has been reduced yet.
    head_reduction: when that gradient is reduced, or copied to the bucket; the logits are gone.
    layer:          in the backward pass of the last layer.
    reduction:      the same, while a full bucket is reduced.
    end:            when the embedding's gradient is made.
    step:           in the optimizer's step.
    reduced:        elements of the layers whose gradients are complete before the first full bucket is reduced.
    """

    forward: tuple[MemoryTerm, ...]
    head: tuple[MemoryTerm, ...]
    head_reduction: tuple[MemoryTerm, ...]
    layer: tuple[MemoryTerm, ...]
    reduction: tuple[MemoryTerm, ...]
    end: tuple[MemoryTerm, ...]
    step: tuple[MemoryTerm, ...]
    reduced: int = 0


def gradient_memory(sharded: ShardedTensors, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    """Gradients, buckets, staging and step temporaries of one GPU."""
    if plan.zero_stage == 0:
        return _stage_0(sharded, plan, optimizer)
    return _stage_1_2(sharded, plan, optimizer) if plan.zero_stage < 3 else _stage_3(sharded, plan, optimizer)


def _before_first_reduction(tensors: TensorSet, bucket: int) -> int:
    """Elements of layers that the first bucket surely holds when it is full; it takes the head's first."""
    if not gradient_buckets(tensors, bucket).flushed:
        return 0
    head = 0 if tensors.model.tied or tensors.head > bucket else tensors.head
    return max(0, bucket - max(tensors.trainable_layer, default=0) - head)


@dataclass(frozen=True, slots=True)
class _Gradients:
    """Elements of single gradients.

    head:  of the output head.
    layer: the widest one of a layer.
    held:  what a tied embedding holds through all layers: the head's gradient.
    end:   all that are alive when the last one is made: a tied embedding's two and their sum.
    last:  the last one.
    """

    head: int
    layer: int
    held: int
    end: int
    last: int

    @staticmethod
    def of(sharded: ShardedTensors) -> _Gradients:
        tensors = sharded.tensors
        widest = max(tensors.trainable_layer, default=0)
        if not tensors.trains_head:
            return _Gradients(0, widest, 0, widest, widest)
        if tensors.model.tied and tensors.head:
            return _Gradients(tensors.head, widest, tensors.head, 3 * tensors.head, tensors.head)
        return _Gradients(tensors.head, widest, 0, tensors.embedding, tensors.embedding)


def _stage_0(sharded: ShardedTensors, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    tensors = sharded.tensors
    width, trainable = tensors.workload.weight_bytes, tensors.trainable_numel
    single = _Gradients.of(sharded)
    # Backward adds a new gradient, a temporary, to the one that exists from earlier micro batches.
    earlier = trainable if plan.gradient_accumulation_steps > 1 else 0

    def gradients(numel: int) -> tuple[MemoryTerm, ...]:
        return term("gradients", width * numel, "w alive", _STAGE_0, w=width, alive=numel)

    copied = min(trainable, ALLREDUCE_BUCKET + tensors.largest_trainable)
    end = gradients(trainable + single.end - single.last) + term(
        "reduce_buckets",
        width * copied,
        "w min(Pt, 5e8 + largest)",
        _STAGE_0,
        w=width,
        Pt=trainable,
        largest=tensors.largest_trainable,
    )
    if tensors.workload.precision == "fp32":
        temporary, formula = optimizer.step_bytes * trainable, "s Pt"
    elif optimizer.fused:
        # fp32 copies of all gradients, and the flat tensor made of them.
        temporary, formula = 8 * trainable, "(4 + 4) Pt"
    else:
        temporary, formula = (4 + optimizer.step_bytes) * trainable, "(4 + s) Pt"
    step = gradients(trainable) + term(
        "step_temporaries",
        temporary,
        formula,
        "deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, unfused_optimizer.py step",
        Pt=trainable,
        s=optimizer.step_bytes,
    )
    at_head = gradients(earlier + single.head)
    layer = gradients(earlier + single.head + single.layer)
    return GradientMemory(
        forward=gradients(earlier),
        head=at_head,
        head_reduction=at_head,
        layer=layer,
        reduction=layer,
        end=end,
        step=step,
    )


def _stage_1_2(sharded: ShardedTensors, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    tensors = sharded.tensors
    width, trainable, bucket_numel = tensors.workload.weight_bytes, tensors.trainable_numel, plan.reduce_bucket_size
    single = _Gradients.of(sharded)
    offloaded, accumulates = plan.offload_optimizer != "none", plan.gradient_accumulation_steps > 1
    source = _STAGE_1_2
    buckets = 2 if plan.overlap_comm else 1
    fills = gradient_buckets(tensors, bucket_numel)
    # A bucket with gradients for several ranks is flattened once more before it is reduced.
    copies = sharded.world_size > 1

    def bucket(copied: int = 0) -> tuple[MemoryTerm, ...]:
        return term(
            "reduce_buckets",
            width * (buckets * bucket_numel + copied),
            "w (b bucket + copied)",
            source + " setup_buckets, allreduce_bucket",
            w=width,
            b=buckets,
            bucket=bucket_numel,
            copied=copied,
        )

    def gradients(numel: int) -> tuple[MemoryTerm, ...]:
        return term("gradients", width * numel, "w alive", source + " copy_grads_in_partition", w=width, alive=numel)

    def staging(piece: int, whole: int = 0) -> tuple[MemoryTerm, ...]:
        if not offloaded:
            return ()
        # A gradient larger than the bucket is first cloned, so that the next pass cannot overwrite it.
        clone = whole if whole > bucket_numel else 0
        return term(
            "offload_staging",
            width * tensors.largest_trainable + max(NORM_BYTES * piece, width * clone),
            "w largest + max(8 slice, w clone)",
            source + " temp_grad_buffer_for_gpu_offload, set_norm_for_param_grad_in_gpu, "
            "reduce_independent_p_g_buckets_and_remove_grads",
            w=width,
            largest=tensors.largest_trainable,
            slice=piece,
            clone=clone,
        )

    # Gradients that this rank will own, once reduced: none on the GPU when they are offloaded.
    owned, owned_last = (0, 0) if offloaded else (sharded.touched, sharded.last_load.touched)
    large_head = single.head if single.head > bucket_numel else 0
    if single.held:
        owned_last = large_head = 0  # a tied head is reduced at the end, with the embedding
    reduced = (
        0 if offloaded else max(held_before_first(sharded, bucket_numel, frees=plan.zero_stage == 2, flushed=True))
    )
    if plan.zero_stage == 1:
        earlier = trainable if accumulates else 0
        forward = gradients(earlier) + (bucket() if accumulates else ())
        # Until the pass ends: what did not fit in the bucket, everything where nothing is reduced on the way.
        held = max(earlier, large_head + owned_last)
        if plan.overlap_comm:
            large = sum(numel for numel in tensors.trainable[1:] if numel > bucket_numel)
            before_end = large if offloaded else max(held_before_first(sharded, bucket_numel, frees=False))
            before_end += single.last * (accumulates and single.last > bucket_numel)
            after_end = before_end + single.last
        else:
            before_end = trainable - (0 if accumulates else single.last)
            after_end = trainable + owned
    else:
        earlier = owned if accumulates else 0
        forward = gradients(earlier)
        held = max(owned_last * (2 if accumulates else 1), earlier)
        before_end = earlier + (0 if offloaded else max(held_before_first(sharded, bucket_numel, frees=True)))
        after_end = earlier + owned + single.last
    reduced_head = held + single.head if plan.zero_stage == 2 or accumulates else single.head + owned_last
    in_layer = gradients(held + single.layer + single.held)
    # A gradient larger than the bucket is reduced in pieces, one for each rank that owns some of it; as many as pass
    # the bucket's size are flattened together. Then the rank's buffer is made.
    pieces = (bucket_numel // sharded.partition + 1) * sharded.partition if sharded.partition <= bucket_numel else 0
    flattened, flattened_head = (min(numel, pieces) * (numel > bucket_numel) for numel in (single.last, large_head))
    copied_head = 0 if offloaded else max(0, flattened_head - owned_last)
    end = _end(
        width, before_end, after_end, single, fills, copies=copies, staged=min(single.last, sharded.slice) * offloaded
    )
    end = max(end, _End(reduced + single.last, flattened, 0), key=lambda end: end.size_bytes(width))
    return GradientMemory(
        forward=forward + staging(0),
        head=gradients(earlier + single.head) + (bucket() if forward and plan.zero_stage == 1 else ()) + staging(0),
        head_reduction=gradients(reduced_head)
        + bucket(copied_head)
        + staging(min(large_head, sharded.last_load.slice), large_head),
        layer=in_layer + bucket() + staging(min(single.layer, sharded.slice), single.layer),
        reduction=in_layer + bucket(fills.flushed * copies) + staging(0),
        end=gradients(end.gradients) + bucket(end.copied) + staging(end.staged, single.last * (end.staged > 0)),
        step=staging(0) if offloaded else _flat_step(sharded, optimizer, source),
        reduced=_before_first_reduction(tensors, bucket_numel),
    )


@dataclass(frozen=True, slots=True)
class _End:
    """Elements at the end of the backward pass: gradients, a bucket's copy, what is being staged for the host."""

    gradients: int
    copied: int
    staged: int

    def size_bytes(self, width: int) -> int:
        return width * (self.gradients + self.copied) + NORM_BYTES * self.staged


def _end(
    width: int, before: int, after: int, single: _Gradients, fills: BucketFills, *, copies: bool, staged: int
) -> _End:
    """The worst phase of the end.

    The last gradient is made; or the bucket before it is reduced while it waits; or the last bucket is reduced; or the
    last gradient has been reduced.
    """
    return max(
        _End(before + single.end, 0, 0),
        _End(before + single.last, fills.pending * fills.waits * copies, 0),
        _End(before, fills.final * copies, 0),
        _End(after, 0, staged),
        key=lambda end: end.size_bytes(width),
    )


def _flat_step(sharded: ShardedTensors, optimizer: Optimizer, source: str) -> tuple[MemoryTerm, ...]:
    """Stages 1 and 2 without offload: the largest of three phases, on the rank where it is largest.

    The norm: gradients + 8 slice. The cast: gradients + their flat copy + its fp32 copy. The update: the fp32 copy +
    the optimizer's temporaries.
    """
    width, part = sharded.tensors.workload.weight_bytes, sharded.partition
    cast = (width + 4 if width < 4 else 4) * part
    update = int((4 + optimizer.step_bytes) * part)
    load = max(sharded.distinct_loads, key=lambda load: width * load.touched + max(NORM_BYTES * load.slice, cast))
    before = width * load.touched + max(NORM_BYTES * load.slice, cast)
    if update > before:
        return term("step_temporaries", update, "(4 + s) part", source + " step", s=optimizer.step_bytes, part=part)
    held = term(
        "gradients", width * load.touched, "w alive", source + " copy_grads_in_partition", w=width, alive=load.touched
    )
    return held + term(
        "step_temporaries",
        before - width * load.touched,
        f"max(8 slice, {'(w + 4)' if width < 4 else '4'} part)",
        source + " get_grad_norm_direct, step",
        w=width,
        slice=load.slice,
        part=part,
    )


def _stage_3(sharded: ShardedTensors, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    tensors = sharded.tensors
    width, world = tensors.workload.weight_bytes, sharded.world_size
    single = _Gradients.of(sharded)
    offloaded = plan.offload_optimizer != "none"
    source = _STAGE_3
    shards = 0 if offloaded else sharded.shard_total
    large_head = single.head if single.head > plan.reduce_bucket_size else 0
    # Reduce-scatter interleaves a bucket's tensors in a copy; one tensor that N divides is reduced in place.
    fills, copies = gradient_buckets(tensors, plan.reduce_bucket_size), world > 1
    # On their way to the disk the fp32 gradients of a whole bucket wait on the GPU; fragments too small for it, until
    # the step.
    to_disk = plan.offload_optimizer == "nvme"
    unswapped = shards_below(sharded, SWAP_MIN_BYTES // 4)[0] if to_disk else 0

    def bucket(copied: int = 0) -> tuple[MemoryTerm, ...]:
        return term(
            "reduce_buckets",
            width * (plan.reduce_bucket_size + copied),
            "w (bucket + copied)",
            source + " _setup_for_real_optimizer, runtime/comm/coalesced_collectives.py reduce_scatter_coalesced",
            w=width,
            bucket=plan.reduce_bucket_size,
            copied=copied,
        )

    def gradients(whole: int) -> tuple[MemoryTerm, ...]:
        return term(
            "gradients",
            width * (shards + whole),
            "w (shards + alive)",
            source + " grad_partitions_flat_buffer",
            w=width,
            shards=shards,
            alive=whole,
        )

    def staging(numel: int, in_bucket: int = 0) -> tuple[MemoryTerm, ...]:
        if not offloaded:
            return ()
        # Tensor by tensor: its shard comes to the GPU, is cast for the norm, and then to fp32 for its way out.
        piece = -(-numel // world)
        waiting = unswapped + max(0, -(-in_bucket // world) - piece) * to_disk
        return term(
            "offload_staging",
            width * piece + max(NORM_BYTES * min(piece, NORM_CHUNK), 4 * piece) + 4 * waiting,
            "w piece + max(8 min(piece, chunk), 4 piece) + 4 waiting",
            source + " partition_grads, _offload_grad_partition_at_boundary",
            w=width,
            piece=piece,
            chunk=NORM_CHUNK,
            waiting=waiting,
        )

    # The last gradient is made; the bucket before it is reduced while it waits; the last bucket is reduced, or that
    # gradient.
    end = max(
        (
            gradients(single.end) + bucket(),
            gradients(single.last)
            + bucket(fills.pending * fills.waits * copies)
            + staging(min(fills.pending, single.layer) * fills.waits, fills.pending),
            gradients(0) + bucket(fills.final * copies) + staging(min(fills.final, single.layer), fills.final),
            gradients(single.last) + bucket() + staging(single.last),
        ),
        key=lambda terms: sum(term.size_bytes for term in terms),
    )
    forward = gradients(0) + bucket()
    in_layer = gradients(single.layer + single.held)
    # The largest tensor of a full bucket: an untied head that fits is in the first one.
    in_bucket = max(single.layer, 0 if single.held or single.head > plan.reduce_bucket_size else single.head)
    step = forward + staging(0)
    if not offloaded:
        largest = max(optimizer_group_numels(sharded, plan.sub_group_size))
        # fp16 looks for overflow in the whole buffer at once: |g|, and whether it is infinite.
        overflow = (width + 1) * sharded.shard_total if tensors.workload.precision == "fp16" else 0
        temporary = max(
            NORM_BYTES * sharded.largest_shard,
            (width + 4 if width < 4 else 4) * largest,
            int((4 + optimizer.step_bytes) * largest),
            overflow,
        )
        fp16 = ", (w + 1) shards" if overflow else ""
        step += term(
            "step_temporaries",
            temporary,
            f"max(8 shard, {'(w + 4)' if width < 4 else '4'} G, (4 + s) G{fp16})",
            source + " get_grad_norm_direct, _prepare_fp32_grad_for_sub_group, has_overflow",
            w=width,
            shard=sharded.largest_shard,
            G=largest,
            s=optimizer.step_bytes,
            shards=sharded.shard_total,
        )
    return GradientMemory(
        forward=forward,
        head=gradients(single.head) + bucket(),
        head_reduction=gradients(single.head) + bucket(large_head if large_head % world else 0) + staging(large_head),
        layer=in_layer + bucket() + staging(single.layer),
        reduction=in_layer + bucket(fills.flushed * copies) + staging(in_bucket, fills.flushed),
        end=end,
        step=step,
        reduced=_before_first_reduction(tensors, plan.reduce_bucket_size),
    )
