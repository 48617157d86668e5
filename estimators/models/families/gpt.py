"""GPT-2 and the decoders of its time: LayerNorm with a shift, biases, a plain feed-forward, positions of many kinds."""

from __future__ import annotations

from dataclasses import replace

from .body import Body, norms
from .decoder import Dims, Style, build
from .fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .parts import Tensors, embedding, linear

Names = tuple[str, ...]
HIDDEN, LAYERS, HEADS = ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")


def dims(
    c: Fields,
    *,
    hidden: Names = HIDDEN,
    layers: Names = LAYERS,
    heads: Names = HEADS,
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


def gpt_style(*, transposed: bool = False, suffix: str = "ForCausalLM") -> Style:
    return Style(
        base="transformer",
        layers="h",
        embed="wte",
        final_norm="ln_f",
        suffix=suffix,
        tied=True,
        transposed=transposed,
        hidden_dropout=("resid_pdrop", 0.1),
        attention_dropout=("attn_pdrop", 0.1),
        qkv=("attn.c_attn",),
        out="attn.c_proj",
        qkv_bias=True,
        out_bias=True,
        rotary=False,
        gated=False,
        gate_up=("mlp.c_fc",),
        down="mlp.c_proj",
        mlp_bias=True,
        activation="gelu_new",
        norms=("ln_1", "ln_2"),
        norm_kind="layer",
    )


def gpt2(c: Fields) -> Body:
    c.refuse("add_cross_attention")
    sizes = gpt_dims(c)
    return build(c, sizes, gpt_style(transposed=True, suffix="LMHeadModel"), outside=gpt_positions(c, sizes))


def gpt_bigcode(c: Fields) -> Body:
    c.refuse("add_cross_attention")
    sizes = gpt_dims(c, kv_heads=1 if c.flag("multi_query", default=True) else None)
    return build(c, sizes, gpt_style(), outside=gpt_positions(c, sizes))


def gpt_neo(c: Fields) -> Body:
    sizes = dims(
        c,
        layers=("num_layers", "num_hidden_layers"),
        heads=("num_heads", "num_attention_heads"),
        feed_forward="intermediate_size",
    )
    at = "attn.attention"
    style = Style(
        base="transformer",
        layers="h",
        embed="wte",
        final_norm="ln_f",
        tied=True,
        rotary=False,
        hidden_dropout=("resid_dropout", 0.0),
        qkv=(f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj"),
        out=f"{at}.out_proj",
        out_bias=True,
        gated=False,
        gate_up=("mlp.c_fc",),
        down="mlp.c_proj",
        mlp_bias=True,
        activation="gelu_new",
        norms=("ln_1", "ln_2"),
        norm_kind="layer",
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
    style = Style(
        base="transformer",
        layers="h",
        embed="wte",
        final_norm="ln_f",
        head_bias=True,
        hidden_dropout=("resid_pdrop", 0.0),
        attention_dropout=("attn_pdrop", 0.0),
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        out="attn.out_proj",
        gated=False,
        gate_up=("mlp.fc_in",),
        down="mlp.fc_out",
        mlp_bias=True,
        activation="gelu_new",
        norms=("ln_1",),
        norm_kind="layer",
        parallel=True,
    )
    return build(c, gpt_dims(c), style)


def gpt_neox(c: Fields) -> Body:
    bias = c.flag("attention_bias", default=True)
    style = Style(
        base="gpt_neox",
        embed="embed_in",
        final_norm="final_layer_norm",
        hidden_dropout=("hidden_dropout", 0.0),
        qkv=("attention.query_key_value",),
        out="attention.dense",
        qkv_bias=bias,
        out_bias=bias,
        gated=False,
        gate_up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        mlp_bias=True,
        activation="gelu",
        norm_kind="layer",
        parallel=c.flag("use_parallel_residual", default=True),
    )
    return build(c, dims(c, feed_forward="intermediate_size", factor=None), style)


def bloom_style(*, bias: bool, names: tuple[str, ...], parallel: bool = False, rotary: bool = False) -> Style:
    return Style(
        base="transformer",
        layers="h",
        embed="word_embeddings",
        final_norm="ln_f",
        tied=True,
        rotary=rotary,
        hidden_dropout=("hidden_dropout", 0.0),
        qkv=("self_attention.query_key_value",),
        out="self_attention.dense",
        qkv_bias=bias,
        out_bias=bias,
        gated=False,
        gate_up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        mlp_bias=bias,
        activation="gelu",
        norms=names,
        norm_kind="layer",
        parallel=parallel,
    )


TWO_NORMS = ("input_layernorm", "post_attention_layernorm")


def bloom(c: Fields) -> Body:
    sizes = dims(c, hidden=("hidden_size", "n_embed"), layers=LAYERS[::-1], heads=HEADS[::-1])
    return build(
        c,
        sizes,
        bloom_style(bias=True, names=TWO_NORMS),
        outside=norms(("word_embeddings_layernorm",), sizes.hidden, "layer"),
    )


def falcon(c: Fields) -> Body:
    """Three generations: sequential layers (1B), parallel with one norm (7B), parallel with a norm each (40B, 180B)."""
    new = c.flag("new_decoder_architecture", default=False)
    parallel = new or c.flag("parallel_attn", default=True)
    single = c.size("num_ln_in_parallel_attn", default=2 if new else 1) == 1
    kv_heads = c.size_or_none("num_kv_heads") if new else 1 if c.flag("multi_query", default=True) else None
    names = TWO_NORMS if not parallel else TWO_NORMS[:1] if single else ("ln_attn", "ln_mlp")
    style = bloom_style(
        bias=c.flag("bias", default=False), names=names, parallel=parallel, rotary=not c.flag("alibi", default=False)
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
    style = Style(
        base="transformer",
        layers="blocks",
        embed="wte",
        final_norm="norm_f",
        tied=True,
        rotary=False,
        hidden_dropout=("resid_pdrop", 0.0),
        qkv=("attn.Wqkv",),
        out="attn.out_proj",
        gated=False,
        gate_up=("ffn.up_proj",),
        down="ffn.down_proj",
        activation="gelu",
        norms=("norm_1", "norm_2"),
        norm_kind="layer",
        norm_bias=False,
    )
    return build(c, sizes, style)


def opt(c: Fields) -> Body:
    sizes, bias = dims(c, feed_forward="ffn_dim", factor=None), c.flag("enable_bias", default=True)
    final = c.flag("do_layer_norm_before", default=True) and not c.flag("_remove_final_layer_norm", default=False)
    style = Style(
        layers="decoder.layers",
        embed="decoder.embed_tokens",
        final_norm="decoder.final_layer_norm" if final else "",
        hidden_dropout=("dropout", 0.1),
        tied=True,
        rotary=False,
        out="self_attn.out_proj",
        qkv_bias=bias,
        out_bias=bias,
        gated=False,
        gate_up=("fc1",),
        down="fc2",
        mlp_bias=bias,
        activation="relu",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        norm_kind="layer",
        norm_weight=c.flag("layer_norm_elementwise_affine", default=True),
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
        base="transformer",
        layers="encoder.layers",
        embed="embedding.word_embeddings",
        final_norm="encoder.final_layernorm",
        hidden_dropout=("hidden_dropout", 0.0),
        head="transformer.output_layer",
        suffix="ForConditionalGeneration",
        qkv=("self_attention.query_key_value",),
        out="self_attention.dense",
        qkv_bias=bias or c.flag("add_qkv_bias", default=False),
        out_bias=bias,
        gate_up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        mlp_bias=bias,
    )
    body = build(c, sizes, style)
    # Published files name the class ChatGLMModel, and mean the one with a head.
    return replace(body, heads=dict.fromkeys(("ForConditionalGeneration", "Model"), next(iter(body.heads.values()))))
