"""The one builder of decoders: an embedding, layers, a final norm and a head; a `Style` says how a family differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from ..model_shape import Attention, Block, FeedForward, NormKind
from .body import Body, decoder_heads, norms, stack
from .fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .parts import Tensors, attention_linears, embedding, feed_forward_linears, norm

AttentionPart = tuple[Attention, Tensors]
FeedForwardPart = tuple[FeedForward, Tensors]


class Dims(NamedTuple):
    """The dimensions that every decoder has."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def read(cls, c: Fields, **defaults: int) -> Dims:
        """From the fields of one config, with the defaults of its class.

        Without a default there are as many key/value heads as heads, and `head_dim` is hidden size / heads.
        """

        def size(name: str, **limit: int) -> int:
            return c.size(name, default=defaults.get(name), **limit)

        hidden, heads = size("hidden_size"), size("num_attention_heads", limit=MAX_HEADS)
        # An explicit null means "as many as heads" also where the class has another default.
        kv_default = heads if c.given("num_key_value_heads") else defaults.get("num_key_value_heads", heads)
        kv_heads = c.size("num_key_value_heads", default=kv_default)
        c.divide("num_attention_heads", heads, "num_key_value_heads", kv_heads)
        head_dim = (
            c.size_or_none("head_dim")
            or defaults.get("head_dim")
            or c.divide("hidden_size", hidden, "num_attention_heads", heads)
        )
        return cls(
            hidden=hidden,
            feed_forward=size("intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            layers=size("num_hidden_layers", limit=MAX_LAYERS),
            vocab=size("vocab_size", limit=MAX_VOCABULARY),
        )


class Names(NamedTuple):
    """The attributes under which a model keeps its parts; an empty `final_norm` means that it has none."""

    base: str = "model"
    layers: str = "layers"
    embed: str = "embed_tokens"
    final_norm: str = "norm"


LLAMA_NAMES = Names()


class Style(NamedTuple):
    """How a family differs from Llama."""

    names: Names = LLAMA_NAMES
    head: str = "lm_head"
    head_bias: bool = False
    suffix: str = "ForCausalLM"
    """How the class name of its language model ends."""
    tied: bool = False
    """The class's default of `tie_word_embeddings`."""
    transposed: bool = False
    """The linear layers are GPT-2's `Conv1D` in place of `nn.Linear`."""
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    """The projections of query, key and value (one name: fused), and of the output."""
    feed_forward: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    """The projections of gate and up (one name: fused, or not gated), and of the output."""
    biases: tuple[bool, bool, bool] = (False, False, False)
    """Which projections have a bias: query, key and value; the attention's output; the feed-forward's."""
    rotary: bool = True
    """Queries and keys get a rotary position embedding."""
    qk_norm: Literal["", "head", "all"] = ""
    """Queries and keys are normed, over one head or over all of them."""
    gated: bool = True
    activation: str = "silu"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """The norms over the hidden size in a layer, in the order of execution."""
    norm_kind: NormKind = "rms"
    norm_weight: bool = True
    """A norm learns a scale."""
    norm_bias: bool = True
    """A LayerNorm learns a shift."""
    parallel: bool = False
    hidden_dropout: tuple[str, float] = ("", 0.0)
    """The field of a config that states the dropout, and the class's default; no name: the class has no dropout."""
    attention_dropout: tuple[str, float] = ("attention_dropout", 0.0)
    softcap: bool = False
    """Attention scores are soft-capped."""
    logit_softcap: bool = False
    """The final logits are soft-capped."""


def build(
    c: Fields,
    dims: Dims,
    style: Style,
    *,
    attention: AttentionPart | None = None,
    attentions: Sequence[AttentionPart] = (),
    sparse: FeedForwardPart | None = None,
    is_sparse: Sequence[bool] = (),
    window: Sequence[int | None] = (),
    outside: Tensors = (),
    embed_width: int | None = None,
) -> Body:
    """Embedding, `dims.layers` layers, a final norm, a head.

    attention: in place of the grouped-query attention that dims and style describe; attentions: one for each layer;
    sparse:    a mixture of experts, in the layers that `is_sparse` marks (none marked: in all);
    window:    the keys that a query sees in each layer, None: all (nothing given: all in every layer);
    outside:   what else stands outside the layers; embed_width: width of the embedding where it is not the hidden size.
    """
    attends = attentions or (attention or grouped_query(dims, style),) * dims.layers
    norm_tensors = norms(style.norms, dims.hidden, style.norm_kind, bias=style.norm_bias) if style.norm_weight else ()

    def layer(expert: bool, reach: int | None, own: AttentionPart) -> Block:
        attend, attention_tensors = own
        feed_forward, tensors = sparse if sparse and expert else dense(c, dims, style)
        return Block(
            prefix=style.names.layers,
            count=1,
            tensors=attention_tensors + tensors + norm_tensors,
            attention=attend._replace(window=reach or attend.window),
            feed_forward=feed_forward,
            norm=style.norm_kind,
            norm_count=len(style.norms),
            parallel=style.parallel,
            hidden_dropout=dropout(c, style.hidden_dropout),
            attention_dropout=dropout(c, style.attention_dropout),
        )

    experts, reaches = is_sparse or (sparse is not None,) * dims.layers, window or (None,) * dims.layers
    kinds = list(zip(experts, reaches, attends, strict=True))
    layers = {kind: layer(*kind) for kind in set(kinds)}
    width, tied = embed_width or dims.hidden, c.flag("tie_word_embeddings", default=style.tied)
    outside = embedding(style.names.embed, dims.vocab, width) + outside
    if style.norm_weight and style.names.final_norm:
        outside += norms((style.names.final_norm,), dims.hidden, style.norm_kind, bias=style.norm_bias)
    return Body(
        base=style.names.base,
        hidden_size=dims.hidden,
        vocab_size=dims.vocab,
        blocks=stack([layers[kind] for kind in kinds]),
        outside=outside,
        logit_softcap=style.logit_softcap,
        heads=decoder_heads(
            width, dims.vocab, tied=tied, labels=c.labels(), name=style.head, bias=style.head_bias, suffix=style.suffix
        ),
        max_positions=c.size_or_none(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", limit=MAX_POSITIONS
        ),
    )


def dropout(c: Fields, field: tuple[str, float]) -> float:
    name, default = field
    return c.probability(name, default=default) if name else default


def grouped_query(dims: Dims, style: Style) -> AttentionPart:
    attention = Attention(
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        v_head_dim=dims.head_dim,
        rotary=style.rotary,
        qk_norm=bool(style.qk_norm),
        softcap=style.softcap,
    )
    tensors = attention_linears(
        attention,
        dims.hidden,
        style.attention,
        bias=style.biases[0],
        output_bias=style.biases[1],
        transposed=style.transposed,
    )
    if style.qk_norm:
        queries, keys = (dims.heads, dims.kv_heads) if style.qk_norm == "all" else (1, 1)
        tensors += norm("self_attn.q_norm", queries * dims.head_dim) + norm("self_attn.k_norm", keys * dims.head_dim)
    return attention, tensors


def dense(c: Fields, dims: Dims, style: Style) -> FeedForwardPart:
    feed_forward = FeedForward(
        hidden=dims.feed_forward,
        gated=style.gated,
        activation=c.text(
            "hidden_act", "hidden_activation", "activation_function", "activation", default=style.activation
        ),
    )
    return feed_forward, feed_forward_linears(
        feed_forward, dims.hidden, style.feed_forward, bias=style.biases[2], transposed=style.transposed
    )


def window_size(c: Fields, *, default: int | None = None) -> int | None:
    """`sliding_window`, which an explicit null or 0 switches off."""
    return c.positive("sliding_window", limit=MAX_POSITIONS) if c.given("sliding_window") else default


def windows(c: Fields, layers: int, window: int | None, slides: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer: by `layer_types` where the config has them, else in the layers that `slides` names."""
    kinds = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return tuple(window if slides(layer) else None for layer in range(layers))
