"""Gradients on the GPU, the buckets they are reduced in, and what leaves them for the host: backward pass and step.

What one GPU holds of gradients (w bytes each; DeepSpeed accumulates in the model's dtype unless told otherwise):

- Stage 0: all of them, w Pt, until the step.
- Stage 1: all of them while micro batches accumulate; at the boundary those that passed through the bucket are freed, but a
  tensor larger than the bucket keeps its gradient until the pass ends.
- Stage 2: the whole gradients of the tensors that the rank's partition touches (not only the part inside it), a second time
  while another micro batch is added.
- Stage 3: one shard of every gradient, in a buffer that is never freed.

Offloaded gradients leave the GPU tensor by tensor; the gradient norm, taken in fp64, needs 8 bytes an element as they pass.

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`setup_buckets`, `reduce_independent_p_g_buckets_and_remove_grads`,
`copy_grads_in_partition`, `independent_gradient_partition_epilogue`, `step`), runtime/zero/stage3.py
(`_setup_for_real_optimizer`, `partition_grads`, `_prepare_fp32_grad_for_sub_group`), runtime/fp16/fused_optimizer.py and
unfused_optimizer.py `step`, runtime/zero/utils.py `get_norm_dtype`. Checked against dry runs of that engine.
Not covered: Muon's gathered matrices and its Newton-Schulz products (up to a quarter of a GiB and a few matrices).
"""

from __future__ import annotations

from dataclasses import dataclass

from .estimate import MemoryTerm
from .optimizers import Optimizer
from .partition import sub_group_numels
from .plan import Plan
from .terms import term
from .trainable import Partitions

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
    """Terms about gradients at the moments of a step; which moment, `memory.estimate_memory` says.

    forward: while a micro batch runs forward (gradients of earlier ones, permanent buffers).
    head:    when the output head's gradient is made, all activations still alive.
    layer:   in the backward pass of the last layer.
    end:     when the embedding's gradient is made.
    step:    in the optimizer's step.
    """

    forward: tuple[MemoryTerm, ...]
    head: tuple[MemoryTerm, ...]
    layer: tuple[MemoryTerm, ...]
    end: tuple[MemoryTerm, ...]
    step: tuple[MemoryTerm, ...]


def gradient_memory(cut: Partitions, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    """Gradients, buckets, staging and step temporaries of one GPU."""
    if plan.zero_stage == 0:
        return _stage_0(cut, plan, optimizer)
    return _stage_1_2(cut, plan, optimizer) if plan.zero_stage < 3 else _stage_3(cut, plan, optimizer)


def _edges(cut: Partitions) -> tuple[int, int, int, bool]:
    """Elements of the gradients that arise at the head, in a layer (its widest tensor) and at the embedding; whether tied."""
    tensors = cut.tensors
    if not tensors.trains_head:
        return 0, max(tensors.layer_tensors), 0, False
    return tensors.head, max(tensors.layer_tensors), tensors.embedding, tensors.model.tied and tensors.head > 0


def _stage_0(cut: Partitions, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    tensors = cut.tensors
    width, trainable = tensors.workload.weight_bytes, tensors.trainable_numel
    head, widest, embedding, tied = _edges(cut)

    def gradients(numel: int, formula: str) -> tuple[MemoryTerm, ...]:
        return term("gradients", width * numel, formula, _STAGE_0, w=width, Pt=trainable)

    every = gradients(trainable, "w Pt")
    if plan.gradient_accumulation_steps > 1:
        # Backward adds into gradients that exist; the new one is a temporary beside them.
        forward, at_head = every, gradients(trainable + head, "w (Pt + head)")
        layer = gradients(trainable + widest + head * tied, "w (Pt + layer)")
    else:
        forward, at_head, layer = (), gradients(head, "w head"), gradients(widest + head, "w (head + layer)")
    copied = min(trainable, ALLREDUCE_BUCKET + tensors.largest_trainable)
    end = gradients(trainable + 2 * embedding * tied, "w Pt") + term(
        "reduce_buckets", width * copied, "w min(Pt, 5e8 + largest)", _STAGE_0, w=width, Pt=trainable,
        largest=tensors.largest_trainable)
    if tensors.workload.precision == "fp32":
        temporary, formula = optimizer.step_bytes * trainable, "s Pt"
    elif optimizer.fused:
        # fp32 copies of all gradients, and the flat tensor made of them.
        temporary, formula = 8 * trainable, "(4 + 4) Pt"
    else:
        temporary, formula = (4 + optimizer.step_bytes) * trainable, "(4 + s) Pt"
    step = every + term("step_temporaries", temporary, formula, "deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, "
                        "unfused_optimizer.py step", Pt=trainable, s=optimizer.step_bytes)
    return GradientMemory(forward=forward, head=at_head, layer=layer, end=end, step=step)


def _stage_1_2(cut: Partitions, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    tensors = cut.tensors
    width, trainable, bucket_numel = tensors.workload.weight_bytes, tensors.trainable_numel, plan.reduce_bucket_size
    head, widest, embedding, tied = _edges(cut)
    offloaded, accumulates = plan.offload_optimizer != "none", plan.gradient_accumulation_steps > 1
    source = _STAGE_1_2

    buckets = 2 if plan.overlap_comm else 1
    # Gradients for several ranks are flattened once more before they are reduced.
    copied = min(bucket_numel, trainable) if cut.world_size > 1 else 0
    bucket = term("reduce_buckets", width * buckets * bucket_numel, "w b bucket", source + " setup_buckets",
                  w=width, b=buckets, bucket=bucket_numel)
    reducing = term("reduce_buckets", width * (buckets * bucket_numel + copied), "w (b bucket + min(bucket, Pt))",
                    source + " setup_buckets, allreduce_bucket", w=width, b=buckets, bucket=bucket_numel, Pt=trainable)

    def gradients(numel: int, formula: str) -> tuple[MemoryTerm, ...]:
        return term("gradients", width * numel, formula, source + " copy_grads_in_partition", w=width, Pt=trainable,
                    N=cut.world_size, T=cut.touched)

    def staging(piece: int) -> tuple[MemoryTerm, ...]:
        if not offloaded:
            return ()
        return term("offload_staging", width * tensors.largest_trainable + NORM_BYTES * piece, "w largest + 8 slice",
                    source + " temp_grad_buffer_for_gpu_offload, set_norm_for_param_grad_in_gpu",
                    w=width, largest=tensors.largest_trainable, slice=piece)

    # The whole model's gradients when stage 1 accumulates or does not overlap; else those too large for the bucket.
    oversize = sum(numel for numel in tensors.trainable if numel > bucket_numel)
    owned, owned_last = (0, 0) if offloaded else (cut.touched, cut.last_load.touched)
    if plan.zero_stage == 1:
        kept = trainable if accumulates or not plan.overlap_comm else oversize
        forward = gradients(trainable, "w Pt") + bucket if accumulates else ()
        before = trainable if accumulates else 0
        at_head = gradients(max(before + head, head + owned_last), "w (Pt + head)")
        layer = gradients(max(before + widest, (head if head > bucket_numel else 0) + owned_last) + head * tied, "w (head + T)")
        end = gradients(max(kept, oversize + owned) + 2 * embedding * tied
                        + (owned if not plan.overlap_comm and not accumulates else 0), "w max(Pt, oversize + T)")
    else:
        before = owned if accumulates else 0
        forward = gradients(before, "w T")
        at_head = gradients(before + owned_last + head, "w (T + head)")
        layer = gradients(before + owned_last + widest + head * tied, "w (T + layer)")
        end = gradients(before + owned + embedding * (3 if tied else 1), "w (T + embedding)")

    permanent = staging(0)
    step: tuple[MemoryTerm, ...]
    if offloaded:
        step = permanent
    else:
        step = _flat_step(cut, optimizer, source)
    return GradientMemory(
        forward=forward + permanent, head=at_head + bucket + staging(min(head, cut.last_load.slice)),
        layer=layer + reducing + staging(min(widest, cut.slice)), end=end + bucket + staging(min(embedding, cut.slice)), step=step)


def _flat_step(cut: Partitions, optimizer: Optimizer, source: str) -> tuple[MemoryTerm, ...]:
    """Stages 1 and 2 without offload: the largest of three phases, on the rank where it is largest.

    The norm: gradients + 8 slice. The cast: gradients + their flat copy + its fp32 copy. The update: the fp32 copy + the
    optimizer's temporaries.
    """
    width, part = cut.tensors.workload.weight_bytes, cut.partition
    cast = (width + 4 if width < 4 else 4) * part
    update = int((4 + optimizer.step_bytes) * part)
    load = max(cut.loads, key=lambda load: width * load.touched + max(NORM_BYTES * load.slice, cast))
    before = width * load.touched + max(NORM_BYTES * load.slice, cast)
    if update > before:
        return term("step_temporaries", update, "(4 + s) Pt'/N", source + " step", s=optimizer.step_bytes,
                    Pt=cut.tensors.trainable_numel, N=cut.world_size)
    return term("gradients", width * load.touched, "w T", source + " copy_grads_in_partition", w=width, T=load.touched) + term(
        "step_temporaries", before - width * load.touched, "max(8 slice, (w + 4) Pt'/N)",
        source + " get_grad_norm_direct, step", w=width, slice=load.slice, Pt=cut.tensors.trainable_numel, N=cut.world_size)


def _stage_3(cut: Partitions, plan: Plan, optimizer: Optimizer) -> GradientMemory:
    tensors = cut.tensors
    width, world = tensors.workload.weight_bytes, cut.world_size
    head, widest, embedding, tied = _edges(cut)
    offloaded = plan.offload_optimizer != "none"
    source = _STAGE_3
    shards = 0 if offloaded else cut.shard_total

    bucket = term("reduce_buckets", width * plan.reduce_bucket_size, "w bucket", source + " _setup_for_real_optimizer",
                  w=width, bucket=plan.reduce_bucket_size)
    # Reduce-scatter interleaves the bucket's tensors in a copy.
    reducing = term("reduce_buckets", width * (plan.reduce_bucket_size + min(plan.reduce_bucket_size, tensors.trainable_numel)),
                    "w (bucket + min(bucket, Pt))", "deepspeed 0.19.8 runtime/comm/coalesced_collectives.py "
                    "reduce_scatter_coalesced", w=width, bucket=plan.reduce_bucket_size, Pt=tensors.trainable_numel)

    def gradients(whole: int, formula: str) -> tuple[MemoryTerm, ...]:
        return term("gradients", width * (shards + whole), formula, source + " grad_partitions_flat_buffer",
                    w=width, Pt=tensors.trainable_numel, N=world)

    # Fragments too small for the disk wait on the GPU in fp32 until the step.
    unswapped = sum(shard for shard in cut.shards if 4 * shard < SWAP_MIN_BYTES) if plan.offload_optimizer == "nvme" else 0

    def staging(numel: int) -> tuple[MemoryTerm, ...]:
        if not offloaded:
            return ()
        piece = -(-numel // world)
        return term("offload_staging", width * piece + NORM_BYTES * min(piece, NORM_CHUNK) + 4 * unswapped,
                    "(w + 8) n / N + 4 unswapped", source + " partition_grads, _offload_grad_partition_at_boundary",
                    w=width, n=numel, N=world, unswapped=unswapped)

    forward = gradients(0, "w Pt''") + bucket
    step = bucket + staging(0)
    if not offloaded:
        largest = max(sub_group_numels(cut.shards, plan.sub_group_size))
        temporary = max(NORM_BYTES * cut.largest_shard, (width + 4 if width < 4 else 4) * largest,
                        int((4 + optimizer.step_bytes) * largest))
        step = forward + term("step_temporaries", temporary, "max(8 shard, (w + 4) G)",
                              source + " get_grad_norm_direct, _prepare_fp32_grad_for_sub_group",
                              w=width, shard=cut.largest_shard, G=largest)
    return GradientMemory(
        forward=forward, head=gradients(head, "w (Pt'' + head)") + bucket + staging(head),
        layer=gradients(widest + head * tied, "w (Pt'' + layer)") + reducing + staging(widest),
        end=gradients(embedding * (3 if tied else 1), "w (Pt'' + embedding)") + bucket + staging(embedding), step=step)
