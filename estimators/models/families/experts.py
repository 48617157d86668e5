"""Mixtures of experts, and DeepSeek's latent attention.

The experts of a layer are fused into three-dimensional tensors, as transformers 5 holds them: no `nn.Linear`, so LoRA's
"all-linear" passes them by, and ZeRO-3 gathers all experts of a layer at once.
"""

from __future__ import annotations

from ..model_shape import Attention, FeedForward
from .body import Body
from .decoder import AttentionPart, Dims, FeedForwardPart, Style, build, grouped_query, window_size, windows
from .fields import MAX_LAYERS, Fields
from .llama import biased
from .parts import Tensors, feed_forward_linears, linear, norm, parameter


def mixture(
    hidden: int,
    experts: FeedForward,
    *,
    at: str = "mlp",
    router: str = "gate",
    shared: str = "shared_experts",
    shared_bias: bool = False,
) -> FeedForwardPart:
    """A router, E fused experts and, where `shared_hidden` says so, a dense one that every token passes."""
    count, width = experts.experts, experts.hidden
    tensors = (
        parameter(f"{at}.{router}.weight", count, hidden, role="router")
        + parameter(f"{at}.experts.gate_up_proj", count, 2 * width, hidden, role="expert")
        + parameter(f"{at}.experts.down_proj", count, hidden, width, role="expert")
    )
    if experts.shared_hidden:
        everyone = FeedForward(hidden=experts.shared_hidden, gated=True, activation=experts.activation)
        names = tuple(f"{at}.{shared}.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
        tensors += feed_forward_linears(everyone, hidden, names, bias=shared_bias)
    return experts, tensors


def routed(
    c: Fields, width: int, *count_names: str, count: int, chosen: int | None, shared_hidden: int = 0
) -> FeedForward:
    """Experts of a width, as many as a field of one of these names says; `count` and `chosen` are the defaults."""
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
    experts = routed(c, dims.feed_forward, "num_local_experts", "num_experts", count=8, chosen=2)
    return build(c, dims, Style(), sparse=mixture(dims.hidden, experts), window=(window_size(c),) * dims.layers)


def granitemoe(c: Fields) -> Body:
    dims = Dims.read(c)
    experts = routed(c, dims.feed_forward, "num_local_experts", count=8, chosen=2)
    sparse = mixture(dims.hidden, experts, at="block_sparse_moe", router="router")
    return build(c, dims, biased(c), sparse=sparse)


def olmoe(c: Fields) -> Body:
    dims = Dims.read(c)
    experts = routed(c, dims.feed_forward, "num_experts", "num_local_experts", count=64, chosen=8)
    return build(c, dims, biased(c, Style(qk_norm="all")), sparse=mixture(dims.hidden, experts))


def qwen2_moe(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=16)
    width, shared = (
        c.size("moe_intermediate_size", default=1408),
        c.size("shared_expert_intermediate_size", default=5632),
    )
    experts = routed(c, width, "num_experts", count=60, chosen=4, shared_hidden=shared)
    feed_forward, tensors = mixture(dims.hidden, experts, shared="shared_expert")
    tensors += linear("mlp.shared_expert_gate", dims.hidden, 1, "router")
    slides = c.flag("use_sliding_window", default=False)
    last = c.count("max_window_layers", default=28, limit=MAX_LAYERS)
    window = window_size(c, default=4096) if slides else None
    return build(
        c,
        dims,
        Style(biases=(c.flag("qkv_bias", default=True), False, False)),
        sparse=(feed_forward, tensors),
        is_sparse=qwen_sparse(c, dims),
        window=windows(c, dims.layers, window, lambda layer: layer % 2 == 0 and layer < last),
    )


def qwen3_moe(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=4)
    width = c.size("moe_intermediate_size", default=768)
    experts = routed(c, width, "num_experts", "num_local_experts", count=128, chosen=8)
    window = window_size(c, default=4096) if c.flag("use_sliding_window", default=False) else None
    return build(
        c,
        dims,
        biased(c, Style(qk_norm="head")),
        sparse=mixture(dims.hidden, experts),
        is_sparse=qwen_sparse(c, dims),
        window=(window,) * dims.layers,
    )


def qwen_sparse(c: Fields, dims: Dims) -> list[bool]:
    """Every `decoder_sparse_step`-th layer has experts, unless `mlp_only_layers` names it."""
    step, plain = c.size("decoder_sparse_step", default=1, limit=MAX_LAYERS), c.items("mlp_only_layers") or []
    return [(layer + 1) % step == 0 and layer not in plain for layer in range(dims.layers)]


def gpt_oss(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=8, head_dim=64)
    style = biased(c, default=True)
    attention, projections = grouped_query(dims, style)
    sinks = parameter("self_attn.sinks", dims.heads, role="attention")
    experts = routed(c, dims.feed_forward, "num_local_experts", "num_experts", count=128, chosen=4)
    # Its experts are stored transposed, as (experts, in, out), and have biases.
    count, hidden, width = experts.experts, dims.hidden, experts.hidden
    weights = (
        parameter("mlp.router.weight", count, hidden, role="router")
        + parameter("mlp.router.bias", count, role="router")
        + parameter("mlp.experts.gate_up_proj", count, hidden, 2 * width, role="expert")
        + parameter("mlp.experts.gate_up_proj_bias", count, 2 * width, role="expert")
        + parameter("mlp.experts.down_proj", count, width, hidden, role="expert")
        + parameter("mlp.experts.down_proj_bias", count, hidden, role="expert")
    )
    window = windows(c, dims.layers, window_size(c, default=128), lambda layer: layer % 2 == 0)
    return build(c, dims, style, attention=(attention, projections + sinks), sparse=(experts, weights), window=window)


def latent_attention(c: Fields, dims: Dims, *, bias: bool) -> AttentionPart:
    """DeepSeek's multi-head latent attention: queries, keys and values pass through low-rank bottlenecks.

    A query or key head is `qk_nope_head_dim` plain and `qk_rope_head_dim` rotary dimensions wide; all heads share the
    rotary part of the key. A `q_lora_rank` of null leaves the queries' bottleneck out.
    """
    rope, value = c.size("qk_rope_head_dim", default=64), c.size("v_head_dim", default=128)
    plain, rank = c.size("qk_nope_head_dim", default=128), c.size("kv_lora_rank", default=512)
    query_rank = (c.size_or_none("q_lora_rank") or 0) if c.given("q_lora_rank") else 1536
    attention = Attention(
        heads=dims.heads,
        kv_heads=dims.heads,
        head_dim=plain + rope,
        v_head_dim=value,
        q_lora_rank=query_rank,
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


def deepseek_v2(c: Fields) -> Body:
    return deepseek(c, mlp_bias=c.flag("mlp_bias", default=False), width=1407, count=64, shared=2, first=0)


def deepseek_v3(c: Fields) -> Body:
    return deepseek(c, mlp_bias=False, width=2048, count=256, shared=1, first=3)


def deepseek(c: Fields, *, mlp_bias: bool, width: int, count: int, shared: int, first: int) -> Body:
    """Dense layers first, then experts; the arguments are the class's defaults.

    Multi-token prediction layers (`num_nextn_predict_layers`) are not built by transformers and not counted.
    """
    dims = Dims.read(c)
    width = c.size("moe_intermediate_size", default=width)
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    shared_hidden = width * c.size("n_shared_experts", default=shared)
    experts = routed(c, width, *names, count=count, chosen=None, shared_hidden=shared_hidden)
    first = c.count("first_k_dense_replace", default=first, limit=MAX_LAYERS)
    return build(
        c,
        dims,
        Style(biases=(False, False, mlp_bias)),
        attention=latent_attention(c, dims, bias=c.flag("attention_bias", default=False)),
        sparse=mixture(dims.hidden, experts, shared_bias=mlp_bias),
        is_sparse=[layer >= first for layer in range(dims.layers)],
    )
