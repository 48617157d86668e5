"""Bytes that a step moves through GPU memory outside its matrix products: those of weights, the loss, gradients and the
optimizer. What passes from operation to operation within layers is recorded
(`estimators.memory.activations.moved_bytes`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..memory.activations.loss import mlp_tiles
from ..memory.trainable import TensorSet
from ..models.lora import quantized
from ..models.model_shape import Attention, Block, ModelShape
from ..plan import Plan
from ..workload import Workload

LOGIT_BYTES = {"standard": (14, 22), "fused": (4, 8), "in-place": (4, 8), "chunked": (14, 22), "tiled": (14, 36)}
"""Bytes per logit, forward and backward, by loss kernel.

standard: transformers' `ForCausalLMLoss`: upcast to fp32 (2 + 4), log-softmax (4 + 4); backward softmax gradient (4 + 4
+ 4), back to 2 bytes (4 + 2), its read by the head's products (2 + 2). fused, in-place: logits in the
compute dtype, overwritten by their gradient. chunked: the same passes as standard, a part at a time. tiled: the same,
with the forward pass again in the backward pass.
"""

UNCAST_LOGIT_BYTES = (8, 16)
"""The standard loss of GPT-2 before transformers 4.48, in 16 bits: the logits but for the last token copied (2 + 2),
log-softmax (2 + 2); backward softmax gradient (2 + 2 + 2), put back among zeros (2 + 2 + 2), its read by the head's
products (2 + 2). Source: transformers 4.12 and 4.47 modeling_gpt2.py."""

SOFTCAP_PASSES = (6, 7)
"""Times that soft-capped logits cross memory, forward and backward: divided, tanh, multiplied, each read and written;
on the way back the tanh's result is read too (transformers 5.23 modeling_gemma2.py)."""

OPTIMIZER_PASSES_BYTES, LOOP_PASSES_BYTES = (50, 60, 60, 56), 36
"""Bytes per updated parameter of a step on the GPU, beside the optimizer's states (read and written once each): of
DeepSpeed's engine by stage, and of a loop without it.

Counted in the schedules that dry runs of deepspeed 0.19.8 record, the same for six families: master and gradient of the
optimizer's kernel 12; the gradient cast, its norm, unscaled, clipped and checked for overflow; the 16-bit weight
written. A loop casts the gradient 2 + 4, reads its norm 4, clips it 8, steps 12 and writes the weight 6.
"""

STEPPED_BYTES = 26
"""Those of them that follow the gradient's norm, whose value the host waits for: clipping 8, the optimizer's kernel 12,
the 16-bit weight 6."""

BF16_MASTERS_SAVE_BYTES = 18
"""Bytes per updated parameter that a step on the GPU moves less where masters are in bf16, states left out: the
optimizer's kernel 6, the cast of the gradient 6, clipping 4, the weight that is written 2. Counted as the others."""

KEPT_STEP_BYTES = 86
"""Bytes per parameter of a step on the GPU beside an offloaded one, by torch's AdamW (torch 2.13 optim/adam.py
`_multi_tensor_adam`, one kernel for each line: 12 + 8 + 12 + 8 + 8 + 8 + 16), with the gradient unscaled and clipped
(8) and the 16-bit weight written (6)."""

KEPT_BF16_STEP_BYTES = 44
"""The same where masters and states are in bf16: 36, 4 and 4."""

COPIED_PASSES, FSDP_COPIED_PASSES, SUMMED_PASSES = 6, 2, 3
"""Times that an element of a gradient crosses memory when it is reduced, or added to the one before.

DeepSpeed (0.19.8) reads and writes it thrice below stage 3: into the bucket, divided by the ranks, and put together
with those of its rank (stage_1_and_2.py `average_tensor`, `allreduce_bucket`); stage 3 as
`reduced_passes` has it. FSDP's are parts of one tensor.
"""

GATHERED_PASSES = 2
"""Times that a weight crosses memory which stage 3 has gathered together with others (`put_together`):
the ranks' parts are put together (partition_parameters.py `AllGatherCoalescedHandle.wait`). FSDP gathers in place."""

DEQUANTIZED_BYTES, RECAST_BYTES = 1 + 2, 2 + 2
"""Bytes that cross memory for each gathered element when it comes in 8 bits: read and written in fp16, and again where
the model is in bf16 (deepspeed 0.19.8 partition_parameters.py `AllGatherCoalescedHandle.wait`). Quantizing, which each
rank does to its own shard, is left out."""

RECAST_FP32_BYTES = 2 + 4 + 4 + 2
"""Bytes that cross memory for each element of a 16-bit gradient that is reduced in fp32: cast, and copied back."""

QUANTIZED_GRADIENT_BYTES = 4 + 2.5 + 0.5
"""Bytes that cross memory for each element of a gradient on its way out in 4 bits: into the bucket, read in fp16 and
written, read by the ranks of the node, which write 1/L of it (stage3.py `__add_grad_to_ipg_bucket`,
coalesced_collectives.py `all_to_all_quant_reduce`). In bf16 `RECAST_BYTES` come before it."""

UNPACK_BYTES = 7
"""Bytes whose transfer takes as long as unpacking one NF4 weight.

litgpt's resource table (tutorials/resource-tables.md, A100-40GB, micro batch 1): NF4 adds 79 ms to an iteration of
Llama-2-7B and 191 ms to one of 13B, two unpackings each: 6.0 and 7.4 ps a weight, in which `memory_rate` moves 7 bytes.
"""

INT8_UNPACK_BYTES = 1 + 2 + 2 + 2
"""Bytes that cross memory for each int8 weight that becomes one of 16 bits: read, written, read and written by its
scale (bitsandbytes 0.49 autograd/_functions.py MatMul8bitLt.backward)."""


def exchanged_bytes(attention: Attention, workload: Workload) -> int:
    """Bytes per token that a rank hands to all-to-alls in a forward pass, and again in a backward pass: queries and
    results of all heads, keys and values of K heads or, repeated, one for each rank; 0 without sequence parallelism.
    """
    ranks = workload.sequence_parallel_size
    if ranks == 1:
        return 0
    heads = 2 * attention.heads + 2 * max(attention.kv_heads, ranks)
    return workload.weight_bytes * heads * attention.head_dim


def block_weight_bytes(model: ModelShape, block: Block, workload: Workload) -> tuple[float, float]:
    """Bytes of one layer's forward and backward pass over its weights, besides matrix products: quantized ones are
    unpacked, and every tile of a feed-forward but the first adds to their gradients."""
    if workload.method != "full":
        weights = sum(tensor.numel for tensor in block.tensors if quantized(tensor, workload))
        if workload.quantization == "int8":  # which products take as it is; their derivative unpacks it
            return 0.0, float(INT8_UNPACK_BYTES * weights)
        return float(UNPACK_BYTES * weights), float(UNPACK_BYTES * weights)
    if workload.mlp != "tiled" or block.feed_forward.experts:
        return 0.0, 0.0
    weights = sum(tensor.numel for tensor in block.tensors if tensor.role == "feed_forward")
    return 0.0, float((mlp_tiles(model, workload) - 1) * SUMMED_PASSES * weights * workload.weight_bytes)


def loss_bytes(model: ModelShape, workload: Workload, micro_batch: int) -> tuple[float, float]:
    """Forward and backward bytes of the loss over the vocabulary; (0, 0) for a classification head."""
    if model.vocab_size == 0 or model.num_labels:
        return 0.0, 0.0
    logits = micro_batch * workload.seq_len * model.vocab_size
    forward, backward = LOGIT_BYTES[workload.loss]
    uncast = model.model_type == "gpt2" and workload.software.transformers < (4, 48) and workload.weight_bytes == 2
    if uncast and workload.loss == "standard":
        forward, backward = UNCAST_LOGIT_BYTES
    if model.logit_softcap and workload.loss in ("standard", "chunked"):
        forward, backward = (
            forward + SOFTCAP_PASSES[0] * workload.weight_bytes,
            backward + SOFTCAP_PASSES[1] * workload.weight_bytes,
        )
    return float(forward * logits), float(backward * logits)


FOLLOWED_LAYERS = 32
"""Layers whose prefetches are followed at most: they repeat."""

PREFETCHES = 3
"""Prefetches while a tensor is in use: modules without tensors prefetch too."""


def put_together(tensors: TensorSet, plan: Plan) -> tuple[float, float]:
    """The parts of what stage 3 gathers in a forward and a backward pass that arrive together with others, in the order
    of the ranks, and are put together by a copy. A tensor that travels alone is its own buffer (deepspeed 0.19.8
    partitioned_param_coordinator.py `_fetch_sub_module_impl`)."""
    threshold, prefetch = plan.stage3_param_persistence_threshold, plan.stage3_prefetch_bucket_size
    return _put_together(tensors, threshold, plan.stage3_max_live_parameters, prefetch, plan.gradient_checkpointing)


@lru_cache(maxsize=256)
def _put_together(
    tensors: TensorSet, threshold: int, max_live: int, prefetch: int, recomputes: bool
) -> tuple[float, float]:
    layer = [numel for numel in tensors.layer_tensors if numel > threshold]
    everything = [numel for numel in tensors.frozen + tensors.trainable if numel > threshold]
    if sum(everything) <= max_live:
        uses = [(number, numel, False) for number, numel in enumerate(everything)]
        together = _together(uses, max_live, prefetch)
        return together, together
    layers, size = range(min(FOLLOWED_LAYERS, tensors.model.num_layers)), len(layer)
    in_turn = [(index * size + at, layer[at]) for index in layers for at in range(size)]
    forward = [(-1, tensors.embedding, True), *((number, numel, True) for number, numel in in_turn)]
    backward = [(-1, tensors.head, True)]
    for index in layers:
        own = in_turn[index * size : (index + 1) * size]
        backward += [(number, numel, False) for number, numel in own] if recomputes else []
        backward += [(number, numel, True) for number, numel in reversed(own)]
    return _together(forward, max_live, prefetch), _together(backward, max_live, prefetch)


def _together(uses: Sequence[tuple[int, int, bool]], max_live: int, prefetch: int) -> float:
    """The part of the elements that is prefetched in groups of several.

    A prefetch takes tensors until it has as many elements as there is room for, at most a bucket.

    uses: what modules use in turn: the tensor's number, its elements, and whether it is released then.
    """
    available: set[int] = set()
    live = ahead = gathered = together = 0
    for now, (tensor, numel, released) in enumerate(uses):
        if tensor not in available:
            available.add(tensor)
            live, gathered = live + numel, gathered + numel
        ahead = max(ahead, now + 1)
        for _ in range(PREFETCHES):
            room, group, count = min(max_live - live, prefetch), 0, 0
            if room <= 0 or ahead == len(uses):
                break
            while ahead < len(uses) and group < room:
                following, size, _ = uses[ahead]
                ahead += 1
                if following not in available:
                    available.add(following)
                    group, count = group + size, count + 1
            live, gathered = live + group, gathered + group
            together += group if count > 1 else 0
        if released:
            available.remove(tensor)
            live -= numel
    return together / gathered if gathered else 0.0


def reduced_passes(tensors: TensorSet, plan: Plan, ranks: int) -> float:
    """Times that an element of a gradient crosses memory on its way into stage 3's reduction.

    Divided by the ranks: 2. Into the bucket: 2, but for a tensor that is larger than it. Put together with others of
    the bucket, or padded: 2. Source: deepspeed 0.19.8 stage3.py `reduce_independent_p_g_buckets_and_remove_grads`,
    `__add_grad_to_ipg_bucket`, coalesced_collectives.py `reduce_scatter_coalesced`.
    """
    return _reduced_passes(tensors, plan.reduce_bucket_size, ranks)


@lru_cache(maxsize=256)
def _reduced_passes(tensors: TensorSet, bucket_size: int, ranks: int) -> float:
    buckets: list[list[int]] = [[]]
    moved = filled = 0
    for numel in reversed(tensors.trainable):
        if filled and filled + numel > bucket_size:
            buckets.append([])
            filled = 0
        buckets[-1].append(numel)
        filled += numel
        moved += 2 * numel if numel <= bucket_size else 0
    for bucket in buckets:
        alone = len(bucket) == 1 and bucket[0] % ranks == 0
        moved += (2 if alone else 4) * sum(bucket)
    return moved / max(1, tensors.trainable_numel)
