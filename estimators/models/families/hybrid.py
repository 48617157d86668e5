"""Decoders that mix linear attention (Gated DeltaNet) with full attention: Qwen3.5 and Qwen3-Next."""

from __future__ import annotations

from ..model_shape import Attention
from .body import Body
from .decoder import AttentionPart, Dims, FeedForwardPart, Style, build, grouped_query
from .experts import mixture, qwen_sparse, routed
from .fields import MAX_HEADS, MAX_LAYERS, Fields
from .llama import biased
from .parts import linear, norm, parameter
from .vision_language import deep_tower, idle, part

CHUNK = 64
"""Tokens that linear attention takes at a time (transformers 5.23 `torch_chunk_gated_delta_rule`)."""


def qwen3_5_text(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=4, head_dim=256)
    projections = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    return build(c, dims, biased(c), attentions=_hybrid_layers(c, dims, projections))


def qwen3_5_moe_text(c: Fields) -> Body:
    # The class has no dense layer, and so needs no width for one.
    dims = Dims.read(c, num_key_value_heads=2, head_dim=256, intermediate_size=1)
    projections = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    sparse = _hybrid_experts(c, dims, count=256, chosen=8)
    return build(c, dims, biased(c), attentions=_hybrid_layers(c, dims, projections), sparse=sparse)


def qwen3_next(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=2, head_dim=256)
    attentions = _hybrid_layers(c, dims, ("in_proj_qkvz", "in_proj_ba"))
    sparse = _hybrid_experts(c, dims, count=512, chosen=10)
    return build(c, dims, biased(c), attentions=attentions, sparse=sparse, is_sparse=qwen_sparse(c, dims))


def qwen3_5(c: Fields) -> Body:
    text = qwen3_5_text(part(c, "text_config", "qwen3_5_text"))
    return idle(c, text, deep_tower(c, text), tied=False)


def qwen3_5_moe(c: Fields) -> Body:
    text = qwen3_5_moe_text(part(c, "text_config", "qwen3_5_moe_text"))
    return idle(c, text, deep_tower(c, text), tied=False)


def _hybrid_experts(c: Fields, dims: Dims, *, count: int, chosen: int) -> FeedForwardPart:
    width, shared = (c.size(f"{name}_intermediate_size", default=512) for name in ("moe", "shared_expert"))
    experts = routed(c, width, "num_experts", count=count, chosen=chosen, shared_hidden=shared)
    feed_forward, tensors = mixture(dims.hidden, experts, shared="shared_expert")
    return feed_forward, tensors + linear("mlp.shared_expert_gate", dims.hidden, 1, "router")


def _hybrid_layers(c: Fields, dims: Dims, projections: tuple[str, ...]) -> list[AttentionPart]:
    """Linear attention, and full attention in each `full_attention_interval`-th layer."""
    every = c.size("full_attention_interval", default=4, limit=MAX_LAYERS)
    kinds = c.per_layer("layer_types", dims.layers, ("linear_attention", "full_attention"))
    full = [
        (layer + 1) % every == 0 if kinds is None else kinds[layer] == "full_attention" for layer in range(dims.layers)
    ]
    parts = {True: _gated(c, dims), False: _delta_net(c, dims.hidden, projections)}
    return [parts[each] for each in full]


def _gated(c: Fields, dims: Dims) -> AttentionPart:
    """Grouped-query attention whose query projection gives a gate of the output besides."""
    bias, head_dim = c.flag("attention_bias", default=False), dims.head_dim
    attention, tensors = grouped_query(dims, Style(biases=(bias, bias, False), qk_norm="head"))
    wide = linear("self_attn.q_proj", dims.hidden, 2 * dims.heads * head_dim, "attention", bias=bias)
    return attention._replace(gated=True), wide + tensors[len(wide) :]


def _delta_net(c: Fields, hidden: int, projections: tuple[str, ...]) -> AttentionPart:
    """Gated DeltaNet (arXiv:2412.06464): projections, a convolution over the last tokens, and the delta rule.

    Its query and key heads are `kv_heads`, its value heads `heads`; each projection of the input is as wide as the
    letters of its name say: query, key, value, output gate z, step beta and decay alpha.
    """
    at = "linear_attn"
    heads = c.size("linear_num_value_heads", default=32, limit=MAX_HEADS)
    key_heads = c.size("linear_num_key_heads", default=16, limit=MAX_HEADS)
    c.divide("linear_num_value_heads", heads, "linear_num_key_heads", key_heads)
    key_dim, value_dim = (c.size(f"linear_{name}_head_dim", default=128) for name in ("key", "value"))
    widths = {"q": key_heads * key_dim, "k": key_heads * key_dim, "v": heads * value_dim, "z": heads * value_dim}
    widths |= {"b": heads, "a": heads}
    mixed = widths["q"] + widths["k"] + widths["v"]
    tensors = parameter(f"{at}.dt_bias", heads, role="attention") + parameter(f"{at}.A_log", heads, role="attention")
    kernel = c.size("linear_conv_kernel_dim", default=4)
    tensors += parameter(f"{at}.conv1d.weight", mixed, 1, kernel, role="attention")
    for name in projections:
        width = sum(widths[letter] for letter in name.removeprefix("in_proj_"))
        tensors += linear(f"{at}.{name}", hidden, width, "attention")
    tensors += norm(f"{at}.norm", value_dim) + linear(f"{at}.out_proj", widths["v"], hidden, "attention")
    attention = Attention(
        heads=heads, kv_heads=key_heads, head_dim=key_dim, v_head_dim=value_dim, rotary=False, chunk=CHUNK
    )
    return attention, tensors
