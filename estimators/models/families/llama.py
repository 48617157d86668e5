"""Llama and its dense kin: what each family's configuration and classes do differently from Llama's."""

from __future__ import annotations

from dataclasses import replace

from .body import Body
from .decoder import AttentionPart, Dims, Style, build, grouped_query, window_size, windows
from .fields import MAX_LAYERS, Fields
from .parts import Tensors, norm, parameter

LLAMA = Style()


def llama(c: Fields) -> Body:
    return build(c, Dims.read(c), biased(c, mlp=True))


def biased(c: Fields, style: Style = LLAMA, *, mlp: bool = False, default: bool = False) -> Style:
    """Llama's switches: `attention_bias` for all four projections, `mlp_bias` where the family has it."""
    bias = c.flag("attention_bias", default=default)
    return replace(style, qkv_bias=bias, out_bias=bias, mlp_bias=mlp and c.flag("mlp_bias", default=False))


def mistral(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=8)
    return build(c, dims, LLAMA, window=(window_size(c, default=4096),) * dims.layers)


def ministral3(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=8, head_dim=128)
    return build(c, dims, LLAMA, window=(window_size(c),) * dims.layers)


def ministral(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=8)
    return build(c, dims, LLAMA, window=windows(c, dims.layers, window_size(c, default=4096), lambda _: True))


def qwen2(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=32)
    return build(c, dims, Style(qkv_bias=True), window=late_windows(c, dims))


def qwen3(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=32, head_dim=128)
    return build(c, dims, biased(c, Style(qk_norm="head")), window=late_windows(c, dims))


def late_windows(c: Fields, dims: Dims) -> tuple[int | None, ...]:
    """Qwen's rule: with `use_sliding_window`, the layers from `max_window_layers` on have a window."""
    window = window_size(c, default=4096) if c.flag("use_sliding_window", default=False) else None
    first = c.count("max_window_layers", default=28, limit=MAX_LAYERS)
    return windows(c, dims.layers, window, lambda layer: layer >= first)


def phi3(c: Fields) -> Body:
    dims = Dims.read(c)
    style = Style(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",), hidden_dropout=("resid_pdrop", 0.0))
    return build(c, dims, style, window=(window_size(c),) * dims.layers)


def olmo(c: Fields) -> Body:
    return build(c, Dims.read(c), biased(c, Style(norm_kind="layer", norm_weight=False)))


OLMO2 = Style(qk_norm="all", norms=("post_attention_layernorm", "post_feedforward_layernorm"))


def olmo2(c: Fields) -> Body:
    return build(c, Dims.read(c), biased(c, OLMO2))


def olmo3(c: Fields) -> Body:
    dims = Dims.read(c)
    window = windows(c, dims.layers, window_size(c, default=4096), lambda layer: (layer + 1) % 4 != 0)
    return build(c, dims, biased(c, OLMO2), window=window)


def gemma(c: Fields) -> Body:
    return build(c, Dims.read(c, num_key_value_heads=16, head_dim=256), biased(c, Style(activation=GELU, tied=True)))


GELU = "gelu_pytorch_tanh"
SANDWICH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def gemma2(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=4, head_dim=256)
    style = biased(
        c,
        Style(
            activation=GELU,
            norms=SANDWICH,
            tied=True,
            softcap=c.is_set("attn_logit_softcapping", default=True),
            logit_softcap=c.is_set("final_logit_softcapping", default=True),
        ),
    )
    window = windows(c, dims.layers, window_size(c, default=4096), lambda layer: layer % 2 == 0)
    return build(c, dims, style, window=window)


def gemma3_text(c: Fields) -> Body:
    # The text part of a multimodal config.json states only what differs from the class's defaults.
    dims = Dims.read(
        c,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=262_208,
    )
    style = biased(
        c,
        Style(
            activation=GELU,
            norms=SANDWICH,
            tied=True,
            qk_norm="head",
            softcap=c.is_set("attn_logit_softcapping", default=False),
            logit_softcap=c.is_set("final_logit_softcapping", default=False),
        ),
    )
    every = c.size("sliding_window_pattern", default=6)
    window = windows(c, dims.layers, window_size(c, default=4096), lambda layer: (layer + 1) % every != 0)
    body = build(c, dims, style, window=window)
    # Its base class is not called Gemma3Model, and its classifier not Gemma3ForSequenceClassification.
    return replace(body, heads={"ForCausalLM": body.heads["ForCausalLM"]})


def smollm3(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=4)
    window = window_size(c) if c.flag("use_sliding_window", default=False) else None
    every = c.size("no_rope_layer_interval", default=4)
    return build(
        c,
        dims,
        biased(c, Style(tied=True), mlp=True),
        window=windows(c, dims.layers, window, lambda layer: (layer + 1) % every == 0),
    )


def seed_oss(c: Fields) -> Body:
    style = Style(
        qkv_bias=c.flag("attention_bias", default=True),
        out_bias=c.flag("attention_out_bias", default=False),
        mlp_bias=c.flag("mlp_bias", default=False),
    )
    return build(c, Dims.read(c, num_key_value_heads=8, head_dim=128), style)


def glm(c: Fields) -> Body:
    return build(
        c,
        Dims.read(c, num_key_value_heads=2, head_dim=128),
        Style(qkv_bias=c.flag("attention_bias", default=True), gate_up=("mlp.gate_up_proj",)),
    )


def glm4(c: Fields) -> Body:
    return build(
        c,
        Dims.read(c, num_key_value_heads=2, head_dim=128),
        Style(
            qkv_bias=c.flag("attention_bias", default=True),
            gate_up=("mlp.gate_up_proj",),
            norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        ),
    )


COHERE = Style(norms=("input_layernorm",), norm_kind="layer", norm_bias=False, parallel=True, tied=True)


def cohere(c: Fields) -> Body:
    dims, style = Dims.read(c), biased(c, COHERE)
    attention: AttentionPart | None = None
    if c.flag("use_qk_norm", default=False):
        plain, tensors = grouped_query(dims, style)
        attention = (
            replace(plain, qk_norm=True),
            (
                tensors
                + parameter("self_attn.q_norm.weight", dims.heads, dims.head_dim, role="norm")
                + parameter("self_attn.k_norm.weight", dims.kv_heads, dims.head_dim, role="norm")
            ),
        )
    return build(c, dims, style, attention=attention)


def cohere2(c: Fields) -> Body:
    dims = Dims.read(c)
    every = c.size("sliding_window_pattern", default=4)
    window = windows(c, dims.layers, window_size(c, default=4096), lambda layer: (layer + 1) % every != 0)
    return build(c, dims, biased(c, COHERE), window=window)


def starcoder2(c: Fields) -> Body:
    dims, bias = Dims.read(c, num_key_value_heads=2), c.flag("use_bias", default=True)
    style = Style(
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        gated=False,
        gate_up=("mlp.c_fc",),
        down="mlp.c_proj",
        activation=GELU,
        norm_kind="layer",
        tied=True,
        hidden_dropout=("residual_dropout", 0.0),
    )
    return build(c, dims, style, window=(window_size(c),) * dims.layers)


def stablelm(c: Fields) -> Body:
    dims, parallel = Dims.read(c, num_key_value_heads=32), c.flag("use_parallel_residual", default=False)
    style = Style(
        qkv_bias=c.flag("use_qkv_bias", default=False),
        norm_kind="layer",
        parallel=parallel,
        hidden_dropout=("hidden_dropout", 0.0),
        norms=("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm"),
    )
    attention, tensors = grouped_query(dims, style)
    if c.flag("qk_layernorm", default=False):
        tensors += _norm_per_head("self_attn.q_layernorm", dims.heads, dims.head_dim)
        tensors += _norm_per_head("self_attn.k_layernorm", dims.kv_heads, dims.head_dim)
        attention = replace(attention, qk_norm=True)
    return build(c, dims, style, attention=(attention, tensors))


def _norm_per_head(name: str, heads: int, width: int) -> Tensors:
    return tuple(tensor for head in range(heads) for tensor in norm(f"{name}.norms.{head}", width))


def phi(c: Fields) -> Body:
    dims = Dims.read(c)
    style = Style(
        qkv_bias=True,
        out="self_attn.dense",
        out_bias=True,
        gated=False,
        gate_up=("mlp.fc1",),
        down="mlp.fc2",
        mlp_bias=True,
        activation="gelu_new",
        norms=("input_layernorm",),
        norm_kind="layer",
        final_norm="final_layernorm",
        parallel=True,
        head_bias=True,
        hidden_dropout=("resid_pdrop", 0.0),
    )
    attention, tensors = grouped_query(dims, style)
    if c.flag("qk_layernorm", default=False):
        tensors += norm("self_attn.q_layernorm", dims.head_dim, bias=True)
        tensors += norm("self_attn.k_layernorm", dims.head_dim, bias=True)
        attention = replace(attention, qk_norm=True)
    return build(c, dims, style, attention=(attention, tensors))


def internlm3(c: Fields) -> Body:
    """transformers builds it from Llama's classes, under the remote code's names of the switches too."""
    bias = c.flag("attention_bias", "qkv_bias", default=False)
    if bias != c.flag("mlp_bias", "bias", default=False):
        raise c.error("attention_bias (qkv_bias) and mlp_bias (bias) differ", why="transformers refuses that")
    dims = Dims.read(c, num_key_value_heads=2, head_dim=128)
    return build(c, dims, Style(qkv_bias=bias, out_bias=bias, mlp_bias=bias))


def minicpm(c: Fields) -> Body:
    """MiniCPM's remote code: Llama's tensors, scaled otherwise."""
    return build(c, Dims.read(c), biased(c, Style(tied=True)))


def internlm2(c: Fields) -> Body:
    """InternLM2's remote code: one fused projection, and names of its own."""
    bias = c.flag("bias", default=True)
    return build(
        c,
        Dims.read(c),
        Style(
            qkv=("attention.wqkv",),
            out="attention.wo",
            qkv_bias=bias,
            out_bias=bias,
            gate_up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
            norms=("attention_norm", "ffn_norm"),
            embed="tok_embeddings",
            head="output",
        ),
    )


def baichuan(c: Fields) -> Body:
    """Baichuan's remote code: one fused projection. (The 13B models use ALiBi, which no tensor shows.)"""
    return build(c, Dims.read(c), Style(qkv=("self_attn.W_pack",)))
