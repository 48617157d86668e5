"""What a family makes of a config: layers, the tensors outside them, and the heads that its classes put on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from ..model_shape import Block, NormKind
from .parts import Tensors, linear, norm


class Head(NamedTuple):
    """What one transformers class adds to the base model."""

    tensors: Tensors = ()
    """The tensors on top of the base model, with their full names."""
    base_tensors: Tensors = ()
    """The tensors that it adds inside the base model (BERT's pooler)."""
    bare: bool = False
    """The class is the base model itself, whose tensors have no prefix."""
    logits: bool = False
    """The head predicts tokens."""
    tied: bool = False
    """The head's weight is the input embedding's."""
    labels: int = 0
    """The head predicts one of so many classes, 0: it predicts none."""


class Body(NamedTuple):
    """A base model. Names are relative to `base`, the attribute under which the classes with a head keep it."""

    base: str
    hidden_size: int
    vocab_size: int
    blocks: tuple[Block, ...]
    outside: Tensors
    heads: Mapping[str, Head]
    """The heads by the suffix of the class name (`ForCausalLM`); the first is meant where a config names no class."""
    max_positions: int | None = None
    encoder_len_fixed: int | None = None
    logit_softcap: bool = False
    idle_tower: bool = False
    """As in `ModelShape`."""


def stack(layers: Sequence[Block]) -> tuple[Block, ...]:
    """The runs of identical layers; equal layers must be the same object.

    Layers with equal tensors that differ in their dimensions only (a window in every other layer) are gathered although
    they alternate: no name or size depends on their order, and two blocks are cheaper to estimate than sixty.
    """
    kinds = {id(layer): layer for layer in layers}
    order = [id(layer) for layer in layers]
    if all(kind.tensors == layers[0].tensors for kind in kinds.values()):
        order.sort(key=list(kinds).index)
    return tuple(replace(kinds[kind], count=len(list(run))) for kind, run in groupby(order))


def norms(names: Sequence[str], width: int, kind: NormKind, *, bias: bool = True) -> Tensors:
    """The norms over the hidden size; an RMSNorm has no shift."""
    return tuple(tensor for name in names for tensor in norm(name, width, bias=bias and kind == "layer"))


def decoder_heads(
    hidden: int,
    vocab: int,
    *,
    tied: bool,
    labels: int,
    name: str = "lm_head",
    bias: bool = False,
    suffix: str = "ForCausalLM",
) -> dict[str, Head]:
    """The classes that transformers has for nearly every decoder."""
    output = linear(name, hidden, vocab, "head", bias=bias)
    return {
        suffix: Head(tensors=output[1:] if tied else output, logits=True, tied=tied),
        "ForSequenceClassification": Head(tensors=linear("score", hidden, labels, "head"), labels=labels),
        "Model": Head(bare=True),
    }
