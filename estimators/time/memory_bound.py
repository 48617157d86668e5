"""Bytes that a step moves through GPU memory outside its matrix products: weights, loss, gradients, optimizer.

Bytes between the operations of layers are recorded (`memory.activations.passes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..memory.activations.loss import mlp_tiles
from ..memory.trainable import TensorSet
from ..models.lora import quantized
from ..models.model_shape import Attention, Block, ModelShape
from ..objectives import LOSSES
from ..plan import Plan
from ..workload import Workload

UNCAST_LOGIT_BYTES = (8, 16)
"""The standard loss of GPT-2 before transformers 4.48, in 16 bits: logits without the last token copied (2 + 2),
log-softmax (2 + 2); backward softmax gradient (2 + 2 + 2), put back among zeros (2 + 2 + 2), its read by the head's
products (2 + 2). Source: transformers 4.12 and 4.47 modeling_gpt2.py."""

SOFTCAP_PASSES = (6, 7)
"""Passes of soft-capped logits through memory, forward and backward: divided, tanh, multiplied, each read and written;
backward the tanh's result is read too (transformers 5.23 modeling_gemma2.py)."""

OPTIMIZER_PASSES_BYTES, LOOP_PASSES_BYTES = (50, 60, 60, 56), 36
"""Bytes per updated parameter of a step on the GPU, without the optimizer's states (read and written once each): with
DeepSpeed's engine by stage, and with a loop in plain PyTorch.

Counted in schedules of dry runs of deepspeed 0.19.8, the same for six families: the optimizer's kernel 12 (master,
gradient); casting, norm, unscaling, clipping and check of the gradient; writing the 16-bit weight. A loop casts the
gradient 2 + 4, computes its norm 4, clips it 8, steps 12 and writes the weight 6.
"""

STEPPED_BYTES = 26
"""The part of `OPTIMIZER_PASSES_BYTES` after the gradient's norm, for which the host waits: clipping 8, the optimizer's
kernel 12, the weight 6."""

BF16_MASTERS_SAVE_BYTES = 18
"""Bytes per updated parameter that bf16 masters save, without states: the optimizer's kernel 6, the cast 6, clipping 4,
the weight 2. Counted like `OPTIMIZER_PASSES_BYTES`."""

KEPT_STEP_BYTES = 86
"""Bytes per parameter of the GPU's part of a partly offloaded step, by torch's AdamW (torch 2.13 optim/adam.py
`_multi_tensor_adam`, by kernel: 12 + 8 + 12 + 8 + 8 + 8 + 16), unscaling and clipping 8, the 16-bit weight 6."""

KEPT_BF16_STEP_BYTES = 44
"""`KEPT_STEP_BYTES` with masters and states in bf16: 36, 4 and 4."""

AUTOCAST_BYTES = 4 + 2
"""Bytes per weight for autocast's cast in each forward pass, and as much to cast its gradient back."""

COPIED_PASSES, FSDP_COPIED_PASSES, SUMMED_PASSES = 6, 2, 3
"""Memory passes of a gradient's element when it is reduced, or added to the previous one. DeepSpeed 0.19.8 below stage
3: copied into the bucket, divided, concatenated (stage_1_and_2.py `average_tensor`, `allreduce_bucket`), each
read and written; stage 3: `reduced_passes`. FSDP's gradients are parts of one tensor."""

GATHERED_PASSES = 2
"""Passes through memory of a weight that stage 3 gathers together with others (`concatenated_shares`): a copy
concatenates the ranks' parts (partition_parameters.py `AllGatherCoalescedHandle.wait`). FSDP gathers in place."""

DEQUANTIZED_BYTES, RECAST_BYTES = 1 + 2, 2 + 2
"""Bytes per gathered element in 8 bits: read and written in fp16, and again for a model in bf16 (deepspeed 0.19.8
partition_parameters.py `AllGatherCoalescedHandle.wait`). Quantization of a rank's own shard is not counted."""

RECAST_FP32_BYTES = 2 + 4 + 4 + 2
"""Bytes per element of a 16-bit gradient that is reduced in fp32: cast, and copied back."""

QUANTIZED_GRADIENT_BYTES = 4 + 2.5 + 0.5
"""Bytes per element of a gradient that is sent in 4 bits: into the bucket, read in fp16 and written, read by the ranks
of the node, which write 1/L of it (stage3.py `__add_grad_to_ipg_bucket`, coalesced_collectives.py
`all_to_all_quant_reduce`). bf16 adds `RECAST_BYTES`."""


class Dequantization(NamedTuple):
    """Work of a quantized linear layer in addition to its product."""

    forward_bytes: float
    """Bytes per weight in the forward pass."""
    backward_bytes: float
    operations: int
    """Operations of the forward pass, each one kernel."""
    backward_operations: int


DEQUANTIZATION: Mapping[str, Dequantization] = {
    "nf4": Dequantization(7, 7, 1, 1),
    "gptq": Dequantization(7, 7, 1, 1),
    "gptq by torch": Dequantization(16.5, 0, 9, 0),
    "int8": Dequantization(0, 1 + 2 + 2 + 2, 8, 1),
}
"""Unpacking by format. NF4: the bytes that memory moves in the time of one unpacking. litgpt
tutorials/resource-tables.md (A100-40GB, micro batch 1): it adds 79 ms to an iteration of Llama-2-7B and 191 ms to one
of 13B, two unpackings each: 6.0 and 7.4 ps per weight.
GPTQ with one kernel is assumed to cost as much as NF4. With torch's operations: shift to int32 (0.5 + 4), cast to int8
(4 + 1), mask in place 2, subtract the zero 2, multiply by the scale (1 + 2), and four operations on the zeros; autograd
keeps the result (auto-gptq 0.7 qlinear_cuda_old.py, above 128 tokens).
int8: products use the weight directly, after a cast, a comparison (four), quantization, scaling and a cast back. The
backward pass reads it, writes 16 bits, and reads and writes them to scale (bitsandbytes 0.49 autograd/_functions.py
MatMul8bitLt)."""

FIRST_WITH_GPTQMODEL = (4, 49)
"""First transformers that loads GPTQ weights with gptqmodel, which compiles the unpacking into a kernel. Earlier
versions use auto-gptq, which trains with torch's operations."""


def dequantization(workload: Workload) -> Dequantization:
    kind: str = workload.quantization
    if kind == "gptq" and workload.software.transformers < FIRST_WITH_GPTQMODEL:
        kind = "gptq by torch"
    return DEQUANTIZATION[kind]


def exchanged_bytes(attention: Attention, workload: Workload) -> int:
    """Return the bytes per token that a rank passes to all-to-alls in one pass: queries and results of all heads, keys
    and values of K heads or, if repeated, one head per rank; 0 without sequence parallelism."""
    ranks = workload.sequence_parallel_size
    if ranks == 1:
        return 0
    heads = 2 * attention.heads + 2 * max(attention.kv_heads, ranks)
    return workload.weight_bytes * heads * attention.head_dim


def block_weight_bytes(model: ModelShape, block: Block, workload: Workload) -> tuple[float, float]:
    """Return the forward and backward bytes of one layer's weights outside products: unpacking of quantized weights,
    casts of autocast, and gradient sums of every tile of a feed-forward except the first."""
    if workload.method != "full":
        weights = sum(tensor.numel for tensor in block.tensors if quantized(tensor, workload))
        kind = dequantization(workload)
        return kind.forward_bytes * weights, kind.backward_bytes * weights
    if workload.autocasts:
        casts = AUTOCAST_BYTES * sum(tensor.numel for tensor in block.tensors if len(tensor.shape) > 1)
        return float(casts), float(casts)
    if workload.mlp != "tiled" or block.feed_forward.experts:
        return 0.0, 0.0
    weights = sum(tensor.numel for tensor in block.tensors if tensor.role == "feed_forward")
    # Autograd adds each tile's gradient of the whole weight to the sum of the earlier ones.
    return 0.0, float((mlp_tiles(model, workload) - 1) * SUMMED_PASSES * weights * workload.weight_bytes)


def loss_bytes(model: ModelShape, workload: Workload, micro_batch: int) -> tuple[float, float]:
    """Return the forward and backward bytes of the loss over the vocabulary; (0, 0) for a classification head."""
    if model.vocab_size == 0 or (model.num_labels and workload.loss != "value-head"):
        return 0.0, 0.0
    logits = micro_batch * workload.scored_len * model.vocab_size
    forward, backward = LOSSES[workload.loss].logit_bytes
    uncast = model.model_type == "gpt2" and workload.software.transformers < (4, 48) and workload.weight_bytes == 2
    # GPT-2's head computed its loss in the model's own type, without an fp32 copy of the logits.
    if uncast and workload.loss == "standard":
        forward, backward = UNCAST_LOGIT_BYTES
    if model.logit_softcap and workload.loss in ("standard", "chunked", "chunked-softmax"):
        forward, backward = (
            forward + SOFTCAP_PASSES[0] * workload.weight_bytes,
            backward + SOFTCAP_PASSES[1] * workload.weight_bytes,
        )
    return float(forward * logits), float(backward * logits)


SIMULATED_LAYERS = 32
"""Number of layers whose prefetches are simulated; the others repeat the pattern."""

PREFETCHES = 3
"""Prefetches while a tensor is in use. Modules without tensors prefetch too."""


def concatenated_shares(tensors: TensorSet, plan: Plan) -> tuple[float, float]:
    """Return the shares of the weights gathered in a forward and a backward pass of stage 3 that arrive with others and
    are concatenated by a copy. A tensor gathered alone needs no copy (deepspeed 0.19.8
    partitioned_param_coordinator.py `_fetch_sub_module_impl`)."""
    threshold, prefetch = plan.stage3_param_persistence_threshold, plan.stage3_prefetch_bucket_size
    return _concatenated_shares(
        tensors, threshold, plan.stage3_max_live_parameters, prefetch, plan.gradient_checkpointing
    )


@lru_cache(maxsize=256)
def _concatenated_shares(
    tensors: TensorSet, threshold: int, max_live: int, prefetch: int, recomputes: bool
) -> tuple[float, float]:
    layer = [numel for numel in tensors.layer_tensors if numel > threshold]
    everything = [numel for numel in tensors.frozen + tensors.trainable if numel > threshold]
    # Then the first forward pass prefetches the whole model and nothing is released before the loss.
    if sum(everything) <= max_live:
        uses = [(number, numel, False) for number, numel in enumerate(everything)]
        share = _concatenated_share(uses, max_live, prefetch)
        return share, share
    layers, size = range(min(SIMULATED_LAYERS, tensors.model.num_layers)), len(layer)
    in_turn = [(index * size + at, layer[at]) for index in layers for at in range(size)]
    forward = [(-1, tensors.embedding, True), *((number, numel, True) for number, numel in in_turn)]
    backward = [(-1, tensors.head, True)]
    for index in layers:
        own = in_turn[index * size : (index + 1) * size]
        backward += [(number, numel, False) for number, numel in own] if recomputes else []
        backward += [(number, numel, True) for number, numel in reversed(own)]
    return _concatenated_share(forward, max_live, prefetch), _concatenated_share(backward, max_live, prefetch)


def _concatenated_share(uses: Sequence[tuple[int, int, bool]], max_live: int, prefetch: int) -> float:
    """Return the share of the elements that is prefetched in groups of several tensors.

    A prefetch takes tensors until it has as many elements as there is room for, at most a bucket. uses: for each use
    by a module, the tensor's number, its elements, and whether it is released afterwards.
    """
    available: set[int] = set()
    live = ahead = gathered = concatenated = 0
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
            # A single tensor is gathered into its own memory.
            concatenated += group if count > 1 else 0
        if released:
            available.remove(tensor)
            live -= numel
    return concatenated / gathered if gathered else 0.0


@lru_cache(maxsize=256)
def reduced_passes(tensors: TensorSet, bucket_size: int, ranks: int) -> float:
    """Return the memory passes of a gradient's element before stage 3's reduction: division by the ranks 2; copy into
    the bucket 2, unless it is larger; concatenation with others of the bucket, or padding, 2. Source: deepspeed 0.19.8
    stage3.py `reduce_independent_p_g_buckets_and_remove_grads`, `__add_grad_to_ipg_bucket`, coalesced_collectives.py
    `reduce_scatter_coalesced`."""
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
