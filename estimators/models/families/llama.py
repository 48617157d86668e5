"""Llama and its dense kin: what each family's configuration and classes do differently from Llama's."""

from __future__ import annotations

from .body import Body
from .decoder import AttentionPart, Dims, Names, Style, build, grouped_query, window_size, windows
from .fields import MAX_LAYERS, Fields
from .parts import Tensors, norm, parameter

LLAMA = Style()
GELU = "gelu_pytorch_tanh"
FUSED_GATE = ("mlp.gate_up_proj", "mlp.down_proj")


def llama(c: Fields) -> Body:
    return build(c, Dims.read(c), biased(c, mlp=True))


def biased(c: Fields, style: Style = LLAMA, *, mlp: bool = False, default: bool = False) -> Style:
    """Llama's switches: `attention_bias` for all four projections, `mlp_bias` where the family has it."""
    bias = c.flag("attention_bias", default=default)
    return style._replace(biases=(bias, bias, mlp and c.flag("mlp_bias", default=False)))


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
    return build(c, dims, Style(biases=(True, False, False)), window=late_windows(c, dims))


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
    style = Style(
        attention=("self_attn.qkv_proj", "self_attn.o_proj"),
        feed_forward=FUSED_GATE,
        hidden_dropout=("resid_pdrop", 0.0),
    )
    return build(c, dims, style, window=(window_size(c),) * dims.layers)


def olmo(c: Fields) -> Body:
    return build(c, Dims.read(c), biased(c, Style(norm_kind="layer", norm_weight=False)))


OLMO2 = Style(qk_norm="all", norms=("post_attention_layernorm", "post_feedforward_layernorm"))


def olmo2(c: Fields) -> Body:
    return build(c, Dims.read(c), biased(c, OLMO2))


def olmo3(c: Fields) -> Body:
    dims = Dims.read(c)
    return build(c, dims, biased(c, OLMO2), window=mostly_windows(c, dims, every=4))


def mostly_windows(c: Fields, dims: Dims, *, every: int) -> tuple[int | None, ...]:
    """All layers have a window but each `every`-th."""
    return windows(c, dims.layers, window_size(c, default=4096), lambda layer: (layer + 1) % every != 0)


def gemma(c: Fields) -> Body:
    return build(c, Dims.read(c, num_key_value_heads=16, head_dim=256), biased(c, Style(activation=GELU, tied=True)))


SANDWICH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def sandwich(c: Fields, *, softcaps: bool) -> Style:
    """Gemma's layers from the second generation on; `softcaps` are the class's default."""
    style = Style(
        activation=GELU,
        norms=SANDWICH,
        tied=True,
        softcap=c.is_set("attn_logit_softcapping", default=softcaps),
        logit_softcap=c.is_set("final_logit_softcapping", default=softcaps),
    )
    return biased(c, style)


def gemma2(c: Fields) -> Body:
    dims, style = Dims.read(c, num_key_value_heads=4, head_dim=256), sandwich(c, softcaps=True)
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
    style = sandwich(c, softcaps=False)._replace(qk_norm="head")
    body = build(c, dims, style, window=mostly_windows(c, dims, every=c.size("sliding_window_pattern", default=6)))
    # Its base class is not called Gemma3Model, and its classifier not Gemma3ForSequenceClassification.
    return body._replace(heads={"ForCausalLM": body.heads["ForCausalLM"]})


def smollm3(c: Fields) -> Body:
    dims = Dims.read(c, num_key_value_heads=4)
    window = window_size(c) if c.flag("use_sliding_window", default=False) else None
    every = c.size("no_rope_layer_interval", default=4)
    style = biased(c, Style(tied=True), mlp=True)
    return build(c, dims, style, window=windows(c, dims.layers, window, lambda layer: (layer + 1) % every == 0))


def seed_oss(c: Fields) -> Body:
    fields = (("attention_bias", True), ("attention_out_bias", False), ("mlp_bias", False))
    inputs, output, feed_forward = (c.flag(name, default=default) for name, default in fields)
    dims = Dims.read(c, num_key_value_heads=8, head_dim=128)
    return build(c, dims, Style(biases=(inputs, output, feed_forward)))


def glm(c: Fields) -> Body:
    return _glm(c, LLAMA.norms)


def glm4(c: Fields) -> Body:
    norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return _glm(c, norms)


def _glm(c: Fields, norms: tuple[str, ...]) -> Body:
    dims, bias = Dims.read(c, num_key_value_heads=2, head_dim=128), c.flag("attention_bias", default=True)
    return build(c, dims, Style(biases=(bias, False, False), feed_forward=FUSED_GATE, norms=norms))


COHERE = Style(norms=LLAMA.norms[:1], norm_kind="layer", norm_bias=False, parallel=True, tied=True)


def cohere(c: Fields) -> Body:
    dims, style = Dims.read(c), biased(c, COHERE)
    queries = parameter("self_attn.q_norm.weight", dims.heads, dims.head_dim, role="norm")
    keys = parameter("self_attn.k_norm.weight", dims.kv_heads, dims.head_dim, role="norm")
    return build(c, dims, style, attention=_normed(c, dims, style, "use_qk_norm", queries + keys))


def _normed(c: Fields, dims: Dims, style: Style, field: str, norms: Tensors) -> AttentionPart:
    """Grouped-query attention, with these norms of queries and keys where the field is set."""
    attention, tensors = grouped_query(dims, style)
    if not c.flag(field, default=False):
        return attention, tensors
    return attention._replace(qk_norm=True), tensors + norms


def cohere2(c: Fields) -> Body:
    dims = Dims.read(c)
    window = mostly_windows(c, dims, every=c.size("sliding_window_pattern", default=4))
    return build(c, dims, biased(c, COHERE), window=window)


def starcoder2(c: Fields) -> Body:
    dims, bias = Dims.read(c, num_key_value_heads=2), c.flag("use_bias", default=True)
    style = Style(
        biases=(bias, bias, bias),
        gated=False,
        feed_forward=("mlp.c_fc", "mlp.c_proj"),
        activation=GELU,
        norm_kind="layer",
        tied=True,
        hidden_dropout=("residual_dropout", 0.0),
    )
    return build(c, dims, style, window=(window_size(c),) * dims.layers)


def stablelm(c: Fields) -> Body:
    dims, parallel = Dims.read(c, num_key_value_heads=32), c.flag("use_parallel_residual", default=False)
    style = Style(
        biases=(c.flag("use_qkv_bias", default=False), False, False),
        norm_kind="layer",
        parallel=parallel,
        hidden_dropout=("hidden_dropout", 0.0),
        norms=LLAMA.norms[:1] if parallel else LLAMA.norms,
    )
    norms = tuple(
        tensor
        for name, heads in (("q_layernorm", dims.heads), ("k_layernorm", dims.kv_heads))
        for head in range(heads)
        for tensor in norm(f"self_attn.{name}.norms.{head}", dims.head_dim)
    )
    return build(c, dims, style, attention=_normed(c, dims, style, "qk_layernorm", norms))


def phi(c: Fields) -> Body:
    dims = Dims.read(c)
    style = Style(
        names=Names(final_norm="final_layernorm"),
        attention=(*LLAMA.attention[:3], "self_attn.dense"),
        biases=(True, True, True),
        gated=False,
        feed_forward=("mlp.fc1", "mlp.fc2"),
        activation="gelu_new",
        norms=LLAMA.norms[:1],
        norm_kind="layer",
        parallel=True,
        head_bias=True,
        hidden_dropout=("resid_pdrop", 0.0),
    )
    norms = tuple(
        tensor
        for name in ("q_layernorm", "k_layernorm")
        for tensor in norm(f"self_attn.{name}", dims.head_dim, bias=True)
    )
    return build(c, dims, style, attention=_normed(c, dims, style, "qk_layernorm", norms))


def internlm3(c: Fields) -> Body:
    """transformers builds it from Llama's classes, under the remote code's names of the switches too."""
    bias = c.flag("attention_bias", "qkv_bias", default=False)
    if bias != c.flag("mlp_bias", "bias", default=False):
        raise c.error("attention_bias (qkv_bias) and mlp_bias (bias) differ", why="transformers refuses that")
    dims = Dims.read(c, num_key_value_heads=2, head_dim=128)
    return build(c, dims, Style(biases=(bias, bias, bias)))


def minicpm(c: Fields) -> Body:
    """MiniCPM's remote code: Llama's tensors, scaled otherwise."""
    return build(c, Dims.read(c), biased(c, Style(tied=True)))


def internlm2(c: Fields) -> Body:
    """InternLM2's remote code: one fused projection, and names of its own."""
    bias = c.flag("bias", default=True)
    style = Style(
        names=Names(embed="tok_embeddings"),
        head="output",
        attention=("attention.wqkv", "attention.wo"),
        feed_forward=("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
        biases=(bias, bias, False),
        norms=("attention_norm", "ffn_norm"),
    )
    return build(c, Dims.read(c), style)


def qwen(c: Fields) -> Body:
    """The first Qwen models' remote code: one fused projection, and an `intermediate_size` that counts the gate too."""
    style = Style(
        names=Names(base="transformer", embed="wte", layers="h", final_norm="ln_f"),
        suffix="LMHeadModel",
        attention=("attn.c_attn", "attn.c_proj"),
        feed_forward=("mlp.w2", "mlp.w1", "mlp.c_proj"),
        biases=(True, False, False),
        norms=("ln_1", "ln_2"),
    )
    dims = Dims.read(c)
    return build(c, dims._replace(feed_forward=dims.feed_forward // 2), style)


def baichuan(c: Fields) -> Body:
    """Baichuan's remote code: one fused projection. (The 13B models use ALiBi, which no tensor shows.)"""
    return build(c, Dims.read(c), Style(attention=("self_attn.W_pack", "self_attn.o_proj")))
