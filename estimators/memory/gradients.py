"""Gradients and their buckets on the GPU, by phase of a step, at ZeRO stages 1, 2 and 3.

Stages 1 and 2 reduce each gradient to the ranks whose flat partitions contain it.

- Stage 1 keeps all gradients while micro batches accumulate. At the boundary those that passed through the bucket are
  freed, but a tensor larger than the bucket keeps its gradient until the pass ends. The first reduction of a tensor of
  the rank's partition allocates a buffer for all of the partition, beside the gradients that are not yet reduced.
- Stage 2 keeps the whole gradients of the tensors that the rank's partition touches (not only the part inside it), and
  a second copy while another micro batch is added.

Stage 3 keeps one shard of every gradient, in a buffer that is never freed. Offloaded gradients leave the GPU tensor by
tensor. `grad_accum_dtype` and `communication_data_type` decide the types of that buffer and of what is reduced.

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`setup_buckets`, `copy_grads_in_partition`, `step`,
`reduce_independent_p_g_buckets_and_remove_grads`, `independent_gradient_partition_epilogue`), stage3.py
(`_setup_for_real_optimizer`, `partition_grads`, `_prepare_fp32_grad_for_sub_group`). Compared with dry runs of that
engine. Not covered: Muon's gathered matrices and its Newton-Schulz products (up to a quarter of a GiB and a few
matrices).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..estimate import Formula, Terms, total_bytes
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .gradient_memory import NORM_BYTES, STEP_NOT_COVERED, SYMBOLS, GradientMemory
from .partition import SWAP_MIN_BYTES, reductions_after_backward, shard_numel
from .trainable import (
    ShardedTensors,
    gradients_before_first_reduction,
    groups_on_gpu,
    optimizer_group_numels,
    shards_below,
)

_SOURCE = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
_BUCKETS = Formula("reduce_buckets", "w (b bucket + copied)", f"{_SOURCE} setup_buckets, allreduce_bucket", SYMBOLS)
_BUCKETS_CAST = _BUCKETS._replace(text="w (b bucket + copied) + r cast")
_GRADIENTS = Formula("gradients", "w alive", f"{_SOURCE} copy_grads_in_partition", SYMBOLS)
_STAGING = Formula(
    "offload_staging",
    "w largest + max(8 slice, w clone)",
    f"{_SOURCE} temp_grad_buffer_for_gpu_offload, set_norm_for_param_grad_in_gpu, "
    "reduce_independent_p_g_buckets_and_remove_grads",
    SYMBOLS,
)
_UPDATE = Formula("step_temporaries", "(m + s) part", f"{_SOURCE} step", SYMBOLS, STEP_NOT_COVERED)
_NORM_OR_CAST = Formula(
    "step_temporaries", "max(8 slice, w part)", f"{_SOURCE} get_grad_norm_direct, step", SYMBOLS, STEP_NOT_COVERED
)


class _Moment(NamedTuple):
    """Elements on the GPU at a moment at the end of the backward pass."""

    alive: int
    """Of gradients."""
    copied: int = 0
    """Of a bucket's copy."""
    staged: int = 0
    """Of a piece on its way to the host."""
    cast: int = 0
    """Of a gradient's part that is cast for the reduction, if more than `copied`."""


class Stage12(GradientMemory):
    def __init__(self, sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int) -> None:
        super().__init__(sharded, plan, optimizer, local_ranks)
        # `copy_grads_in_partition` keeps views of whole gradients, even of a tensor that only ends in the partition.
        self.owned = 0 if self.offloaded else sharded.touched
        """Reduced gradients that this rank owns. Offloaded ones are not on the GPU."""
        self.in_place = not (plan.contiguous_gradients or self.offloaded)
        """Whether gradients stay where they are made (`contiguous_gradients` off; offload ignores it)."""
        owned_last = 0 if self.offloaded or self.in_place else sharded.last_load.touched
        if self.tied_head:  # reduced at the end, with the embedding's; layers may be reduced before
            owned_last = owned_last if self.fills.flushed else 0
            self.oversized_head = 0
        self.owned_last = owned_last
        # with_layer: gradients alive together with a layer's gradients during its backward pass. The first
        # reduction allocates the buffer of owned gradients. It is that of a head larger than the bucket, or of layers.
        if plan.zero_stage == 1:
            self.with_layer = max(self.accumulated, self.oversized_head + owned_last)
            if self.accumulates and owned_last:
                # The buffer is added to the gradients of earlier micro batches; those that are reduced have moved.
                moved = self.oversized_head or self.fills.flushed
                self.with_layer = max(self.with_layer, self.accumulated - moved + owned_last)
            self.at_head_reduction = self.head + (self.with_layer if self.accumulates else owned_last)
        else:
            self.accumulated = self.owned if self.accumulates else 0
            kept = max(owned_last * (2 if self.accumulates else 1), self.accumulated)
            # The last reduced gradient is freed at the next reduction, or at the end if adapters fill no bucket.
            waits = self.in_place or (plan.overlap_comm and not self.offloaded and not self.fills.flushed)
            self.with_layer = kept + self.oversized_head * waits
            self.at_head_reduction = kept + self.head
        self.with_first_layer = self.with_layer if self.oversized_head else self.accumulated
        if not self.oversized_head:
            self.at_head_reduction = self.accumulated + self.head

    def live(
        self,
        numel: int,
        *,
        reduces: bool = False,
        copied: int = 0,
        cast: int = 0,
        filled: int = 0,
        piece: int = 0,
        whole: int = 0,
    ) -> Terms:
        """Return gradients, buckets and staging.

        copied: elements of a bucket. filled: of gradients in a bucket. cast: of those that are cast for the reduction,
            if more. piece, whole: of a gradient sent to the host.
        """
        w, buckets, bucket = self.width, 2 if self.plan.overlap_comm else 1, self.bucket_size
        if self.in_place:
            bucket = min(bucket, filled)
        terms = _GRADIENTS.term(w * numel, w=w, alive=numel)
        if reduces or (self.accumulates and self.plan.zero_stage == 1):
            formula, r, cast = _BUCKETS_CAST if self.reduced_width else _BUCKETS, self.reduced_width, max(cast, copied)
            size = w * (buckets * bucket + copied) + r * cast
            terms += formula.term(size, w=w, b=buckets, bucket=bucket, copied=copied, r=r, cast=cast)
        return terms + self._staging(piece, whole)

    def _staging(self, piece: int, whole: int = 0) -> Terms:
        if not self.offloaded:
            return ()
        width, largest = self.width, self.tensors.largest_trainable
        # A gradient larger than the bucket is first cloned, so that the next pass cannot overwrite it.
        clone = whole if whole > self.bucket_size else 0
        size = width * largest + max(NORM_BYTES * piece, width * clone)
        return _STAGING.term(size, w=width, largest=largest, slice=piece, clone=clone)

    def idle_terms(self) -> Terms:
        return self._staging(0)

    def _flattened(self, numel: int) -> int:
        """Return the elements of a gradient larger than the bucket that are flattened together. It is reduced in one
        piece per rank that owns a part of it; pieces are flattened together until they exceed the bucket's size."""
        part = self.sharded.groups[0].partition
        pieces = (self.bucket_size // part + 1) * part if part <= self.bucket_size else 0
        return min(numel, pieces) if numel > self.bucket_size else 0

    def _cast_piece(self, numel: int) -> int:
        """Return the elements of a gradient larger than the bucket that are cast together."""
        return max(self._flattened(numel), min(numel, self.sharded.groups[0].partition) * (numel > self.bucket_size))

    def head_reduction_terms(self) -> Terms:
        copied = 0 if self.offloaded else max(0, self._flattened(self.oversized_head) - self.owned_last)
        staged, whole = min(self.oversized_head, self.sharded.last_load.slice), self.oversized_head
        reduced = self.live(self.at_head_reduction, reduces=True, copied=copied, cast=self._cast_piece(whole))
        after = self.live(self.at_head_reduction, reduces=True, copied=copied, piece=staged, whole=whole)
        return max(reduced, after, key=total_bytes)

    def layer_terms(self, weight: int) -> Terms:
        # Before a module's first reduction: its gradients are in the bucket.
        numel = self.accumulated if self.tensors.model.module else self.with_first_layer + weight + self.tied_head
        return self.live(numel, reduces=True)

    def later_layer_terms(self) -> Terms:
        """Return gradients in a layer's backward pass after the first reduction."""
        numel = self.with_layer + self.oversized + self.tied_head
        return self.live(numel, reduces=True, filled=self.fills.flushed)

    def reduction_terms(self) -> Terms:
        whole = self.overflow + self.tied_head
        flushed = self.fills.flushed
        copied = self.live(whole + self.with_first_layer, reduces=True, copied=flushed * self.copies, filled=flushed)
        # The copy is freed when the rank's part goes to its buffer, and pieces of it to the host.
        largest = self.largest_in_bucket
        piece = min(largest, self.sharded.slice)
        after_copy = self.live(whole + self.with_layer, reduces=True, piece=piece, whole=largest)
        return max(copied, after_copy, key=total_bytes)

    def later_reduction_terms(self) -> Terms:
        """Return gradients during the reduction of the second full bucket."""
        filled, numel = self.fills.flushed, self.with_layer + self.overflow + self.tied_head
        return self.live(numel, reduces=True, copied=filled * self.copies, filled=filled)

    def _around_end(self) -> tuple[int, int]:
        """Return the elements of gradients when the last one is made, without it, and after its reduction."""
        if self.plan.zero_stage == 2 and self.in_place:
            return self.accumulated + max(0, self.owned - self.last), self.accumulated + self.owned
        if self.plan.zero_stage == 2:
            before = self._before_first_reduction(frees=True)
            return self.accumulated + before, self.accumulated + self.owned + self.last
        large = sum(numel for numel in self.tensors.trainable[self.tensors.idle + 1 :] if numel > self.bucket_size)
        before = large if self.offloaded else self._before_first_reduction(frees=False)
        before += self.last * (self.accumulates and self.last > self.bucket_size)
        return before, before + self.last

    def _before_first_reduction(self, *, frees: bool, flushed: bool = False) -> int:
        if self.offloaded:
            return 0
        return max(gradients_before_first_reduction(self.sharded, self.bucket_size, frees=frees, flushed=flushed))

    def _at_end(self) -> Iterator[_Moment]:
        """Yield five moments: the last gradient is made; the bucket before it is reduced; the last bucket is reduced;
        the last gradient has been reduced; the last gradient, larger than the bucket, is reduced alone."""
        before, after = self._around_end()
        reduced = self._before_first_reduction(frees=self.plan.zero_stage == 2, flushed=True)
        yield _Moment(before + self.live_at_end)
        yield _Moment(before + self.last, self.fills.pending * self.fills.waits * self.copies)
        yield _Moment(before, self.fills.final * self.copies)
        yield _Moment(after, staged=min(self.last, self.sharded.slice) * self.offloaded)
        yield _Moment(reduced + self.last, self._flattened(self.last), cast=self._cast_piece(self.last))

    def _after_backward(self) -> Iterator[_Moment]:
        """Yield the same where stage 1 reduces all gradients after the backward pass: the last gradient is made; on
        each rank, a bucket is reduced, and has been reduced."""
        yield _Moment(self.trainable - (0 if self.accumulates else self.last) + self.live_at_end)
        numels, groups, size = self.tensors.trainable, self.sharded.groups, self.bucket_size
        for load in self.sharded.loads:
            kept = load._replace(touched=0) if self.offloaded else load
            for alive, reduced, after in reductions_after_backward(numels, groups, kept, size, idle=self.tensors.idle):
                copied = reduced if reduced <= size else self._flattened(reduced)
                yield _Moment(alive, copied * self.copies, cast=self._cast_piece(reduced) * self.copies)
                yield _Moment(after, staged=min(reduced, load.slice) * self.offloaded)

    def end_terms(self) -> Terms:
        reduces_at_end = self.plan.zero_stage == 1 and not self.plan.overlap_comm
        gradients, copied, staged, cast = max(
            self._after_backward() if reduces_at_end else self._at_end(),
            # Moments are compared in bytes, because gradients, copies and norms differ in their bytes per element.
            key=lambda end: (
                self.width * (end.alive + end.copied)
                + self.reduced_width * max(end.copied, end.cast)
                + NORM_BYTES * end.staged
            ),
        )
        whole = self.last * (staged > 0)
        return self.live(gradients, reduces=True, copied=copied, cast=cast, filled=copied, piece=staged, whole=whole)

    def step_terms(self) -> Terms:
        """Return the largest of three moments, on the rank with the maximum.

        Norm: gradients + 8 slice. Cast: gradients + their flat copy + its copy in the masters' type. Update: that copy
        + the optimizer's temporaries. Groups are processed one after another. The gradients of all groups are views of
        one buffer, which stays until the last group's are cast.
        """
        if self.offloaded:
            return self._staging(0)
        *earlier, last = (group.partition for group in self.sharded.groups)
        part, waiting = max(*earlier, last, 0), max(earlier, default=0)
        width, master = self.width, self.plan.master_bytes
        temporaries = master * self.optimizer.step_elements
        per_element = width if width == master else width + master
        before, _, load = max(
            (width * load.touched + max(NORM_BYTES * load.slice, per_element * part), -rank, load)
            for rank, load in enumerate(self.sharded.loads)
        )
        updates = [(0, last)] + [(load.touched, waiting)] * (waiting > 0)
        alive, updated = max(updates, key=lambda each: width * each[0] + (master + temporaries) * each[1])
        update = (master + temporaries) * updated
        formula, size, inputs = _UPDATE, update, {"m": master, "s": temporaries, "part": updated}
        if width * alive + update <= before:
            alive, size = load.touched, before - width * load.touched
            inputs = {"w": width, "m": master, "slice": load.slice, "part": part}
            formula = _NORM_OR_CAST if width == master else _NORM_OR_CAST._replace(text="max(8 slice, (w + m) part)")
        return _GRADIENTS.term(width * alive, w=width, alive=alive) + formula.term(size, **inputs)


NORM_CHUNK = 250_000_000
"""Elements per cast to fp64 for the norm under offload (stage3.py `_constant_buffered_norm2`)."""

_SOURCE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py"
_BUCKET_3 = Formula(
    "reduce_buckets",
    "r bucket + w copied",
    f"{_SOURCE_3} _setup_for_real_optimizer, runtime/comm/coalesced_collectives.py reduce_scatter_coalesced",
    SYMBOLS,
)
_GRADIENTS_3 = Formula("gradients", "a shards + w alive", f"{_SOURCE_3} grad_partitions_flat_buffer", SYMBOLS)
_STAGING_3 = Formula(
    "offload_staging",
    "a piece + max(8 min(piece, chunk), m piece) + 4 waiting",
    f"{_SOURCE_3} partition_grads, _offload_grad_partition_at_boundary",
    SYMBOLS,
)
# torch's AdamW computes the root of a whole sub-group's second moments at once.
_KEPT_STEP_3 = Formula(
    "step_temporaries",
    "m G",
    "torch 2.13 optim/adam.py _multi_tensor_adam (exp_avg_sq_sqrt), for the sub-groups that stay on the GPU",
    SYMBOLS,
)
_STEP_3 = Formula(
    "step_temporaries",
    "max(8 shard, (a + m) G, (m + s) G)",
    f"{_SOURCE_3} get_grad_norm_direct, _prepare_fp32_grad_for_sub_group, has_overflow",
    SYMBOLS,
    STEP_NOT_COVERED,
)


class Stage3(GradientMemory):
    """Gradients of stage 3. Whole gradients live until they are reduced. Reduce-scatter interleaves a bucket's tensors
    in a copy; a single tensor with numel divisible by N is reduced in place. For 4 bits gradients are cast to fp16 by
    bucket, then quantized by tensor; sent and received bytes are equal (runtime/comm/coalesced_collectives.py
    `all_to_all_quant_reduce`)."""

    def _copied(self, numel: int, largest: int) -> int:
        """Return the copied elements, in the gradients' type, while `numel` elements are reduced; `largest` is the
        largest tensor among them."""
        if not self.plan.zero_quantized_gradients:
            # In another type: the casts of whole gradients, and their interleaved copy.
            return numel * self.copies * max(self.width, 2 * self.reduced_width) // self.width
        cast = numel if self.tensors.workload.precision == "bf16" else 0
        # Bytes per element: sent and received in the node; for 1 / L of them the node's sum, likewise, and in fp16.
        quantized = 0.5 + 0.5 + (0.5 + 0.5 + 2) / self.local_ranks
        return cast + int(quantized * min(numel, largest)) // self.width

    def _in_place(self, numel: int) -> int:
        """Return the elements, in the gradients' type, of the cast of a single tensor, which is then reduced in
        place."""
        return numel * self.reduced_width // self.width

    def _cast(self, numel: int) -> int:
        """Return the shards of reduced gradients in the accumulated type, as elements of the gradients' type
        (`__avg_scatter_grads`)."""
        reduced = self.reduced_width or self.width
        is_cast = reduced != self.accumulated_width or self.reduced_width == 2
        return is_cast * self.accumulated_width * shard_numel(numel, self.sharded.world_size) // self.width

    def _staging(self, numel: int, in_bucket: int = 0) -> Terms:
        """Return the staging of a gradient on its way to host or NVMe, with `in_bucket` elements in its bucket."""
        if not self.offloaded:
            return ()
        # For each tensor the shard comes to the GPU, is cast for the norm, and then to fp32 for the transfer.
        piece = shard_numel(numel, self.sharded.world_size)
        waiting = 0
        if self.plan.offload_optimizer == "nvme":
            # The fp32 gradients of a whole bucket wait on the GPU, and until the step those too small for NVMe.
            waiting = shards_below(self.sharded, SWAP_MIN_BYTES // 4)[0]
            waiting += max(0, shard_numel(in_bucket, self.sharded.world_size) - piece)
        master = self.plan.master_bytes
        held = self.accumulated_width
        size = held * piece + max(NORM_BYTES * min(piece, NORM_CHUNK), master * piece) + 4 * waiting
        return _STAGING_3.term(size, a=held, m=master, piece=piece, chunk=NORM_CHUNK, waiting=waiting)

    def live(self, numel: int, *, reduces: bool = True, copied: int = 0, filled: int = 0) -> Terms:  # noqa: ARG002  it is never freed
        """Return the rank's shards, `numel` elements of whole gradients, and the bucket with its `copied` elements.
        filled: elements of gradients in the bucket, which stay where they were made without contiguous_gradients."""
        w, shards, held = self.width, 0 if self.offloaded else self.sharded.shard_total, self.accumulated_width
        bucket = self.bucket_size if self.plan.contiguous_gradients else 0
        numel += 0 if self.plan.contiguous_gradients else filled
        reduced = self.reduced_width or w
        gradients = _GRADIENTS_3.term(held * shards + w * numel, a=held, w=w, shards=shards, alive=numel)
        return gradients + _BUCKET_3.term(reduced * bucket + w * copied, r=reduced, w=w, bucket=bucket, copied=copied)

    def idle_terms(self) -> Terms:
        return self.live(0)

    def head_reduction_terms(self) -> Terms:
        # reduce_scatter_coalesced pads and interleaves tensors unless a single one divides among the ranks.
        in_place = not self.plan.zero_quantized_gradients and self.oversized_head % self.sharded.world_size == 0
        copied = self._in_place(self.oversized_head)
        if not in_place:
            copied = self._copied(self.oversized_head, self.oversized_head)
        copied += self._cast(self.oversized_head)
        reduced = self.live(self.head, copied=copied)
        return self._with_copy_to_host(reduced, self.head, self.oversized_head, self.oversized_head)

    def layer_terms(self, weight: int) -> Terms:
        return self.live(weight + self.tied_head, filled=max(self.fills.flushed, self.fills.pending))

    def reduction_terms(self) -> Terms:
        largest, flushed = self.largest_in_bucket, self.fills.flushed
        copied = self._copied(flushed, largest) + self._cast(flushed)
        alive = self.overflow + self.tied_head
        reduced = self.live(alive, copied=copied, filled=flushed)
        return self._with_copy_to_host(reduced, alive, flushed, largest, in_bucket=flushed)

    def _with_copy_to_host(self, reduced: Terms, alive: int, numel: int, largest: int, *, in_bucket: int = 0) -> Terms:
        """Return the terms of a reduction of `numel` elements with the copy of its result to the host, at which casts
        for the reduction are freed."""
        if self.offloaded and self.reduced_width:
            after = self.live(alive, copied=self._cast(numel), filled=numel) + self._staging(largest, in_bucket)
            return max(reduced, after, key=total_bytes)
        return reduced + self._staging(largest, in_bucket)

    def end_terms(self) -> Terms:
        """Return the largest of four moments: the last gradient is made; the bucket before it is reduced; the last
        bucket is reduced; the last gradient is reduced."""
        pending, final = self.fills.pending * self.fills.waits, self.fills.final
        waits = self.live(self.last, copied=self._copied(pending, self.layer) + self._cast(pending), filled=pending)
        last_bucket = self.live(0, copied=self._copied(final, self.layer) + self._cast(final), filled=final)
        quantizes = self.plan.zero_quantized_gradients
        alone = self._copied(self.last, self.last) if quantizes else self._in_place(self.last)
        alone += self._cast(self.last)
        return max(
            self.live(self.live_at_end, filled=self.fills.pending),
            self._with_copy_to_host(waits, self.last, pending, min(pending, self.layer), in_bucket=self.fills.pending),
            self._with_copy_to_host(last_bucket, 0, final, min(final, self.layer), in_bucket=final),
            self._with_copy_to_host(self.live(self.last, copied=alone), self.last, self.last, self.last),
            key=total_bytes,
        )

    def step_terms(self) -> Terms:
        if self.offloaded:
            group = max(groups_on_gpu(self.sharded, self.plan), default=0)
            master = self.plan.master_bytes
            return self.live(0) + self._staging(0) + _KEPT_STEP_3.term(master * group, m=master, G=group)
        width, sharded, largest = self.accumulated_width, self.sharded, max(self.sharded.shards)
        group = max(optimizer_group_numels(sharded, self.plan.sub_group_size))
        # fp16 checks the whole buffer for overflow at once: |g|, and a mask of infinite elements.
        overflow = (width + 1) * sharded.shard_total if self.tensors.workload.precision == "fp16" else 0
        master = self.plan.master_bytes
        temporaries = master * self.optimizer.step_elements
        cast, cast_text = (width, "a") if width == master else (width + master, "(a + m)")
        text = f"max(8 shard, {cast_text} G, (m + s) G{', (a + 1) shards' if overflow else ''})"
        return self.live(0) + _STEP_3._replace(text=text).term(
            max(NORM_BYTES * largest, cast * group, (master + temporaries) * group, overflow),
            a=width,
            m=master,
            shard=largest,
            G=group,
            s=temporaries,
            shards=sharded.shard_total,
        )
