"""Decoders with mixtures of experts, latent attention (DeepSeek) or linear attention (Qwen3.5, Qwen3-Next).

The experts of a layer are fused into three-dimensional tensors, as in transformers 5. They are not `nn.Linear`, so
LoRA's "all-linear" skips them, and ZeRO-3 gathers all experts of a layer at once.
"""

from __future__ import annotations

from .body import (
    BIASED,
    AttentionPart,
    Body,
    Dims,
    FeedForwardPart,
    Style,
    Tensors,
    build,
    feed_forward_linears,
    grouped_query,
    linear,
    norm,
    parameter,
    switched_window,
    window_size,
    windows,
)
from .config_fields import MAX_HEADS, MAX_LAYERS, Fields
from .dense_decoders import LLAMA
from .model_shape import Attention, FeedForward
from .vision_language import add_idle_tower, deepstack, sub_config


def mixture(
    hidden: int, experts: FeedForward, *, shared: str = "shared_experts", shared_bias: bool = False
) -> FeedForwardPart:
    """Return a router, E fused experts and, if `shared_hidden` is set, a dense shared expert for every token."""
    count, width = experts.experts, experts.hidden
    tensors = (
        parameter("mlp.gate.weight", count, hidden, role="router")
        + parameter("mlp.experts.gate_up_proj", count, 2 * width, hidden, role="expert")
        + parameter("mlp.experts.down_proj", count, hidden, width, role="expert")
    )
    if experts.shared_hidden:
        everyone = FeedForward(hidden=experts.shared_hidden, gated=True, activation=experts.activation)
        names = tuple(f"mlp.{shared}.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
        tensors += feed_forward_linears(everyone, hidden, names, bias=shared_bias)
    return experts, tensors


def routed_experts(
    c: Fields, width: int, *count_names: str, count: int, chosen: int | None, shared_hidden: int = 0
) -> FeedForward:
    """Return experts of this width. Their number is read from one of `count_names`; `count`, `chosen`: defaults."""
    feed_forward = FeedForward(
        hidden=width,
        gated=True,
        activation=c.text("hidden_act", default="silu"),
        experts=c.size(*count_names, default=count),
        experts_per_token=c.size("num_experts_per_tok", default=chosen),
        shared_hidden=shared_hidden,
    )
    if (per_token := feed_forward.experts_per_token) > feed_forward.experts:
        raise c.error(f"num_experts_per_tok {per_token} is more than the {feed_forward.experts} experts")
    return feed_forward


def mixtral(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=8)
    experts = routed_experts(c, dims.feed_forward, "num_local_experts", "num_experts", count=8, chosen=2)
    return build(c, dims, LLAMA, sparse=mixture(dims.hidden, experts), window=(window_size(c),) * dims.layers)


def olmoe(c: Fields) -> Body:
    dims = Dims.read(c)
    experts = routed_experts(c, dims.feed_forward, "num_experts", "num_local_experts", count=64, chosen=8)
    return build(c, dims, Style(qk_norm="all", biases=BIASED), sparse=mixture(dims.hidden, experts))


def gated_mixture(c: Fields, dims: Dims, *, width: int, shared: int, count: int, chosen: int) -> FeedForwardPart:
    """Return routed experts and a shared expert, scaled by a gate per token. The arguments are the defaults."""
    width = c.size("moe_intermediate_size", default=width)
    shared = c.size("shared_expert_intermediate_size", default=shared)
    experts = routed_experts(c, width, "num_experts", count=count, chosen=chosen, shared_hidden=shared)
    feed_forward, tensors = mixture(dims.hidden, experts, shared="shared_expert")
    return feed_forward, tensors + linear("mlp.shared_expert_gate", dims.hidden, 1, "router")


def qwen2_moe(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=16)
    last = c.count("max_window_layers", default=28, limit=MAX_LAYERS)
    return build(
        c,
        dims,
        Style(biases=(("qkv_bias", True), False, False)),
        sparse=gated_mixture(c, dims, width=1408, shared=5632, count=60, chosen=4),
        is_sparse=qwen_sparse(c, dims),
        window=windows(c, dims.layers, switched_window(c), lambda layer: layer % 2 == 0 and layer < last),
    )


def qwen3_vl_moe(c: Fields) -> Body:
    text = sub_config(c, "text_config", "qwen3_vl_moe_text")
    return deepstack(c, qwen3_moe(text, key_value_heads=16, width=1408, count=60, chosen=4))


def qwen3_moe(c: Fields, *, key_value_heads: int = 4, width: int = 768, count: int = 128, chosen: int = 8) -> Body:
    """Qwen3-MoE and similar models. The arguments are the class's defaults."""
    dims = Dims.read(c, num_key_value_heads=key_value_heads)
    width = c.size("moe_intermediate_size", default=width)
    experts = routed_experts(c, width, "num_experts", "num_local_experts", count=count, chosen=chosen)
    return build(
        c,
        dims,
        Style(qk_norm="head", biases=BIASED),
        sparse=mixture(dims.hidden, experts),
        is_sparse=qwen_sparse(c, dims),
        window=(switched_window(c),) * dims.layers,
    )


def qwen_sparse(c: Fields, dims: Dims) -> list[bool]:
    """Return whether each layer has experts: every `decoder_sparse_step`-th, except those in `mlp_only_layers`."""
    step, plain = c.size("decoder_sparse_step", default=1, limit=MAX_LAYERS), c.items("mlp_only_layers") or []
    return [(layer + 1) % step == 0 and layer not in plain for layer in range(dims.layers)]


def gpt_oss(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=8, head_dim=64)
    bias = ("attention_bias", True)
    style = Style(biases=(bias, bias, False))
    attention, projections = grouped_query(c, dims, style)
    sinks = parameter("self_attn.sinks", dims.heads, role="attention")
    experts = routed_experts(c, dims.feed_forward, "num_local_experts", "num_experts", count=128, chosen=4)
    # gpt-oss stores its experts transposed, as (experts, in, out), with biases.
    count, hidden, width = experts.experts, dims.hidden, experts.hidden
    weights = (
        parameter("mlp.router.weight", count, hidden, role="router")
        + parameter("mlp.router.bias", count, role="router")
        + parameter("mlp.experts.gate_up_proj", count, hidden, 2 * width, role="expert", transposed=True)
        + parameter("mlp.experts.gate_up_proj_bias", count, 2 * width, role="expert")
        + parameter("mlp.experts.down_proj", count, width, hidden, role="expert", transposed=True)
        + parameter("mlp.experts.down_proj_bias", count, hidden, role="expert")
    )
    window = windows(c, dims.layers, window_size(c, default=128), lambda layer: layer % 2 == 0)
    return build(c, dims, style, attention=(attention, projections + sinks), sparse=(experts, weights), window=window)


def latent_attention(c: Fields, dims: Dims, *, bias: bool) -> AttentionPart:
    """Return DeepSeek's multi-head latent attention: queries, keys and values pass through low-rank bottlenecks.

    A query or key head has `qk_nope_head_dim` plain and `qk_rope_head_dim` rotary dimensions. All heads share the
    rotary part of the key. Queries have no bottleneck if `q_lora_rank` is null.
    """
    rope, value = c.size("qk_rope_head_dim", default=64), c.size("v_head_dim", default=128)
    plain, rank = c.size("qk_nope_head_dim", default=128), c.size("kv_lora_rank", default=512)
    query_rank = (c.size_or_none("q_lora_rank") or 0) if c.has("q_lora_rank") else 1536
    attention = Attention(
        heads=dims.heads,
        kv_heads=dims.heads,
        head_dim=plain + rope,
        v_head_dim=value,
        kv_lora_rank=rank,
        rope_head_dim=rope,
    )
    at, queries = "self_attn", dims.heads * (plain + rope)
    tensors: Tensors
    if query_rank:
        tensors = (
            linear(f"{at}.q_a_proj", dims.hidden, query_rank, "attention", bias=bias)
            + norm(f"{at}.q_a_layernorm", query_rank)
            + linear(f"{at}.q_b_proj", query_rank, queries, "attention")
        )
    else:
        tensors = linear(f"{at}.q_proj", dims.hidden, queries, "attention")
    tensors += (
        linear(f"{at}.kv_a_proj_with_mqa", dims.hidden, rank + rope, "attention", bias=bias)
        + norm(f"{at}.kv_a_layernorm", rank)
        + linear(f"{at}.kv_b_proj", rank, dims.heads * (plain + value), "attention")
        + linear(f"{at}.o_proj", dims.heads * value, dims.hidden, "attention", bias=bias)
    )
    return attention, tensors


def deepseek(c: Fields, *, width: int, count: int, shared: int, first: int, biased: bool = False) -> Body:
    """DeepSeek: dense layers, then layers with experts. The arguments are the class's defaults. biased: whether the
    class has a field `mlp_bias`.

    transformers does not build multi-token prediction layers (`num_nextn_predict_layers`), so they are not counted.
    """
    dims, mlp_bias = Dims.read(c), biased and c.flag("mlp_bias", default=False)
    width = c.size("moe_intermediate_size", default=width)
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    shared_hidden = width * c.size("n_shared_experts", default=shared)
    # Required: V2's class has no default of `num_experts_per_tok`, and every published config.json states it.
    experts = routed_experts(c, width, *names, count=count, chosen=None, shared_hidden=shared_hidden)
    first = c.count("first_k_dense_replace", default=first, limit=MAX_LAYERS)
    return build(
        c,
        dims,
        Style(biases=(False, False, mlp_bias)),
        attention=latent_attention(c, dims, bias=c.flag("attention_bias", default=False)),
        sparse=mixture(dims.hidden, experts, shared_bias=mlp_bias),
        is_sparse=[layer >= first for layer in range(dims.layers)],
    )


CHUNK = 64
"""Tokens per chunk of linear attention (transformers 5.23 `torch_chunk_gated_delta_rule`)."""

PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")


def qwen3_5_text(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=4, head_dim=256)
    return build(c, dims, Style(biases=BIASED), attentions=_hybrid_layers(c, dims, PROJECTIONS))


def qwen3_5_moe_text(c: Fields) -> Body:
    # The class has no dense layer, so its width is not required.
    dims = Dims.read(c, num_key_value_heads=2, head_dim=256, intermediate_size=1)
    sparse = gated_mixture(c, dims, width=512, shared=512, count=256, chosen=8)
    return build(c, dims, Style(biases=BIASED), attentions=_hybrid_layers(c, dims, PROJECTIONS), sparse=sparse)


def qwen3_next(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=2, head_dim=256)
    attentions = _hybrid_layers(c, dims, ("in_proj_qkvz", "in_proj_ba"))
    sparse = gated_mixture(c, dims, width=512, shared=512, count=512, chosen=10)
    return build(c, dims, Style(biases=BIASED), attentions=attentions, sparse=sparse, is_sparse=qwen_sparse(c, dims))


def qwen3_5(c: Fields) -> Body:
    return add_idle_tower(c, qwen3_5_text(sub_config(c, "text_config", "qwen3_5_text")))


def qwen3_5_moe(c: Fields) -> Body:
    return add_idle_tower(c, qwen3_5_moe_text(sub_config(c, "text_config", "qwen3_5_moe_text")))


def _hybrid_layers(c: Fields, dims: Dims, projections: tuple[str, ...]) -> list[AttentionPart]:
    """Return the attention of each layer: full in each `full_attention_interval`-th, linear in the others."""
    every = c.size("full_attention_interval", default=4, limit=MAX_LAYERS)
    kinds = c.layer_types(dims.layers, ("linear_attention", "full_attention"))
    full = [
        (layer + 1) % every == 0 if kinds is None else kinds[layer] == "full_attention" for layer in range(dims.layers)
    ]
    parts = {True: _gated_attention(c, dims), False: _delta_net(c, dims.hidden, projections)}
    return [parts[each] for each in full]


def _gated_attention(c: Fields, dims: Dims) -> AttentionPart:
    """Return grouped-query attention whose query projection also computes a gate for the output."""
    bias, head_dim = c.flag("attention_bias", default=False), dims.head_dim
    attention, tensors = grouped_query(c, dims, Style(biases=BIASED, qk_norm="head"))
    # Query and gate of a head are adjacent in one projection, so it is twice as wide.
    wide = linear("self_attn.q_proj", dims.hidden, 2 * dims.heads * head_dim, "attention", bias=bias)
    return attention._replace(gated=True), wide + tensors[len(wide) :]


def _delta_net(c: Fields, hidden: int, projections: tuple[str, ...]) -> AttentionPart:
    """Return Gated DeltaNet (arXiv:2412.06464): projections, a convolution over the last tokens, and the delta rule.

    The number of query and key heads is `kv_heads`, that of value heads `heads`. The letters in a projection's name are
    its outputs: query, key, value, output gate z, step beta and decay alpha.
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
