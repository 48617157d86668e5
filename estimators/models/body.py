"""Base models built from a config: parameter tensors, layers and heads; and the builder of decoders.

Names and shapes of tensors are those of torch and transformers. A `Style` describes how a decoder differs from Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple

from .config_fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .model_shape import Attention, Block, FeedForward, ImageSize, NormKind, Role, Tensor

Tensors = tuple[Tensor, ...]
AttentionPart = tuple[Attention, Tensors]
FeedForwardPart = tuple[FeedForward, Tensors]


def linear(
    name: str, wide_in: int, wide_out: int, role: Role, *, bias: bool = False, transposed: bool = False
) -> Tensors:
    """Tensors of an `nn.Linear`: weight (out, in), bias (out,). GPT-2's `Conv1D` has a transposed weight."""
    shape = (wide_in, wide_out) if transposed else (wide_out, wide_in)
    # Shapes are stored as in the checkpoint: LoRA's A and B follow from in and out features, not from the order.
    weight = Tensor(name=f"{name}.weight", shape=shape, role=role, linear=True, transposed=transposed)
    return (weight, Tensor(name=f"{name}.bias", shape=(wide_out,), role=role)) if bias else (weight,)


def norm(name: str, width: int, *, bias: bool = False) -> Tensors:
    """Tensors of a norm with a learned scale, and a learned shift with `bias`, as most LayerNorms have."""
    weight = Tensor(name=f"{name}.weight", shape=(width,), role="norm")
    return (weight, Tensor(name=f"{name}.bias", shape=(width,), role="norm")) if bias else (weight,)


def norms(names: Sequence[str], width: int, kind: NormKind, *, bias: bool = True) -> Tensors:
    """Tensors of norms over the hidden size. An RMSNorm has no shift."""
    return tuple(tensor for name in names for tensor in norm(name, width, bias=bias and kind == "layer"))


def embedding(name: str, rows: int, width: int, role: Role = "embedding") -> Tensors:
    return (Tensor(name=f"{name}.weight", shape=(rows, width), role=role),)


def parameter(name: str, *shape: int, role: Role, transposed: bool = False) -> Tensors:
    """A parameter outside any `nn.Linear`, such as fused expert weights."""
    return (Tensor(name=name, shape=shape, role=role, transposed=transposed),)


def attention_linears(
    dims: Attention,
    hidden: int,
    names: tuple[str, ...],
    *,
    bias: bool = False,
    output_bias: bool | None = None,
    transposed: bool = False,
) -> Tensors:
    """Tensors of the projections of one attention: query, key, value (a single name for a fused one), and the output.

    output_bias: whether the output projection has a bias; None for the value of `bias`.
    """
    *inputs, output = names
    widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.v_head_dim]
    if len(inputs) == 1:
        widths = [sum(widths)]
    tensors: Tensors = ()
    for name, width in zip(inputs, widths, strict=True):
        tensors += linear(name, hidden, width, "attention", bias=bias, transposed=transposed)
    last = bias if output_bias is None else output_bias
    return tensors + linear(output, dims.heads * dims.v_head_dim, hidden, "attention", bias=last, transposed=transposed)


def feed_forward_linears(
    dims: FeedForward, hidden: int, names: tuple[str, ...], *, bias: bool = False, transposed: bool = False
) -> Tensors:
    """Tensors of a dense feed-forward: gate and up (a single name if fused or not gated), and the output."""
    *inputs, output = names
    width = dims.hidden * 2 if dims.gated and len(inputs) == 1 else dims.hidden
    tensors: Tensors = ()
    for name in inputs:
        tensors += linear(name, hidden, width, "feed_forward", bias=bias, transposed=transposed)
    return tensors + linear(output, dims.hidden, hidden, "feed_forward", bias=bias, transposed=transposed)


class Head(NamedTuple):
    """Head that one transformers class adds to the base model."""

    tensors: Tensors = ()
    """Tensors on top of the base model, with their full names."""
    bare: bool = False
    """Whether the class is the base model itself, whose tensors have no prefix."""
    logits: bool = False
    """Whether the head predicts tokens."""
    tied: bool = False
    """Whether the head shares the input embedding's weight."""
    labels: int = 0
    """Number of classes that the head predicts; 0 for none."""


class Body(NamedTuple):
    """A base model. Names are relative to `base`, the attribute under which the classes with a head keep it."""

    base: str
    hidden_size: int
    vocab_size: int
    blocks: tuple[Block, ...]
    outside: Tensors
    heads: Mapping[str, Head]
    """Heads by the suffix of the class name (`ForCausalLM`); the first is the default."""
    max_positions: int | None = None
    encoder_len_fixed: int | None = None
    image: ImageSize | None = None
    logit_softcap: bool = False
    idle_tower: bool = False


def group_layers(layers: Sequence[Block]) -> tuple[Block, ...]:
    """Group layers into blocks of identical ones. Equal layers must be the same object.

    Alternating layers with equal tensors (a window in every other layer) are gathered: no name or size depends on their
    order, and two blocks are cheaper to estimate than sixty.
    """
    kinds = {id(layer): layer for layer in layers}
    order = [id(layer) for layer in layers]
    # Only layers of equal tensors may be reordered: ZeRO-3's prefetch and the buckets depend on the order of sizes.
    if all(kind.tensors == layers[0].tensors for kind in kinds.values()):
        order.sort(key=list(kinds).index)
    return tuple(replace(kinds[kind], count=len(list(run))) for kind, run in groupby(order))


def decoder_heads(
    hidden: int, vocab: int, *, tied: bool, labels: int, name: str = "lm_head", suffix: str = "ForCausalLM"
) -> dict[str, Head]:
    """Return the heads that transformers has for nearly every decoder."""
    output = () if tied else linear(name, hidden, vocab, "head")
    return {
        suffix: Head(tensors=output, logits=True, tied=tied),
        "ForSequenceClassification": Head(tensors=linear("score", hidden, labels, "head"), labels=labels),
        "Model": Head(bare=True),
    }


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
        """Read the dimensions from a config, with the defaults of its class.

        The number of key/value heads defaults to that of heads, and `head_dim` to hidden size / heads.
        """

        def size(name: str, **limit: int) -> int:
            return c.size(name, default=defaults.get(name), **limit)

        hidden, heads = size("hidden_size"), size("num_attention_heads", limit=MAX_HEADS)
        # An explicit null means "as many as heads", even if the class has another default.
        kv_default = heads if c.has("num_key_value_heads") else defaults.get("num_key_value_heads", heads)
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
    base: str = "model"
    layers: str = "layers"
    embed: str = "embed_tokens"
    final_norm: str = "norm"


Switch = bool | tuple[str, bool]
"""A fixed value, or a flag of the config with the class's default."""

ATTENTION_BIAS = ("attention_bias", False)
BIASED: tuple[Switch, Switch, Switch] = (ATTENTION_BIAS, ATTENTION_BIAS, False)
"""`attention_bias` for all four projections."""
LLAMA_BIASES: tuple[Switch, Switch, Switch] = (ATTENTION_BIAS, ATTENTION_BIAS, ("mlp_bias", False))


class Style(NamedTuple):
    """Differences of a family from Llama."""

    names: Names = Names()
    head: str = "lm_head"
    suffix: str = "ForCausalLM"
    """Ending of the class name of its language model."""
    tied: bool = False
    """The class's default of `tie_word_embeddings`."""
    transposed: bool = False
    """Whether the linear layers are GPT-2's `Conv1D` instead of `nn.Linear`."""
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    """Projections of query, key and value (a single name if fused), and of the output."""
    feed_forward: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    """Projections of gate and up (a single name if fused or not gated), and of the output."""
    biases: tuple[Switch, Switch, Switch] = (False, False, False)
    """Biases of: query, key and value; the attention's output; the feed-forward."""
    rotary: bool = True
    qk_norm: Literal["", "head", "all"] = ""
    """Norm of queries and keys, over each head or over all heads; "" without one."""
    gated: bool = True
    activation: str = "silu"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """The norms over the hidden size in a layer, in the order of execution."""
    norm_kind: NormKind = "rms"
    norm_weight: bool = True
    """Whether a norm learns a scale."""
    norm_bias: bool = True
    """Whether a LayerNorm learns a shift."""
    hidden_dropout: tuple[str, float] = ("", 0.0)
    """Name of the config's field for dropout, and the class's default; "" if the class has no dropout."""
    attention_dropout: tuple[str, float] = ("attention_dropout", 0.0)
    softcaps: bool | None = None
    """The class's default of soft-capped attention scores and logits; None if the class does not support them."""

    def has_biases(self, c: Fields) -> tuple[bool, bool, bool]:
        first, second, third = (
            bias if isinstance(bias, bool) else c.flag(bias[0], default=bias[1]) for bias in self.biases
        )
        return first, second, third

    def is_softcapped(self, c: Fields, field: str) -> bool:
        return self.softcaps is not None and c.is_set(f"{field}_logit_softcapping", default=self.softcaps)


WindowRule = Callable[[Fields, Dims], Sequence[int | None]]
"""Function that returns the attention window in each layer: the number of keys that a query sees, None for all."""


def decoder(style: Style, *, window: WindowRule | None = None, **defaults: int) -> Callable[[Fields], Body]:
    """Return the builder of a family that `style` fully describes. defaults: default dimensions of its class."""

    def body(c: Fields) -> Body:
        dims = Dims.read(c, **defaults)
        return build(c, dims, style, window=window(c, dims) if window else ())

    return body


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
) -> Body:
    """Build a decoder: embedding, `dims.layers` layers, a final norm, a head.

    attention: replaces the grouped-query attention that dims and style describe. attentions: one for each layer.
    sparse: a mixture of experts, in the layers that `is_sparse` marks (in all if it is empty).
    window: the number of keys that a query sees in each layer, None for all (all in every layer if it is empty).
    outside: further tensors outside the layers.
    """
    attends = attentions or (attention or grouped_query(c, dims, style),) * dims.layers
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
            hidden_dropout=dropout(c, style.hidden_dropout),
            attention_dropout=dropout(c, style.attention_dropout),
        )

    experts, reaches = is_sparse or (sparse is not None,) * dims.layers, window or (None,) * dims.layers
    kinds = list(zip(experts, reaches, attends, strict=True))
    # One object per kind: `group_layers` groups layers by identity.
    layers = {kind: layer(*kind) for kind in set(kinds)}
    tied = c.flag("tie_word_embeddings", default=style.tied)
    outside = embedding(style.names.embed, dims.vocab, dims.hidden) + outside
    if style.norm_weight:
        outside += norms((style.names.final_norm,), dims.hidden, style.norm_kind, bias=style.norm_bias)
    return Body(
        base=style.names.base,
        hidden_size=dims.hidden,
        vocab_size=dims.vocab,
        blocks=group_layers([layers[kind] for kind in kinds]),
        outside=outside,
        logit_softcap=style.is_softcapped(c, "final"),
        heads=decoder_heads(
            dims.hidden, dims.vocab, tied=tied, labels=c.labels(), name=style.head, suffix=style.suffix
        ),
        max_positions=c.size_or_none(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", limit=MAX_POSITIONS
        ),
    )


def dropout(c: Fields, field: tuple[str, float]) -> float:
    name, default = field
    return c.probability(name, default=default) if name else default


def grouped_query(c: Fields, dims: Dims, style: Style) -> AttentionPart:
    attention = Attention(
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        v_head_dim=dims.head_dim,
        rotary=style.rotary,
        qk_norm=bool(style.qk_norm),
        softcap=style.is_softcapped(c, "attn"),
    )
    bias, output_bias, _ = style.has_biases(c)
    tensors = attention_linears(
        attention, dims.hidden, style.attention, bias=bias, output_bias=output_bias, transposed=style.transposed
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
        feed_forward, dims.hidden, style.feed_forward, bias=style.has_biases(c)[2], transposed=style.transposed
    )


def window_size(c: Fields, *, default: int | None = None) -> int | None:
    """Return `sliding_window`. An explicit null or 0 disables it."""
    return c.positive("sliding_window", limit=MAX_POSITIONS) if c.has("sliding_window") else default


def switched_window(c: Fields) -> int | None:
    """Return `sliding_window` if `use_sliding_window` is on, otherwise None."""
    return window_size(c, default=4096) if c.flag("use_sliding_window", default=False) else None


def windows(c: Fields, layers: int, window: int | None, slides: Callable[[int], bool]) -> tuple[int | None, ...]:
    """Return the window of each layer, from `layer_types` if the config has it, otherwise where `slides` is true."""
    kinds = c.layer_types(layers, ("full_attention", "sliding_attention"))
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return tuple(window if slides(layer) else None for layer in range(layers))
