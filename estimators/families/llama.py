"""Llama and its kin: rotary positions, grouped-query attention; one function builds them all from a `Style`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..model_shape import Attention, Block, FeedForward, NormKind
from .body import Body, decoder_heads, norms, stack
from .fields import MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .parts import Tensors, attention_linears, embedding, feed_forward_linears, norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The dimensions that every model of this kind has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def read(cls, c: Fields, *, kv_heads: int | None = None, head_dim: int | None = None) -> Dims:
        """`kv_heads` and `head_dim` are the class's defaults; None: as many as heads, and hidden size / heads."""
        hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
        # An explicit null means "as many as heads" also where the class has another default.
        kv = c.size("num_key_value_heads",
                    default=heads if kv_heads is None or c.given("num_key_value_heads") else kv_heads)
        c.divide("num_attention_heads", heads, "num_key_value_heads", kv)
        dim = c.size_or_none("head_dim") or head_dim or c.divide("hidden_size", hidden, "num_attention_heads", heads)
        return cls(hidden=hidden, layers=c.size("num_hidden_layers", limit=MAX_LAYERS), heads=heads, kv_heads=kv,
                   head_dim=dim, vocab=c.size("vocab_size", limit=MAX_VOCABULARY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a family differs from Llama.

    qkv, out, gate_up, down: names of the projections in a layer; one name in `qkv`, or for gate and up: fused.
    qk_norm:   norm of queries and keys, over one head ("head") or over all of them ("all").
    norms:     names of the norms over the hidden size in a layer; norm_weight, norm_bias: what they learn.
    windows:   attention window of each layer, None for all keys; given once for all layers alike.
    softcap:   attention scores are soft-capped; logit_softcap: the final logits are.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["", "head", "all"] = ""
    gated: bool = True
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_bias: bool = False
    activation: str = "silu"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_kind: NormKind = "rms"
    norm_weight: bool = True
    norm_bias: bool = True
    final_norm: str = "norm"
    parallel: bool = False
    softcap: bool = False
    logit_softcap: bool = False
    tied: bool = False
    head_bias: bool = False


LLAMA = Style()


def windows(c: Fields, layers: int, window: int | None, sliding: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer: by `layer_types` where the config has them, else in the layers that `sliding` names."""
    kinds = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return tuple(window if sliding(layer) else None for layer in range(layers))


Part = tuple[FeedForward, Tensors]


def build(c: Fields, dims: Dims, style: Style, *, attention: tuple[Attention, Tensors] | None = None,
          dense: Part | None = None, sparse: Part | None = None, is_sparse: Sequence[bool] = (),
          window: Sequence[int | None] = ()) -> Body:
    """Embedding, `dims.layers` layers, a final norm, a head.

    attention, dense: instead of the grouped-query attention and the feed-forward that the style describes;
    sparse:           mixture of experts, in the layers that `is_sparse` marks;
    window:           attention window of each layer (none: every query sees all keys).
    """
    attend, attention_tensors = attention or grouped_query(dims, style)
    norm_tensors = norms(style.norms, dims.hidden, style.norm_kind, bias=style.norm_bias) if style.norm_weight else ()

    def layer(kind: tuple[bool, int | None]) -> Block:
        expert, reach = kind
        feed_forward, tensors = (sparse if expert and sparse else None) or dense or feed_forward_part(c, dims, style)
        return Block(prefix="layers", count=1, tensors=attention_tensors + tensors + norm_tensors,
                     attention=replace(attend, window=reach), feed_forward=feed_forward, norm=style.norm_kind,
                     norm_count=len(style.norms), parallel=style.parallel)

    kinds = list(zip(is_sparse or (False,) * dims.layers, window or (None,) * dims.layers, strict=True))
    blocks = {kind: layer(kind) for kind in set(kinds)}
    outside = embedding("embed_tokens", dims.vocab, dims.hidden)
    if style.norm_weight:
        outside += norms((style.final_norm,), dims.hidden, style.norm_kind, bias=style.norm_bias)
    return Body(
        base="model", hidden_size=dims.hidden, vocab_size=dims.vocab,
        blocks=stack([blocks[kind] for kind in kinds]), outside=outside,
        heads=decoder_heads(dims.hidden, dims.vocab, tied=c.flag("tie_word_embeddings", default=style.tied),
                            labels=c.labels(), bias=style.head_bias),
        max_positions=c.size_or_none("max_position_embeddings", limit=MAX_POSITIONS), logit_softcap=style.logit_softcap)


def grouped_query(dims: Dims, style: Style) -> tuple[Attention, Tensors]:
    attention = Attention(heads=dims.heads, kv_heads=dims.kv_heads, head_dim=dims.head_dim, v_head_dim=dims.head_dim,
                          qk_norm=bool(style.qk_norm), softcap=style.softcap)
    tensors = attention_linears(attention, dims.hidden, style.qkv, style.out, bias=style.qkv_bias,
                                output_bias=style.out_bias)
    if style.qk_norm:
        queries, keys = (dims.heads, dims.kv_heads) if style.qk_norm == "all" else (1, 1)
        tensors += norm("self_attn.q_norm", queries * dims.head_dim) + norm("self_attn.k_norm", keys * dims.head_dim)
    return attention, tensors


def feed_forward_part(c: Fields, dims: Dims, style: Style) -> Part:
    feed_forward = FeedForward(hidden=c.size("intermediate_size"), gated=style.gated,
                               activation=c.text("hidden_act", "hidden_activation", default=style.activation))
    return feed_forward, feed_forward_linears(feed_forward, dims.hidden, style.gate_up, style.down, bias=style.mlp_bias)


def llama(c: Fields) -> Body:
    bias = c.flag("attention_bias", default=False)
    return build(c, Dims.read(c), Style(qkv_bias=bias, out_bias=bias, mlp_bias=c.flag("mlp_bias", default=False)))


def mistral(c: Fields) -> Body:
    dims = Dims.read(c, kv_heads=8)
    reach = c.size_or_none("sliding_window", limit=MAX_POSITIONS) if c.given("sliding_window") else 4096
    return build(c, dims, LLAMA, window=(reach,) * dims.layers)


def qwen2(c: Fields) -> Body:
    dims = Dims.read(c, kv_heads=32)
    return build(c, dims, Style(qkv_bias=True), window=late_windows(c, dims))


def late_windows(c: Fields, dims: Dims) -> tuple[int | None, ...]:
    """Qwen's rule: with `use_sliding_window`, the layers from `max_window_layers` on have a window."""
    window = c.size("sliding_window", default=4096, limit=MAX_POSITIONS)
    first = c.count("max_window_layers", default=28, limit=MAX_LAYERS)
    return windows(c, dims.layers, window if c.flag("use_sliding_window", default=False) else None,
                   lambda layer: layer >= first)
