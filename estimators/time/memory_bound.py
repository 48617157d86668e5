"""Bytes that a micro batch moves through GPU memory outside its matrix products.

Eager PyTorch runs these operations one kernel at a time: each reads its inputs from memory and writes its result back.
With e bytes an element (2 in bf16), forward, per token, H the hidden width and F the width that a token passes in the
feed-forward:

    RMSNorm, as transformers writes it (to fp32, square, mean, scale, back, weight)    `NORM_BYTES` H
    LayerNorm, one fused kernel                                                       2 e H
    residual sum                                                                      3 e H, twice
    rotary embedding (two products, negate, concatenate, sum) of queries and keys      10.25 e (A + K) d
    heads put back side by side after attention                                        2 e A dv
    silu(gate) * up                                                                    5 e F
    Gated DeltaNet: convolution and silu                                               4 e (2 K d + A dv)
      norm and gate of its values                                        (`NORM_BYTES` + 3 e) A dv
    gelu, relu                                                                         2 e F
    tanh approximations written out in Python (`gelu_new`)                             18 e F
    dropout of probability above 0                                                     (2 e + 1) H, twice
    dispatching a token to k experts and summing them up                               7 e k H, router in fp32
    eager attention                                                            `score_bytes` per pair and head
    a LoRA adapter: scaled output, sum; a = e, or 4 where the adapter stays in fp32      (3 a + 2 e) out
      input and sum cast there and back                                                 (e + a) (in + out)
      dropout of the input                                                              (2 a + 1) in

The backward pass of an operation that saves its inputs reads them and the gradient and writes a gradient for each
input: 3 e H for a LayerNorm, 14.25 e (A + K) d for the rotary embedding, 9 e F for silu(gate) * up (13 where one
product gives both and their gradients are put side by side), 3 e F for gelu, 28 e F for `gelu_new`. One that saves
nothing (a sum, a copy, dropout, all of an adapter but its products) moves the gradient once, or adds up those of two
uses: as many bytes as forward. All are counted in what torch 2.13 dispatches for the modules of transformers 5.23
(`tests/estimators/test_memory_bound.py`).

With fused kernels (`Workload.kernels`) a norm takes 2 e H, the rotary embedding 2 e (A + K) d and the gated activation
3 e F. Some operations move weights, whatever the tokens:

    W + B A where LoRA folds an adapter into fused experts: W read, checked and used   2 e    (forward only)
    unpacking a 4-bit weight, as slow as moving                                        UNPACK_BYTES

The rest of such a fold is a product of its own (`flops.py`, rule 3).
"""

from __future__ import annotations

from ..memory.activations.layer_variants import layer_variant
from ..models.four_bits import quantized
from ..models.lora import adapters
from ..models.model_shape import Attention, Block, ModelShape, Tensor
from ..tiles import mlp_tiles
from ..workload import Workload

FUSED_BACKWARD = 2.0
"""Backward bytes of a fused kernel that saves its inputs for one forward byte."""

NORM_BYTES = {
    "rms": (36, 92, 8),
    "gemma": (40, 104, 16),
    "rms in fp32": (28, 92, 16),
}
"""Bytes per element of an RMSNorm written out in torch: forward, backward, and how many of the latter a frozen weight
saves. Gemma's multiplies by the weight in fp32."""

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

DeepSpeed (0.19.8) reads and writes it thrice: into the bucket, divided by the ranks, and put together with those of its
rank (stage_1_and_2.py `average_tensor`, `allreduce_bucket`; stage3.py `__add_grad_to_ipg_bucket`,
coalesced_collectives.py `reduce_scatter_coalesced`). FSDP's are parts of one tensor.
"""

GATHERED_PASSES = 2
"""Times that a weight crosses memory after stage 3 has gathered it: the ranks' parts are put together
(partition_parameters.py `AllGatherCoalescedHandle.wait`). FSDP gathers in place."""

DEQUANTIZED_BYTES, RECAST_BYTES = 1 + 2, 2 + 2
"""Bytes that cross memory for each gathered element when it comes in 8 bits: read and written in fp16, and again where
the model is in bf16 (deepspeed 0.19.8 partition_parameters.py `AllGatherCoalescedHandle.wait`). Quantizing, which each
rank does to its own shard, is left out."""

QUANTIZED_GRADIENT_BYTES = 4 + 2.5 + 0.5
"""Bytes that cross memory for each element of a gradient on its way out in 4 bits: into the bucket, read in fp16 and
written, read by the ranks of the node, which write 1/L of it (stage3.py `__add_grad_to_ipg_bucket`,
coalesced_collectives.py `all_to_all_quant_reduce`). In bf16 `RECAST_BYTES` come before it."""

UNPACK_BYTES = 9
"""Bytes whose transfer takes as long as unpacking one NF4 weight.

litgpt's resource table (tutorials/resource-tables.md, A100-40GB, micro batch 1): NF4 adds 79 ms to an iteration of
Llama-2-7B and 191 ms to one of 13B, two unpackings each: 6 to 7 ps a weight at 1.3 TB/s.
"""

DISPATCH_PASSES, SPREAD_DISPATCH_PASSES = 7, 15
"""Times that the k copies of a token are read or written between router and sum. Where experts are spread over ranks:
sorted 2, padded by expert 2, back in order 2, put into zeros 3, weighted in fp32 3, summed up from fp32 2, the
all-to-alls' own 1 (deepspeed 0.19.8 module_inject/auto_ep_layer.py `_forward`, `combine_from_routed`)."""

EXCHANGE_COPIES = 2
"""Times that Ulysses copies what an all-to-all takes and gives: heads are put in front before it and behind after it
(deepspeed 0.19.8 ulysses_sp.py `_combine_local_sequences`, `_partition_global_sequence`)."""


def exchanged_bytes(attention: Attention, workload: Workload) -> int:
    """Bytes per token that a rank hands to all-to-alls in a forward pass, and again in a backward pass: queries and
    results of all heads, keys and values of K heads or, repeated, one for each rank; 0 without sequence parallelism.
    """
    ranks = workload.sequence_parallel_size
    if ranks == 1:
        return 0
    heads = 2 * attention.heads + 2 * max(attention.kv_heads, ranks)
    return workload.weight_bytes * heads * attention.head_dim


_WRITTEN_OUT = ("gelu_new", "gelu_fast", "gelu_python", "quick_gelu")


def block_bytes(model: ModelShape, block: Block, workload: Workload, micro_batch: int) -> tuple[float, float]:
    """Bytes of one layer's forward and backward pass over its activations."""
    fused = workload.kernels != "torch"
    encoder, stream = model.encoder_len(workload.seq_len), model.stream_len(block, workload.seq_len)
    tokens, element = micro_batch * stream, workload.weight_bytes
    hidden, feed_forward = model.stream_width(block), block.feed_forward

    norm_forward, norm_backward = norm_bytes(model, block.norm, workload)
    forward_only = float(tokens * norm_forward * hidden * block.norm_count)
    backward_only = float(tokens * norm_backward * hidden * block.norm_count)
    passing = float(tokens * 2 * 3 * element * hidden)
    if block.hidden_dropout:
        passing += tokens * 2 * (2 * element + 1) * hidden
    activated = _activation_passes(block, fused=fused)
    forward_only += tokens * activated[0] * element * feed_forward.active_hidden
    backward_only += tokens * activated[1] * element * feed_forward.active_hidden
    repeated = _tile_bytes(model, block, workload, tokens) if workload.mlp == "tiled" else 0.0
    if feed_forward.experts:
        passes = DISPATCH_PASSES if feed_forward.autoep_size == 1 else SPREAD_DISPATCH_PASSES
        passing += tokens * (passes * element * feed_forward.experts_per_token * hidden + 20 * feed_forward.experts)
    for attention, keys in ((block.attention, stream), (block.cross_attention, encoder)):
        if attention is not None:
            before = _attention_bytes(model, attention, block, workload, fused=fused)
            forward_only += tokens * before[0]
            backward_only += tokens * before[1]
            passing += tokens * 2 * element * attention.heads * attention.v_head_dim
            passing += tokens * EXCHANGE_COPIES * 2 * exchanged_bytes(attention, workload)
            if workload.attention == "eager" and not attention.chunk:
                forward, backward = score_bytes(model, block, workload)
                forward_only += tokens * keys * attention.heads * forward
                backward_only += tokens * keys * attention.heads * backward
    chosen = adapters(model, workload)
    passing += tokens * sum(
        _adapter_bytes(tensor, workload) for tensor in block.tensors if tensor.linear and chosen.rank_of(tensor)
    )
    joined = tokens * 2 * element * model.hidden_size if repeated else 0
    return forward_only + passing + joined, backward_only + passing + repeated


def ends_bytes(model: ModelShape, workload: Workload, micro_batch: int) -> tuple[float, float]:
    """Bytes of a forward and a backward pass between the layers and the head: the last norm."""
    block = model.blocks[-1]
    elements = micro_batch * model.stream_len(block, workload.seq_len) * model.stream_width(block)
    forward, backward = norm_bytes(model, block.norm, workload)
    return float(forward * elements), float(backward * elements)


def _activation_passes(block: Block, *, fused: bool) -> tuple[float, float]:
    """Elements of the activation that cross memory for each that the feed-forward passes on, forward and backward."""
    if not block.feed_forward.gated:
        return (18, 28) if block.feed_forward.activation in _WRITTEN_OUT else (2, 3)
    if fused:
        return 3, 3 * FUSED_BACKWARD
    joined = any("gate_up_proj" in tensor.name for tensor in block.tensors)
    return 5, 13 if joined else 9


def _tile_bytes(model: ModelShape, block: Block, workload: Workload, tokens: int) -> float:
    """What a tiled feed-forward moves besides in its backward pass: its activation again, and the weights' gradients,
    which every tile but the first adds to. (The forward pass puts the results of its tiles together.)"""
    feed_forward, element = block.feed_forward, workload.weight_bytes
    if feed_forward.experts:
        return 0.0
    weights = sum(tensor.numel for tensor in block.tensors if tensor.role == "feed_forward")
    sums = (mlp_tiles(model, workload) - 1) * SUMMED_PASSES * weights if workload.method == "full" else 0
    return float(element * (tokens * 5 * feed_forward.active_hidden + sums))


def score_bytes(model: ModelShape, block: Block, workload: Workload) -> tuple[int, int]:
    """Forward and backward bytes of eager attention for each pair of a query and a key, per head.

    forward: scores written by their product e, scaled 2 e, masked 2 e, softmax 2 e, read by the next product e
    backward: their gradient written e, read twice 2 e, weights read for that of the values e, softmax 3 e, scaled 2 e

    A softmax in fp32 over 16-bit scores reads 2 and writes 4, and casts back 4 + 2; torch casts before it, 2 + 4, but
    for fp16, whose cast its kernel does itself (ATen/native/SoftMax.cpp). Dropout takes 2 e and a mask's
    byte more, each way. Source: transformers 5 `eager_attention_forward` of each family. Before, GPT-2 masked what is
    to come by a choice of its own, 2 e each way (4.12 to 4.57 modeling_gpt2.py `torch.where`).
    """
    e = workload.weight_bytes
    softmax_forward, softmax_backward = 2 * e, 3 * e
    if e == 2 and layer_variant(model.model_type, block).softmax_fp32:
        fused_cast = workload.precision == "fp16"
        softmax_forward = (2 + 4 if fused_cast else (2 + 4) + (4 + 4)) + (4 + 2)
        softmax_backward = (2 + 4) + (4 + 4 + 2 if fused_cast else (4 + 4 + 4) + (4 + 2))
    dropout = 2 * e + 1 if block.attention_dropout else 0
    forward, backward = 6 * e + softmax_forward + dropout, 6 * e + softmax_backward + dropout
    if model.model_type == "gpt2" and workload.software.transformers < (5, 0):
        forward, backward = forward + 2 * e, backward + 2 * e
    if model.model_type.startswith("deberta"):
        # Two biases by position: gathered by 8-byte indices, divided, added up and to the scores.
        forward, backward = forward + 2 * (8 + 4 * e) + 8 * e, backward + 2 * (8 + 4 * e)
    return forward, backward


def _adapter_bytes(tensor: Tensor, workload: Workload) -> int:
    element = workload.weight_bytes
    own = 4 if workload.software.fp32_adapters else element
    size = (3 * own + 2 * element) * tensor.out_features
    if own != element:
        size += (element + own) * (tensor.in_features + tensor.out_features)
    if workload.lora_dropout:
        size += (2 * own + 1) * tensor.in_features
    return size


def block_weight_bytes(model: ModelShape, block: Block, workload: Workload) -> tuple[float, float]:
    """Bytes of one layer's forward and backward pass over its weights, besides matrix products."""
    if workload.method == "full":
        return 0.0, 0.0
    chosen = adapters(model, workload)
    unpacked = UNPACK_BYTES * sum(tensor.numel for tensor in block.tensors if quantized(tensor, workload))
    folded = 2 * workload.weight_bytes * sum(tensor.numel for tensor in block.tensors if chosen.folds(tensor))
    return float(unpacked + folded), float(unpacked)


def norm_bytes(model: ModelShape, kind: str, workload: Workload) -> tuple[float, float]:
    """Forward and backward bytes of a norm per element."""
    element = workload.weight_bytes
    if kind == "layer":
        return 2 * element, 3 * element
    if workload.kernels != "torch":
        return 2 * element, 2 * element * FUSED_BACKWARD
    written = "rms in fp32" if element == 4 else "gemma" if model.model_type.startswith("gemma") else "rms"
    forward, backward, of_weight = NORM_BYTES[written]
    return forward, backward if workload.method == "full" else backward - of_weight


def _attention_bytes(
    model: ModelShape, attention: Attention, block: Block, workload: Workload, *, fused: bool
) -> tuple[float, float]:
    """Forward and backward bytes per token of what stands before attention."""
    element, heads = workload.weight_bytes, attention.heads + attention.kv_heads
    if attention.chunk:  # the convolution and its activation, each read and written; the gated norm
        values = attention.heads * attention.v_head_dim
        convolved = 4 * element * (2 * attention.kv_heads * attention.head_dim + values)
        forward, backward = norm_bytes(model, "rms", workload)
        gate = 3 * element
        return convolved + (forward + gate) * values, 2 * convolved + (backward + 2 * gate) * values
    forward = backward = 0.0
    if attention.rotary:
        rotated = element * heads * (attention.rope_head_dim or attention.head_dim)
        passes = (2, 2 * FUSED_BACKWARD) if fused else (10.25, 14.25)
        forward, backward = passes[0] * rotated, passes[1] * rotated
    if attention.qk_norm:
        normed = heads * attention.head_dim
        of_norm = norm_bytes(model, block.norm, workload)
        forward, backward = forward + of_norm[0] * normed, backward + of_norm[1] * normed
    return forward, backward


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
