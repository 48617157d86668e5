"""GPT-2 and the decoders of its time: LayerNorm with a shift, biases, a plain feed-forward, positions of many kinds."""

from __future__ import annotations

from .body import Body, norms
from .decoder import Dims, Names, Style, build
from .fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .parts import Tensors, embedding, linear

Fieldnames = tuple[str, ...]
WIDENED = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
HIDDEN, LAYERS, HEADS = ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")


def dims(
    c: Fields,
    *,
    hidden: Fieldnames = HIDDEN,
    layers: Fieldnames = LAYERS,
    heads: Fieldnames = HEADS,
    feed_forward: str = "",
    factor: int | None = 4,
    kv_heads: int | None = None,
    vocab: str = "vocab_size",
) -> Dims:
    """Dimensions under the names of one family; the feed-forward is `factor` times as wide unless a field says."""
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
        vocab=c.size(vocab, limit=MAX_VOCABULARY),
    )


def positions(c: Fields, name: str, width: int, *names: str, offset: int = 0) -> Tensors:
    """A learned embedding of positions; OPT's begins at row two."""
    return embedding(name, c.size(*names, limit=MAX_POSITIONS) + offset, width, "position")


def gpt_dims(c: Fields, *, kv_heads: int | None = None) -> Dims:
    return dims(
        c, hidden=HIDDEN[::-1], layers=LAYERS[::-1], heads=HEADS[::-1], feed_forward="n_inner", kv_heads=kv_heads
    )


def gpt_positions(c: Fields, sizes: Dims) -> Tensors:
    return positions(c, "wpe", sizes.hidden, "n_positions", "max_position_embeddings")


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
    c.refuse("add_cross_attention")
    sizes = gpt_dims(c)
    return build(c, sizes, GPT._replace(transposed=True, suffix="LMHeadModel"), outside=gpt_positions(c, sizes))


def gpt_bigcode(c: Fields) -> Body:
    c.refuse("add_cross_attention")
    sizes = gpt_dims(c, kv_heads=1 if c.flag("multi_query", default=True) else None)
    return build(c, sizes, GPT, outside=gpt_positions(c, sizes))


def gpt_neo(c: Fields) -> Body:
    sizes = dims(
        c,
        layers=("num_layers", "num_hidden_layers"),
        heads=("num_heads", "num_attention_heads"),
        feed_forward="intermediate_size",
    )
    at = "attn.attention"
    style = GPT._replace(
        attention=(f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj", f"{at}.out_proj"),
        biases=(False, True, True),
        hidden_dropout=("resid_dropout", 0.0),
        attention_dropout=("attention_dropout", 0.0),
    )
    reach = c.size("window_size", default=256, limit=MAX_POSITIONS)
    return build(
        c,
        sizes,
        style,
        outside=positions(c, "wpe", sizes.hidden, "max_position_embeddings"),
        window=[reach if kind == "local" else None for kind in neo_attention(c, sizes.layers)],
    )


def neo_attention(c: Fields, layers: int) -> list[str]:
    """`attention_types`: [[["global", "local"], 12]] is that pair twelve times."""
    kinds = ("global", "local")
    groups = c.items("attention_types")
    if groups is None:
        return c.per_layer("attention_layers", layers, kinds) or [kinds[layer % 2] for layer in range(layers)]
    expanded: list[object] = []
    for group in groups:
        match group:
            case [[*pattern], int(times)] if 0 <= times <= layers:
                expanded += pattern * times
            case _:
                raise c.error("attention_types must be a list of [[kinds], times]")
    return Fields({"attention_types": expanded}, c.where).per_layer("attention_types", layers, kinds) or []


def gptj(c: Fields) -> Body:
    style = GPT._replace(
        tied=False,
        head_bias=True,
        attention=("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
        feed_forward=("mlp.fc_in", "mlp.fc_out"),
        biases=(False, False, True),
        rotary=True,
        norms=("ln_1",),
        parallel=True,
        hidden_dropout=("resid_pdrop", 0.0),
        attention_dropout=("attn_pdrop", 0.0),
    )
    return build(c, gpt_dims(c), style)


def gpt_neox(c: Fields) -> Body:
    bias = c.flag("attention_bias", default=True)
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
    norms=Style().norms,
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
    bias = c.flag("bias", default=False)
    style = BLOOM._replace(
        biases=(bias, bias, bias),
        rotary=not c.flag("alibi", default=False),
        norms=BLOOM.norms if not parallel else BLOOM.norms[:1] if single else ("ln_attn", "ln_mlp"),
        parallel=parallel,
    )
    sizes = dims(c, hidden=("hidden_size", "n_embed"), feed_forward="ffn_hidden_size", kv_heads=kv_heads)
    return build(c, sizes, style)


def mpt(c: Fields) -> Body:
    """As transformers builds it: no biases, ALiBi and four times the width, whatever the switches for them say."""
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
    sizes, bias = dims(c, feed_forward="ffn_dim", factor=None), c.flag("enable_bias", default=True)
    has_final_norm = c.flag("do_layer_norm_before", default=True) and not c.flag(
        "_remove_final_layer_norm", default=False
    )
    style = Style(
        names=Names(
            "model", "decoder.layers", "decoder.embed_tokens", "decoder.final_layer_norm" if has_final_norm else ""
        ),
        tied=True,
        attention=(*Style().attention[:3], "self_attn.out_proj"),
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


def chatglm(c: Fields) -> Body:
    """ChatGLM's remote code (ChatGLM2, ChatGLM3, GLM-4): fused projections, rotary positions, RMSNorm."""
    sizes = dims(
        c,
        layers=("num_layers",),
        feed_forward="ffn_hidden_size",
        factor=None,
        vocab="padded_vocab_size",
        kv_heads=c.size("multi_query_group_num") if c.flag("multi_query_attention", default=False) else None,
    )
    bias = c.flag("add_bias_linear", default=False)
    style = Style(
        names=Names("transformer", "encoder.layers", "embedding.word_embeddings", "encoder.final_layernorm"),
        head="transformer.output_layer",
        suffix="ForConditionalGeneration",
        attention=BLOOM.attention,
        feed_forward=WIDENED,
        biases=(bias or c.flag("add_qkv_bias", default=False), bias, bias),
        hidden_dropout=("hidden_dropout", 0.0),
    )
    body = build(c, sizes, style)
    # Published files name the class ChatGLMModel, and mean the one with a head.
    return body._replace(heads=dict.fromkeys(("ForConditionalGeneration", "Model"), next(iter(body.heads.values()))))
