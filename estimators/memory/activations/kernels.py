"""The attention kernel that runs, and the tensors that it saves for the backward pass."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from ...models.families import layer_variant
from ...models.model_shape import Attention, Block, ModelShape
from ...models.program import LayerVariant
from ...objectives import OBJECTIVES
from ...workload import Workload
from .ops import Ops
from .saved_tensors import Value

Kernel = Literal["flash", "efficient", "math", "eager"]

LARGEST_FUSED_HEAD = 256
"""Maximum head size of flash attention, in torch's kernel and in the flash-attn package."""

FIRST_BOOLEAN_MASKS = (4, 53)
"""First transformers version with boolean masks for torch's attention (masking_utils.py)."""

FIRST_GROUPED = (4, 54)
"""First transformers version that passes fewer key than query heads to torch's attention
(integrations/sdpa_attention.py)."""

ALWAYS_MASKED = ("llama", "gemma")
"""Model types that pass a mask even without padding (transformers 4.38 and 4.39 `_update_causal_mask`)."""


def kernel_and_mask(
    model: ModelShape, block: Block, workload: Workload, attention: Attention, compute_capability: float | None
) -> tuple[Kernel, bool]:
    """Return the kernel of a block's attention, and whether it receives an S x S mask. `attention` is the block's own,
    or one of its program."""
    variant, rows = layer_variant(model, block), model.stream_len(block, workload.seq_len)
    ranks, software = workload.sequence_parallel_size, workload.software
    attention = attention.rank_share(ranks)
    # A sequence shorter than the window needs no mask: transformers then passes None and `is_causal`.
    windowed = attention.window is not None and rows * ranks >= attention.window and not attention.chunked
    always_masked = model.model_type in ALWAYS_MASKED and (4, 38) <= software.transformers < (4, 40)
    # Answers differ in length. In 16 bits they count as full; in fp32 their mask keeps sdpa off the math path.
    answers = workload.precision == "fp32" and bool(OBJECTIVES[workload.objective].trainer)
    padded = software.padding_mask or always_masked or answers
    masked = windowed or variant.masked or padded
    repeated = windowed or padded or software.transformers < FIRST_GROUPED
    # transformers repeats keys and values itself where the kernel could not group them (`use_gqa_in_sdpa`).
    repeated |= max(attention.head_dim, attention.v_head_dim) > LARGEST_FUSED_HEAD
    kernel = attention_kernel(
        workload,
        attention,
        offered=variant.kernels,
        masked=masked,
        grouped=attention.kv_heads < attention.heads and not repeated,
        compute_capability=compute_capability,
    )
    # Eager attention always adds a causal mask to the scores; flash takes window and causality as arguments.
    return kernel, attention.causal if kernel == "eager" else masked and kernel != "flash"


@lru_cache(maxsize=64)
def offered_attention(model: ModelShape, workload: Workload) -> Workload:
    """Return the workload with the attention that runs: eager if the model's class does not offer the requested one. A
    "triton" kernel is part of the model's own code."""
    if workload.attention == "triton":
        return workload
    offered = all(workload.attention in layer_variant(model, block).kernels for block in model.blocks)
    return workload if offered else replace(workload, attention="eager")


def runs_eager(model: ModelShape, workload: Workload) -> bool:
    """Return whether attention runs eager, as asked or because the model's class offers no other. A class that offers
    it for some layers alone, beside linear attention, does not."""
    blocks = [block for block in model.blocks if block.attention.heads]
    if workload.attention == "triton" or model.module or not blocks:
        return False
    offers = any(workload.attention in layer_variant(model, block).kernels for block in blocks)
    return workload.attention == "eager" or not offers


def takes_flash_package(model: ModelShape) -> bool:
    """Return whether the flash-attn package computes a model's attention. For one with sinks, transformers takes
    kernels of the hub in its place (5.24 modeling_gpt_oss.py `_compatible_flash_implementations`)."""
    return not any(tensor.name.endswith("self_attn.sinks") for tensor, _ in model.tensor_counts)


def attention_kernel(
    workload: Workload,
    attention: Attention,
    *,
    offered: frozenset[str],
    masked: bool,
    grouped: bool,
    compute_capability: float | None,
) -> Kernel:
    """Return the kernel for `workload.attention`.

    offered: implementations that the transformers class supports; others become eager. masked: whether a mask is
    passed. grouped: whether fewer key than query heads reach the kernel.

    "triton" saves the same tensors as flash attention. "flash" is the flash-attn package (window and soft cap inside
    the kernel). "sdpa" follows torch's dispatcher. It selects flash for half precision from compute capability 8.0 on
    (or unknown), equal head widths up to 256 and no mask. Otherwise it selects the memory-efficient kernel, which
    before torch 2.14 takes no grouped heads, no bf16 before Ampere and only heads that are a multiple of 8 (half
    precision) or 4 (fp32). Otherwise it selects the math path, which holds the S x S scores. cuDNN's kernel, preferred
    on Hopper and Blackwell, saves the same tensors as flash.

    Source: torch 2.13 `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` (can_use_flash_attention,
    can_use_mem_efficient_attention); transformers 5.23 `integrations/sdpa_attention.py`; GQA in the memory-efficient
    kernel: pytorch pull request 191085.
    """
    if workload.attention == "triton":
        return "flash"
    if workload.attention == "eager" or workload.attention not in offered:
        return "eager"
    if workload.attention == "flash":
        return "flash"
    half = workload.precision != "fp32"
    ampere = compute_capability is None or compute_capability >= 8.0
    widths = (attention.head_dim, attention.v_head_dim)
    # DeepSeek's heads are 192 wide for queries and 128 for values, which flash accepts from Hopper to B200 only.
    hopper = compute_capability is not None and 9.0 <= compute_capability < 11.0
    equal = widths[0] == widths[1] or (hopper and widths == (192, 128))
    if half and ampere and not masked and equal and max(widths) <= LARGEST_FUSED_HEAD:
        return "flash"
    aligned = all(width % (8 if half else 4) == 0 for width in widths)
    if aligned and not grouped and (ampere or workload.precision != "bf16"):
        return "efficient"
    return "math"


def attend(
    ops: Ops,
    kernel: Kernel,
    variant: LayerVariant,
    attention: Attention,
    states: tuple[Value, Value, Value],
    *,
    mask: Value | None = None,
    bias: Value | None = None,
    dropout: bool = False,
) -> Value:
    """Return attention of queries to keys and values. Their heads are repeated if the kernel cannot group."""
    query, key, value = states
    heads, rows, keys = attention.heads, query.rows, key.rows
    out_width = heads * attention.v_head_dim
    groups = ops.workload.attention != "sdpa" or ops.workload.software.transformers >= FIRST_GROUPED
    if kernel == "flash" and groups:
        return _fused(ops, attention, states, out_width, lse_rows=rows)
    # `repeat_kv` expands and reshapes, which copies keys and values to the width of the queries.
    if key.width < heads * attention.head_dim:
        key = ops.new("repeated k", (key,), width=heads * attention.head_dim)
        value = ops.new("repeated v", (value,), width=out_width)
    if kernel == "flash":
        return _fused(ops, attention, (query, key, value), out_width, lse_rows=rows)
    if kernel == "efficient":
        # A boolean mask is converted to numbers, for every sample and in every layer.
        if mask is not None and ops.workload.software.transformers < FIRST_BOOLEAN_MASKS:
            bias = mask
        elif mask is not None:
            bias = ops.graph.tensor(rows, keys, ops.itemsize, "mask", needs_grad=False)
        return _fused(ops, attention, (query, key, value), out_width, lse_rows=-(-rows // 32) * 32, bias=bias)
    if kernel == "math":
        # torch's composite path: all tensors in fp32, with whole scores and their softmax.
        scaled, keyed, value = (ops.cast(part, 4) for part in (query, key, value))
        # torch's math path scales both operands by the root of the factor, for stability.
        scores = ops.product("scores", ops.scale(scaled), ops.scale(keyed), width=heads * keys)
        added = mask or bias
        if added is not None:
            scores = ops.graph.apply("scores", (scores, added), view=True)
        weights = _softmax(ops, scores, itemsize=4)
        output = ops.product("attention output", ops.dropout(weights, dropout), value, width=out_width)
        return ops.cast(output, query.itemsize)
    itemsize = query.itemsize
    raw = ops.product("scores", ops.new("q", (query,)), ops.new("k", (key,)), width=heads * keys)
    # `where` read and wrote the scores (transformers 4.12 to 4.57 modeling_gpt2.py).
    masks_with_where = variant.where_mask and ops.workload.software.transformers < (5, 0)
    extra_moves = 2 * ops.itemsize * raw.rows * raw.width * masks_with_where
    scores = ops.graph.apply("scores", (raw,), moves=(extra_moves, extra_moves))
    if attention.softcap:
        scores = ops.scale(ops.saves_output("soft cap", ops.scale(scores)))
    for addend in (bias, mask):
        scores = scores if addend is None else ops.add(scores, addend)
    # CUDA's softmax reads fp16 and writes fp32 by itself (ATen/native/SoftMax.cpp softmax).
    autocasts = ops.workload.autocasts
    if autocasts or (variant.softmax_fp32 and ops.workload.precision != "fp16"):
        scores = ops.cast(scores, 4)
    weights = _softmax(ops, scores, itemsize=4 if variant.softmax_fp32 or autocasts else scores.itemsize)
    weights = ops.dropout(ops.cast(weights, itemsize), dropout)
    return ops.product("attention output", weights, ops.new("v", (value,)), width=out_width)


def delta_rule(ops: Ops, attention: Attention, states: tuple[Value, Value, Value], beta: Value, decay: Value) -> Value:
    """Return the gated delta rule in fp32 by chunks (arXiv:2412.06464). The parts independent of other chunks are
    computed for all chunks at once, then a state of d x dv per head passes from chunk to chunk. Source: transformers
    5.23 qwen3_5/modeling_qwen3_5.py torch_chunk_gated_delta_rule."""
    graph, heads, chunk = ops.graph, attention.heads, attention.chunk
    chunks = -(-states[0].rows // chunk)
    rows, pairs = chunks * chunk, heads * chunk
    widths = (heads * attention.head_dim, heads * attention.head_dim, heads * attention.v_head_dim)

    def padded(value: Value, width: int) -> Value:
        return ops.new(value.storage.label, (value,), rows=rows, width=width)

    wide = []
    for state, width in zip(states, widths, strict=True):
        repeated = ops.new("repeated heads", (state,), width=width) if state.width < width else state
        wide.append(ops.cast(repeated, 4))
    query, key = (_normalized(ops, state, heads) for state in wide[:2])
    query = padded(ops.scale(query), query.width)
    key, value = padded(key, key.width), padded(wide[2], widths[2])
    beta, decay = padded(ops.cast(beta, 4), heads), padded(ops.scale(decay), heads)
    stepped, stepped_key = ops.multiply(value, beta, "stepped v"), ops.multiply(key, beta, "stepped k")
    decay = ops.scale(decay)
    between = ops.saves_output("pairwise decay", ops.scale(ops.new("pairwise decay", (decay,), width=pairs)))
    system = ops.multiply(ops.product("k k", stepped_key, key, width=pairs), between, "system")
    intra = ops.multiply(ops.product("q k", query, key, width=pairs), between, "scores")
    decayed_key = ops.multiply(stepped_key, ops.saves_output("decay", decay), "decayed k")
    new_value, old_key = (
        graph.apply("solved", (right, system), saves=(system,), saves_output=True) for right in (stepped, decayed_key)
    )
    query = ops.multiply(query, ops.saves_output("decay", decay), "decayed q")
    key = ops.multiply(key, ops.saves_output("decay", ops.scale(decay)), "decayed k")
    corrected = graph.tensor(rows, widths[2], 4, "corrected v")
    memory = graph.tensor(chunks, widths[0] * attention.v_head_dim, 4, "states of chunks")
    output = graph.apply(
        "delta output",
        (new_value, old_key, query, key, intra),
        width=widths[2],
        saves=(old_key, query, key, intra, corrected, memory),
        workspace=2 * max(new_value.size, query.size, intra.size),
    )
    return ops.new("delta output", (ops.cast(output, ops.itemsize),), rows=states[0].rows)


def _normalized(ops: Ops, value: Value, heads: int) -> Value:
    squares = ops.graph.apply("squares", (value,), saves=(value,), workspace=value.size)
    return ops.multiply(
        value, ops.saves_output("reciprocal length", ops.new("length", (squares,), width=heads)), "unit"
    )


def _fused(
    ops: Ops,
    attention: Attention,
    inputs: tuple[Value, ...],
    out_width: int,
    *,
    lse_rows: int,
    bias: Value | None = None,
) -> Value:
    """Return flash or memory-efficient attention, which saves queries, keys, values, the output and one fp32
    log-sum-exp per query. torch's flash pads heads to a multiple of 8, which copies them."""
    padding = -attention.head_dim % 8
    if padding and bias is None:
        inputs = tuple(
            ops.new("padded heads", (part,), width=part.width // attention.head_dim * (attention.head_dim + padding))
            for part in inputs
        )
    query, key, _ = inputs
    lse = ops.graph.tensor(lse_rows, attention.heads, 4, "log-sum-exp")
    workspace = backward_workspace(query, key, lse, out_width)
    biases = () if bias is None else (bias,)
    if bias is not None and bias.needs_grad:
        workspace += attention.heads * query.rows * key.rows * ops.itemsize
    return ops.graph.apply(
        "attention output",
        (*inputs, *biases),
        width=out_width,
        saves=(*inputs, lse, *biases),
        saves_output=True,
        workspace=workspace,
        product=True,
    )


def _softmax(ops: Ops, scores: Value, *, itemsize: int) -> Value:
    workspace = softmax_workspace(scores, itemsize)
    return ops.graph.apply("softmax", (scores,), itemsize=itemsize, saves_output=True, workspace=workspace)


def softmax_workspace(scores: Value, itemsize: int) -> int:
    """Return the bytes of the gradient times the result, which CUDA's backward pass makes first (torch 2.13
    aten/src/ATen/native/cuda/SoftMax.cu softmax_backward_cuda_out)."""
    return itemsize * scores.rows * scores.width


def backward_workspace(query: Value, key: Value, lse: Value, out_width: int) -> int:
    """Return the bytes of the backward kernel's workspace: the queries' gradient in fp32 and one number per row; with
    grouped heads also the gradients of keys and values for every query head. Source: FlashAttention 2
    `csrc/flash_attn/flash_api.cpp` (mha_bwd: dq_accum, softmax_d, dk_expanded, dv_expanded). The memory-efficient
    kernel's workspace is similar."""
    # With grouped heads every query head has a gradient of keys and values of its own until they are summed.
    expanded = key.rows * (query.width + out_width) * key.itemsize if key.width < query.width else 0
    return query.rows * query.width * 4 + lse.size + expanded
