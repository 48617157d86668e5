"""Decoders of GPT's making: LayerNorm with bias, plain feed-forward, learned positions or others of its time."""

from __future__ import annotations

from ..model_shape import Attention, Block, FeedForward
from .body import Body, decoder_heads, norms, stack
from .fields import MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .parts import attention_linears, embedding, feed_forward_linears

NEO_QKV = ("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj")


def gpt2(c: Fields) -> Body:
    hidden, heads = c.size("n_embd", "hidden_size"), c.size("n_head", "num_attention_heads")
    dim = c.divide("n_embd", hidden, "n_head", heads)
    vocab = c.size("vocab_size", limit=MAX_VOCABULARY)
    positions = c.size("n_positions", "max_position_embeddings", limit=MAX_POSITIONS)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, rotary=False)
    feed_forward = FeedForward(hidden=c.size("n_inner", default=4 * hidden), gated=False,
                               activation=c.text("activation_function", default="gelu_new"))
    layer = Block(
        prefix="h", count=1, attention=attention, feed_forward=feed_forward, norm="layer",
        tensors=norms(("ln_1",), hidden, "layer")
        + attention_linears(attention, hidden, ("attn.c_attn",), "attn.c_proj", bias=True, output_bias=True,
                            transposed=True)
        + norms(("ln_2",), hidden, "layer")
        + feed_forward_linears(feed_forward, hidden, ("mlp.c_fc",), "mlp.c_proj", bias=True, transposed=True))
    return Body(
        base="transformer", hidden_size=hidden, vocab_size=vocab, max_positions=positions,
        blocks=stack([layer] * c.size("n_layer", "num_hidden_layers", limit=MAX_LAYERS)),
        outside=embedding("wte", vocab, hidden) + embedding("wpe", positions, hidden, "position")
        + norms(("ln_f",), hidden, "layer"),
        heads=decoder_heads(hidden, vocab, tied=c.flag("tie_word_embeddings", default=True), labels=c.labels(),
                            suffix="LMHeadModel"))


def gpt_neo(c: Fields) -> Body:
    hidden, heads = c.size("hidden_size"), c.size("num_heads", "num_attention_heads")
    layers = c.size("num_layers", "num_hidden_layers", limit=MAX_LAYERS)
    dim = c.divide("hidden_size", hidden, "num_heads", heads)
    vocab = c.size("vocab_size", limit=MAX_VOCABULARY)
    positions = c.size("max_position_embeddings", limit=MAX_POSITIONS)
    window = c.size("window_size", default=256, limit=MAX_POSITIONS)
    feed_forward = FeedForward(hidden=c.size("intermediate_size", default=4 * hidden), gated=False,
                               activation=c.text("activation_function", default="gelu_new"))

    def layer(reach: int | None) -> Block:
        attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, rotary=False, window=reach)
        return Block(
            prefix="h", count=1, attention=attention, feed_forward=feed_forward, norm="layer",
            tensors=norms(("ln_1",), hidden, "layer")
            + attention_linears(attention, hidden, NEO_QKV, "attn.attention.out_proj", output_bias=True)
            + norms(("ln_2",), hidden, "layer")
            + feed_forward_linears(feed_forward, hidden, ("mlp.c_fc",), "mlp.c_proj", bias=True))

    kinds = {"global": layer(None), "local": layer(window)}
    return Body(
        base="transformer", hidden_size=hidden, vocab_size=vocab, max_positions=positions,
        blocks=stack([kinds[kind] for kind in _neo_attention(c, layers)]),
        outside=embedding("wte", vocab, hidden) + embedding("wpe", positions, hidden, "position")
        + norms(("ln_f",), hidden, "layer"),
        heads=decoder_heads(hidden, vocab, tied=c.flag("tie_word_embeddings", default=True), labels=c.labels()))


def _neo_attention(c: Fields, layers: int) -> list[str]:
    """GPT-Neo's `attention_types`: [[["global", "local"], 12]] is that pair twelve times."""
    kinds = c.per_layer("attention_layers", layers, ("global", "local"))
    if kinds is not None:
        return kinds
    groups = c.items("attention_types")
    if groups is None:
        return [("global", "local")[layer % 2] for layer in range(layers)]
    expanded: list[object] = []
    for group in groups:
        match group:
            case [[*pattern], int(times)] if 0 < times <= MAX_LAYERS and len(expanded) < layers:
                expanded.extend(pattern * times)
            case _:
                raise c.error("attention_types must be a list of [[kinds], times] that fills num_layers")
    filled = Fields({"attention_types": expanded}, c.where)
    return filled.per_layer("attention_types", layers, ("global", "local")) or []
