"""Dense decoders: styles and rules of families similar to Llama, and families that need more than a `Style`.

Most families are a `decoder(...)` in their row of `families.FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable

from .body import (
    BIASED,
    Body,
    Dims,
    Names,
    Style,
    WindowRule,
    build,
    decoder,
    embedding,
    switched_window,
    window_size,
    windows,
)
from .config_fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields

LLAMA = Style()
GELU = "gelu_pytorch_tanh"
FUSED_GATE = ("mlp.gate_up_proj", "mlp.down_proj")
OLMO_2 = Style(qk_norm="all", norms=("post_attention_layernorm", "post_feedforward_layernorm"), biases=BIASED)
GEMMA_2 = Style(
    activation=GELU,
    norms=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    tied=True,
    softcaps=True,
    biases=BIASED,
)
"""Gemma's layers from the second generation on."""


def every_layer(default: int | None = None) -> WindowRule:
    return lambda c, dims: (window_size(c, default=default),) * dims.layers


def in_layers(slides: Callable[[int], bool]) -> WindowRule:
    """Return the rule for a window in the layers where `slides` is true. `layer_types` overrides it."""
    return lambda c, dims: windows(c, dims.layers, window_size(c, default=4096), slides)


def all_but_each(every: int, field: str = "") -> WindowRule:
    """Return the rule for a window in all layers except each `every`-th. field: the config's name of that number."""

    def rule(c: Fields, dims: Dims) -> tuple[int | None, ...]:
        step = c.size(field, default=every) if field else every
        return windows(c, dims.layers, window_size(c, default=4096), lambda layer: (layer + 1) % step != 0)

    return rule


def late_layers(c: Fields, dims: Dims) -> tuple[int | None, ...]:
    """Return windows by Qwen's rule: with `use_sliding_window`, the layers from `max_window_layers` on have one."""
    first = c.count("max_window_layers", default=28, limit=MAX_LAYERS)
    return windows(c, dims.layers, switched_window(c), lambda layer: layer >= first)


def unrotated_layers(c: Fields, dims: Dims) -> tuple[int | None, ...]:
    """Return windows by SmolLM3's rule: with `use_sliding_window`, the layers without rotary embedding have one."""
    window = window_size(c) if c.flag("use_sliding_window", default=False) else None
    every = c.size("no_rope_layer_interval", default=4)
    return windows(c, dims.layers, window, lambda layer: (layer + 1) % every == 0)


mistral = decoder(LLAMA, window=every_layer(4096), num_key_value_heads=8)
ministral3 = decoder(LLAMA, window=every_layer(), num_key_value_heads=8, head_dim=128)
qwen2 = decoder(Style(biases=(True, False, False)), window=late_layers, num_key_value_heads=32)


def gemma3_text(c: Fields) -> Body:
    # The text part of a multimodal config.json states only the differences from the class's defaults.
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
    style = GEMMA_2._replace(softcaps=False, qk_norm="head")
    body = build(c, dims, style, window=all_but_each(6, "sliding_window_pattern")(c, dims))
    # Its base class is not called Gemma3Model, and its classifier not Gemma3ForSequenceClassification.
    return body._replace(heads={"ForCausalLM": body.heads["ForCausalLM"]})


def qwen(c: Fields) -> Body:
    """The first Qwen models' remote code: one fused projection, and an `intermediate_size` that includes the gate."""
    style = Style(
        names=Names(base="transformer", embed="wte", layers="h", final_norm="ln_f"),
        suffix="LMHeadModel",
        attention=("attn.c_attn", "attn.c_proj"),
        feed_forward=("mlp.w2", "mlp.w1", "mlp.c_proj"),
        biases=(True, False, False),
        norms=("ln_1", "ln_2"),
    )
    dims = Dims.read(c)
    # Qwen's first `intermediate_size` is the sum of both projections' widths (modeling_qwen.py `ff_dim_in`).
    return build(c, dims._replace(feed_forward=dims.feed_forward // 2), style)


def chatglm(c: Fields) -> Body:
    """ChatGLM's remote code (ChatGLM2, ChatGLM3): fused projections of query, key and value, and of gate and up."""
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads", limit=MAX_HEADS)
    grouped = c.flag("multi_query_attention", default=False)
    sizes = Dims(
        hidden=hidden,
        heads=heads,
        kv_heads=c.size("multi_query_group_num") if grouped else heads,
        head_dim=c.size("kv_channels", default=c.divide("hidden_size", hidden, "num_attention_heads", heads)),
        feed_forward=c.size("ffn_hidden_size"),
        layers=c.size("num_layers", limit=MAX_LAYERS),
        vocab=c.size("padded_vocab_size", limit=MAX_VOCABULARY),
    )
    bias = c.flag("add_bias_linear", default=False)
    style = Style(
        names=Names("transformer", "encoder.layers", "embedding.word_embeddings", "encoder.final_layernorm"),
        head="transformer.output_layer",
        suffix="ForConditionalGeneration",
        attention=("self_attention.query_key_value", "self_attention.dense"),
        feed_forward=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        biases=(bias or c.flag("add_qkv_bias", default=False), bias, bias),
        hidden_dropout=("hidden_dropout", 0.0),
    )
    body = build(c, sizes, style)
    # Published files name the class ChatGLMModel, and mean the one with a head.
    return body._replace(heads=dict.fromkeys(("ForConditionalGeneration", "Model"), next(iter(body.heads.values()))))


# GPT-2 and its contemporaries: LayerNorm with a shift, biases, an ungated feed-forward, no rotary positions.


def dims(c: Fields, hidden: str, layers: str, heads: str, *, kv_heads: int | None = None) -> Dims:
    """Read the dimensions under a family's names, or transformers' usual ones."""
    width = c.size(hidden, "hidden_size")
    count = c.size(heads, "num_attention_heads", limit=MAX_HEADS)
    return Dims(
        hidden=width,
        heads=count,
        kv_heads=kv_heads or count,
        head_dim=c.divide(hidden, width, heads, count),
        feed_forward=c.size("n_inner", default=4 * width),
        layers=c.size(layers, "num_hidden_layers", limit=MAX_LAYERS),
        vocab=c.size("vocab_size", limit=MAX_VOCABULARY),
    )


GPT = Style(
    names=Names("transformer", "h", "wte", "ln_f"),
    tied=True,
    attention=("attn.c_attn", "attn.c_proj"),
    feed_forward=("mlp.c_fc", "mlp.c_proj"),
    biases=(True, True, True),
    rotary=False,
    gated=False,
    activation="gelu_new",
    norms=("ln_1", "ln_2"),
    norm_kind="layer",
    hidden_dropout=("resid_pdrop", 0.1),
    attention_dropout=("attn_pdrop", 0.1),
)


def gpt2(c: Fields) -> Body:
    return _gpt(c, GPT._replace(transposed=True, suffix="LMHeadModel"))


def gpt_bigcode(c: Fields) -> Body:
    kv_heads = 1 if c.flag("multi_query", default=True) else None
    return _gpt(c, GPT._replace(activation="gelu_pytorch_tanh"), kv_heads=kv_heads)


def _gpt(c: Fields, style: Style, *, kv_heads: int | None = None) -> Body:
    c.refuse("add_cross_attention")
    sizes = dims(c, "n_embd", "n_layer", "n_head", kv_heads=kv_heads)
    positions = c.size("n_positions", "max_position_embeddings", limit=MAX_POSITIONS)
    return build(c, sizes, style, outside=embedding("wpe", positions, sizes.hidden, "position"))


def mpt(c: Fields) -> Body:
    """MPT as transformers builds it: no biases, ALiBi, feed-forward 4 x hidden size. The config's flags are ignored."""
    style = GPT._replace(
        names=Names("transformer", "blocks", "wte", "norm_f"),
        attention=("attn.Wqkv", "attn.out_proj"),
        feed_forward=("ffn.up_proj", "ffn.down_proj"),
        biases=(False, False, False),
        activation="gelu",
        norms=("norm_1", "norm_2"),
        norm_bias=False,
        hidden_dropout=("resid_pdrop", 0.0),
        attention_dropout=("attention_dropout", 0.0),
    )
    return build(c, dims(c, "d_model", "n_layers", "n_heads"), style)
