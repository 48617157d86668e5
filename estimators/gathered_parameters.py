"""ZeRO-3's gathered parameters: how much of the model each GPU holds whole while it computes.

Every module gathers its tensors before it runs and releases them after, but three rules keep more than one module alive:

1. A tensor with at most `stage3_param_persistence_threshold` elements is never released.
2. A released tensor must not be needed again within `stage3_max_reuse_distance` elements of the recorded trace, so the last
   layers of the forward pass stay for the backward pass.
3. Every call of a submodule, weights or not, prefetches at least one more tensor while fewer than
   `stage3_max_live_parameters` elements are alive; modules call more often than there are tensors, so the prefetch runs
   ahead until that limit stops it. With the default of 1e9 a smaller model is gathered as a whole.

A prefetch of several tensors arrives in one flat buffer, from which each is copied; the buffer lives until its last tensor
is used.

Source: deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py (`_fetch_sub_module_impl`, `__params_to_release`),
runtime/zero/partition_parameters.py (`AllGatherCoalescedHandle.wait`), runtime/zero/parameter_offload.py
(`mark_persistent_parameters`). Not covered: the first two iterations, which record the trace and do not prefetch; modules
that are used several times in a pass; mixtures of experts that skip experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .plan import Plan
from .trainable import TensorSet


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredParameters:
    """Elements that are whole on each GPU.

    persistent: never released.
    loss:       gathered when the loss is computed.
    layers:     gathered while the backward pass goes through the layers.
    end:        gathered when the backward pass reaches the embedding and nothing is left to prefetch.
    """

    persistent: int
    loss: int
    layers: int
    end: int


NOTHING = GatheredParameters(persistent=0, loss=0, layers=0, end=0)


def gathered_parameters(tensors: TensorSet, plan: Plan, world_size: int) -> GatheredParameters:
    """Elements that stage 3 holds whole under a plan; nothing with one rank, whose shard is the tensor itself."""
    if plan.zero_stage < 3 or (world_size == 1 and plan.offload_param == "none"):
        return NOTHING
    return _gathered(tensors, plan.stage3_param_persistence_threshold, plan.stage3_max_live_parameters,
                     plan.stage3_max_reuse_distance, plan.stage3_prefetch_bucket_size, plan.gradient_checkpointing,
                     world_size > 1)


@lru_cache(maxsize=256)
def _gathered(tensors: TensorSet, threshold: int, max_live: int, max_reuse: int, prefetch: int, checkpointing: bool,
              gathers: bool) -> GatheredParameters:
    every = tensors.trainable + tensors.frozen
    persistent = sum(numel for numel in every if numel <= threshold)
    shardable = tensors.numel - persistent
    layer = sum(numel for numel in tensors.layer_tensors if numel > threshold)
    widest = max((numel for numel in tensors.layer_tensors if numel > threshold), default=0)
    head, embedding = (numel if numel > threshold else 0 for numel in (tensors.head, tensors.embedding))
    tied = tensors.model.tied
    layers = shardable - embedding - (0 if tied else head)

    # Rule 2. A tensor with T elements of layers after it is used again after the rest of the forward pass and the backward
    # pass down to it: 2 (T + head), or 3 T + 2 head when every layer also runs forward again.
    passes = 3 if checkpointing else 2
    reused = min(layers, max(0, max_reuse - 2 * head) // passes)
    if reused == layers and max_reuse > passes * layers + 2 * head:
        reused += 0 if tied else embedding
    # Rule 3. The tensor that crosses the limit is gathered whole.
    ahead = min(shardable, max_live + widest) if prefetch and max_live > 0 and gathers else 0
    loss = min(shardable, max(head + reused, ahead))
    in_layer = layer if checkpointing and max_reuse > 0 else widest
    walking = min(shardable, max(reused, ahead, in_layer))
    end = min(shardable, layer + embedding)
    # One flat buffer of a prefetch, where it holds more than one tensor.
    narrow = min((numel for numel in tensors.layer_tensors if numel > threshold), default=0)
    flat = min(layers, prefetch + widest) if ahead and prefetch > narrow else 0
    return GatheredParameters(persistent=persistent, loss=loss, layers=walking + flat, end=end)
