"""Llama and its dense kin: what each family's configuration and classes do differently from Llama's."""

from __future__ import annotations

from .body import (
    AttentionPart,
    Body,
    Dims,
    Names,
    Style,
    Tensors,
    build,
    embedding,
    grouped_query,
    linear,
    norm,
    norms,
    parameter,
    window_size,
    windows,
)
from .config_fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields

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
