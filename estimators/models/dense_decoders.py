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
    Tensors,
    WindowRule,
    build,
    decoder,
    embedding,
    grouped_query,
    linear,
    norms,
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


PHI = Style(
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


def phi(c: Fields) -> Body:
    dims = Dims.read(c)
    attention, tensors = grouped_query(c, dims, PHI)
    if c.flag("qk_layernorm", default=False):
        attention = attention._replace(qk_norm=True)
        tensors += norms(("self_attn.q_layernorm", "self_attn.k_layernorm"), dims.head_dim, "layer")
    return build(c, dims, PHI, attention=(attention, tensors))


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
    return build(c, dims._replace(feed_forward=dims.feed_forward // 2), style)


# GPT-2 and its contemporaries: LayerNorm with a shift, biases, an ungated feed-forward, various position embeddings.

WIDENED = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
HIDDEN = ("hidden_size", "n_embd")
LAYERS = ("num_hidden_layers", "n_layer")
HEADS = ("num_attention_heads", "n_head")


def dims(
    c: Fields,
    *,
    hidden: tuple[str, ...] = HIDDEN,
    layers: tuple[str, ...] = LAYERS,
    heads: tuple[str, ...] = HEADS,
    feed_forward: str = "",
    factor: int | None = 4,
    kv_heads: int | None = None,
) -> Dims:
    """Read the dimensions under a family's names. Without a field, the feed-forward width is `factor` x hidden size."""
    width, count = c.size(*hidden), c.size(*heads, limit=MAX_HEADS)
    kv_heads = kv_heads or count
    c.divide(heads[0], count, "key/value heads", kv_heads)
    return Dims(
        hidden=width,
        heads=count,
        kv_heads=kv_heads,
        head_dim=c.divide(hidden[0], width, heads[0], count),
        feed_forward=c.size(feed_forward, default=factor and factor * width),
        layers=c.size(*layers, limit=MAX_LAYERS),
        vocab=c.size("vocab_size", limit=MAX_VOCABULARY),
    )


def positions(c: Fields, name: str, width: int, *names: str, offset: int = 0) -> Tensors:
    """Tensor of a learned position embedding. offset: rows before the first position (2 in OPT)."""
    return embedding(name, c.size(*names, limit=MAX_POSITIONS) + offset, width, "position")


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
    hidden, layers, heads = HIDDEN[::-1], LAYERS[::-1], HEADS[::-1]
    sizes = dims(c, hidden=hidden, layers=layers, heads=heads, feed_forward="n_inner", kv_heads=kv_heads)
    return build(c, sizes, style, outside=positions(c, "wpe", sizes.hidden, "n_positions", "max_position_embeddings"))


def gpt_neox(c: Fields) -> Body:
    bias = ("attention_bias", True)
    style = Style(
        names=Names("gpt_neox", "layers", "embed_in", "final_layer_norm"),
        attention=("attention.query_key_value", "attention.dense"),
        feed_forward=WIDENED,
        biases=(bias, bias, True),
        gated=False,
        activation="gelu",
        norm_kind="layer",
        parallel=c.flag("use_parallel_residual", default=True),
        hidden_dropout=("hidden_dropout", 0.0),
    )
    return build(c, dims(c, feed_forward="intermediate_size", factor=None), style)


BLOOM = GPT._replace(
    names=Names("transformer", "h", "word_embeddings", "ln_f"),
    attention=("self_attention.query_key_value", "self_attention.dense"),
    feed_forward=WIDENED,
    activation="gelu",
    norms=LLAMA.norms,
    hidden_dropout=("hidden_dropout", 0.0),
    attention_dropout=("attention_dropout", 0.0),
)


def bloom(c: Fields) -> Body:
    sizes = dims(c, hidden=("hidden_size", "n_embed"), layers=LAYERS[::-1], heads=HEADS[::-1])
    return build(c, sizes, BLOOM, outside=norms(("word_embeddings_layernorm",), sizes.hidden, "layer"))


def falcon(c: Fields) -> Body:
    """Three generations: sequential layers (1B), parallel with one norm (7B), parallel with a norm each (40B, 180B)."""
    new = c.flag("new_decoder_architecture", default=False)
    parallel = new or c.flag("parallel_attn", default=True)
    single = c.size("num_ln_in_parallel_attn", default=2 if new else 1) == 1
    kv_heads = c.size_or_none("num_kv_heads") if new else 1 if c.flag("multi_query", default=True) else None
    bias = ("bias", False)
    style = BLOOM._replace(
        biases=(bias, bias, bias),
        rotary=not c.flag("alibi", default=False),
        norms=BLOOM.norms if not parallel else BLOOM.norms[:1] if single else ("ln_attn", "ln_mlp"),
        parallel=parallel,
    )
    sizes = dims(c, hidden=("hidden_size", "n_embed"), feed_forward="ffn_hidden_size", kv_heads=kv_heads)
    return build(c, sizes, style)


def mpt(c: Fields) -> Body:
    """MPT as transformers builds it: no biases, ALiBi, feed-forward 4 x hidden size. The config's flags are ignored."""
    sizes = dims(
        c,
        hidden=("d_model", "hidden_size"),
        layers=("n_layers", "num_hidden_layers"),
        heads=("n_heads", "num_attention_heads"),
    )
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
    return build(c, sizes, style)


def opt(c: Fields) -> Body:
    sizes, bias = dims(c, feed_forward="ffn_dim", factor=None), ("enable_bias", True)
    has_final_norm = c.flag("do_layer_norm_before", default=True) and not c.flag(
        "_remove_final_layer_norm", default=False
    )
    style = Style(
        names=Names(
            "model", "decoder.layers", "decoder.embed_tokens", "decoder.final_layer_norm" if has_final_norm else ""
        ),
        tied=True,
        attention=(*LLAMA.attention[:3], "self_attn.out_proj"),
        feed_forward=("fc1", "fc2"),
        biases=(bias, bias, bias),
        rotary=False,
        gated=False,
        activation="relu",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        norm_kind="layer",
        norm_weight=c.flag("layer_norm_elementwise_affine", default=True),
        hidden_dropout=("dropout", 0.1),
    )
    width = c.size("word_embed_proj_dim", default=sizes.hidden)
    outside = positions(c, "decoder.embed_positions", sizes.hidden, "max_position_embeddings", offset=2)
    if width != sizes.hidden:
        outside += linear("decoder.project_in", width, sizes.hidden, "embedding")
        outside += linear("decoder.project_out", sizes.hidden, width, "other")
    return build(c, sizes, style, outside=outside, embed_width=width)
