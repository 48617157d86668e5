"""ZeRO-3's gathered parameters: how much of the model each GPU holds whole while it computes.

Every module gathers its tensors before it runs and releases them after, but three rules keep more than one module
alive:

1. A tensor with at most `stage3_param_persistence_threshold` elements is never released.
2. A released tensor must not be needed again within `stage3_max_reuse_distance` elements of the recorded trace, so the
   last layers of the forward pass stay for the backward pass.
3. Every call of a submodule, weights or not, prefetches at least one more tensor while fewer than
   `stage3_max_live_parameters` elements are alive; modules call more often than there are tensors, so the prefetch runs
   ahead until that limit stops it. With the default of 1e9 a smaller model is gathered as a whole.

A prefetch of several tensors arrives in one flat buffer, from which each is copied; the buffer lives until its last
tensor is used.

What is read from NVMe is not prefetched further than the swap buffers reach, one for each tensor.

4. Autograd keeps what it saved, released or not. DeepSpeed's linear layer saves no weight, but fused experts are read
   through a transposed view, whose whole tensor stays from the forward to the backward pass. Without checkpointing
   those are the experts of all layers.

Source: deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py (`_fetch_sub_module_impl`,
    `__params_to_release`),
partition_parameters.py (`AllGatherCoalescedHandle.wait`), parameter_offload.py (`mark_persistent_parameters`). Checked
against dry runs of that engine. Not covered: the first two iterations, which record the trace and do not prefetch;
modules that are used several times in a pass; mixtures of experts that skip experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..plan import Plan
from .gradient_memory import SWAP_MIN_BYTES
from .trainable import TensorSet


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredParameters:
    """Elements that are whole on each GPU, at the phases of `gradient_memory.GradientMemory`.

    persistent: never released; not part of the others.
    first_layer: in the first layer's forward pass, with everything prefetched and copied from the fullest flat buffer.
    last_layer: in the last layer's forward pass, with the head already prefetched.
    loss:       when the loss is computed; the others follow in the order of the backward pass.
    """

    persistent: int
    first_layer: int
    last_layer: int
    loss: int
    head: int
    head_reduction: int
    layer: int
    reduction: int
    end: int


NOTHING = GatheredParameters(
    persistent=0, first_layer=0, last_layer=0, loss=0, head=0, head_reduction=0, layer=0, reduction=0, end=0
)


class _Limits(NamedTuple):
    """What of a plan decides: elements, unless said otherwise.

    gathers:      there is more than one rank.
    swap_buffers: how many tensors can be read from NVMe at a time; 0: none is.
    swap_min:     the smallest tensor whose shard goes to NVMe.
    offloaded_ranks: N where shards rest outside the GPU, 0 where they do not.
    """

    threshold: int
    max_live: int
    max_reuse: int
    prefetch: int
    reduce_bucket: int
    checkpointing: bool
    gathers: bool
    swap_buffers: int
    swap_min: int
    offloaded_ranks: int


def gathered_parameters(tensors: TensorSet, plan: Plan, world_size: int) -> GatheredParameters:
    """Elements that stage 3 holds whole under a plan; nothing with one rank, whose shard is the tensor itself."""
    if plan.zero_stage < 3 or (world_size == 1 and plan.offload_param == "none"):
        return NOTHING
    in_memory = tensors.trainable_numel if plan.offload_param != "nvme" else plan.param_max_in_cpu * world_size
    from_disk = plan.offload_param == "nvme" and (tensors.frozen or in_memory < tensors.trainable_numel)
    return _gathered(
        tensors,
        _Limits(
            threshold=plan.stage3_param_persistence_threshold,
            max_live=min(plan.stage3_max_live_parameters, in_memory) if from_disk else plan.stage3_max_live_parameters,
            max_reuse=plan.stage3_max_reuse_distance,
            prefetch=plan.stage3_prefetch_bucket_size,
            reduce_bucket=plan.reduce_bucket_size,
            checkpointing=plan.gradient_checkpointing,
            gathers=world_size > 1,
            swap_buffers=plan.param_buffer_count if from_disk else 0,
            swap_min=SWAP_MIN_BYTES // tensors.workload.weight_bytes * world_size,
            offloaded_ranks=world_size if plan.offload_param != "none" else 0,
        ),
    )


@lru_cache(maxsize=256)
def _gathered(tensors: TensorSet, limits: _Limits) -> GatheredParameters:
    threshold, prefetch, checkpointing = limits.threshold, limits.prefetch, limits.checkpointing
    max_live, max_reuse, swap_buffers = limits.max_live, limits.max_reuse, limits.swap_buffers
    wide = [numel for numel in tensors.layer_tensors if numel > threshold]
    widest, narrowest = max(wide, default=0), min(wide, default=0)
    head, embedding = (numel if numel > threshold else 0 for numel in (tensors.head, tensors.embedding))
    persistent = sum(numel for numel in tensors.trainable + tensors.frozen if numel <= threshold)
    shardable = tensors.numel - persistent
    layers = max(0, shardable - embedding - (0 if tensors.model.tied else head))

    # Rule 2. A tensor with T elements of layers after it is used again after the rest of the forward pass and the
    # backward pass down to it: 2 (T + head), or 3 T + 2 head when every layer also runs forward again.
    passes = 3 if checkpointing else 2
    reused = min(layers, max(0, max_reuse - 2 * head) // passes)
    if reused == layers and max_reuse > passes * layers + 2 * head and not tensors.model.tied:
        reused += embedding

    # A frozen embedding has no part in the backward pass, unless it is the head too, or checkpointing makes its output
    # require a gradient.
    embeddings = sum(numel for numel in tensors.embeddings if numel > threshold)
    gone = 0
    if tensors.frozen:
        gone = embeddings - (embedding if checkpointing or tensors.model.tied else 0)

    # Rule 3. The tensor that crosses the limit is gathered whole. One flat buffer of a prefetch lives beside its
    # copies, where it holds more than one tensor, and as long as there is something left to prefetch.
    prefetches = prefetch > 0 and max_live > 0
    ahead = max_live if prefetches else 0
    everything = prefetches and not swap_buffers and ahead + widest >= shardable
    several = prefetches and limits.gathers and prefetch > narrowest and not everything and not swap_buffers
    flat = prefetch + widest if several else 0

    kept = head if max_reuse else 0
    last_layer = min(shardable, ahead + max(head, widest)) + flat if prefetches else 0
    first_layer = 0
    if everything:
        flats = _prefetches(tensors.frozen or tensors.trainable, threshold, prefetch) if limits.gathers else [0]
        first_layer = last_layer + max(flats[:-1], default=0)
        last_layer += flats[-1] - gone
        shardable -= gone
    # The head alone may reach the limit; else what comes after it is prefetched already.
    loss = (
        min(shardable, max(kept + reused, head if head >= ahead else ahead + widest)) if prefetches else kept + reused
    )
    in_layer = sum(wide) if checkpointing and max_reuse else widest
    if prefetches and swap_buffers:
        swapped = sorted((numel for numel in wide if numel >= limits.swap_min), reverse=True)
        in_layer = max(in_layer, _reach(swapped, sum(wide), swap_buffers))
        reused = min(layers, _reach(swapped, sum(wide), swap_buffers - 1))
        last_layer = loss = max(loss, head + reused)
    layer = min(shardable, max(reused, ahead + widest if prefetches else 0, in_layer)) + flat
    # Rule 4. What was not released, or is prefetched, need not be there twice.
    viewed = 0 if checkpointing or everything or not layers else tensors.viewed * (layers - reused) // layers
    # An offloaded shard comes to the GPU first; without a prefetch the tensor is gathered from it when it is needed.
    fetched = 1 + 1 / limits.offloaded_ranks if limits.offloaded_ranks and not prefetches else 1
    # Once the head is released the prefetch fills its place.
    head_reduction = min(max(0, shardable - head), max(loss - head, ahead))
    # When the bucket is full for the first time, as many elements have been released, and there is less left to
    # prefetch.
    reduced = min(limits.reduce_bucket, tensors.trainable_numel)
    return GatheredParameters(
        persistent=persistent,
        first_layer=first_layer,
        last_layer=last_layer + max(0, viewed - tensors.viewed_layer),
        loss=loss + viewed,
        head=max(loss, int(head * fetched)) + viewed,
        head_reduction=head_reduction + viewed,
        layer=layer + viewed,
        reduction=min(layer, max(in_layer, shardable - reduced)) + viewed,
        end=min(shardable, embeddings) if prefetches else int(embedding * fetched),
    )


def _reach(swapped: list[int], layer: int, buffers: int) -> int:
    """Elements of the layers of which so many tensors are swapped, widest first: whole layers, then tensors of one."""
    if not swapped:
        return layer
    layers, rest = divmod(buffers, len(swapped))
    return layers * layer + sum(swapped[:rest])


def _prefetches(numels: Sequence[int], threshold: int, prefetch: int) -> list[int]:
    """Elements of the flat buffers when everything is prefetched in the forward pass; 0 for a tensor that comes
    alone."""
    groups: list[list[int]] = [[]]
    for numel in numels:
        if numel > threshold:
            if sum(groups[-1]) >= prefetch:
                groups.append([])
            groups[-1].append(numel)
    return [sum(group) if len(group) > 1 else 0 for group in groups]
