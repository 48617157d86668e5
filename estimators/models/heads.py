"""Models without a vocabulary: with a head for labels of a sequence, or without any head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..errors import WorkloadError
from .body import linear, norm
from .model_shape import ModelShape, Tensor
from .program import OuterPrograms, Program

_SUFFIX = re.compile(r"(For[A-Z]\w+|LMHeadModel|(Text)?Model)$")
"""End of a class name, from which the names of the model's other classes differ."""


class Classifier(NamedTuple):
    """Tensors of a head for labels."""

    output: str = "score"
    """Module of its last layer."""
    dense: str = ""
    """Module of the square layer before it, with bias; "" without one. A leading dot stands for the base model."""
    norm: str = ""
    """LayerNorm without bias between both; "" without one."""

    @property
    def module(self) -> str:
        """The module that peft trains whole (peft 0.21 peft_model.py PeftModelForSequenceClassification)."""
        return self.output.partition(".")[0]


_POOLED = Classifier("classifier", ".pooler.dense")
_TWO_LAYERS = Classifier("classifier.out_proj", "classifier.dense")
_OUTER_POOLER = Classifier("classifier", "pooler.dense")
CLASSIFIERS: Mapping[str, Classifier] = {
    "albert": Classifier("classifier", ".pooler"),
    "bert": _POOLED,
    "deberta": _OUTER_POOLER,
    "deberta-v2": _OUTER_POOLER,
    "distilbert": Classifier("classifier", "pre_classifier"),
    "ernie": _POOLED,
    "megatron-bert": _POOLED,
    "modernbert": Classifier("classifier", "head.dense", "head.norm"),
    "nomic_bert": _POOLED,
    "rembert": _POOLED,
}
"""Heads of `ForSequenceClassification` by model type, of encoders whose head is not RoBERTa's (transformers 5.23)."""

_MAKES_POOLER = frozenset(["mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"])
"""Types besides `_POOLED` whose base class makes a pooler by default (`add_pooling_layer`)."""


def find_classifier(model: ModelShape) -> Classifier:
    """Return the head for labels of a model's class."""
    if any(block.cross_attention for block in model.blocks):
        return Classifier("classification_head.out_proj", "classification_head.dense")
    is_encoder = not any(block.attention.causal for block in model.blocks)
    return CLASSIFIERS.get(model.model_type, _TWO_LAYERS if is_encoder else Classifier())


def with_labels(model: ModelShape, labels: int) -> ModelShape:
    """Return the model with a head of `labels` outputs in place of its own.

    A decoder's `score` is computed for every token; an encoder's head for one token of a sequence.

    Source: transformers 5.23 modeling_layers.py GenericForSequenceClassification; the encoders' own classes.
    """
    head, body, width = find_classifier(model), without_head(model, pooler=False), model.hidden_size
    dense = head.dense.replace(".", f"{_base(model)}.", 1) if head.dense.startswith(".") else head.dense
    tensors: tuple[Tensor, ...] = ()
    if dense:
        tensors += linear(dense.lstrip("."), width, width, "feed_forward", bias=not head.norm)
    if head.norm:
        tensors += norm(head.norm, width)
    tensors += linear(head.output, width, labels, "head", bias=bool(dense))
    return replace(
        body,
        architecture=f"{_stem(model)}ForSequenceClassification",
        num_labels=labels,
        outside=body.outside + tensors,
    )


def without_head(model: ModelShape, *, pooler: bool = True) -> ModelShape:
    """Return the base model, whose output is the last hidden state.

    pooler: whether a type with a pooler keeps it, as `AutoModel` makes one.

    Raises WorkloadError for a model whose head is not known to be one of text.
    """
    tables = [tensor for tensor in model.outside if tensor.role == "embedding"]
    if model.tied and not tables:  # classes that make the head first (XLMRobertaForMaskedLM) name the weight after it
        tables = [tensor._replace(role="embedding") for tensor in model.outside if tensor.role == "head"]
    if pooler and any(block.cross_attention for block in model.blocks):
        raise WorkloadError(f"{model.name} has no embedding of a text", fix="pass an encoder, or a decoder-only model")
    if model.encoder_len_fixed is not None or not tables:
        raise WorkloadError(
            f"{model.name} without its head is not known",
            why="only models of text are predicted with another head, or without one",
            fix="pass another model, or another --objective",
        )
    base = _base(model)
    inside = f"{base}." if base else ""
    kept = tuple(tensor for tensor in model.outside if tensor.role != "head" and tensor.name.startswith(inside))
    outside = (*(tensor for tensor in tables if tensor not in kept), *kept)
    if not pooler:
        outside = tuple(tensor for tensor in outside if "pooler" not in tensor.name)
    elif find_classifier(model) == _POOLED or model.model_type in _MAKES_POOLER:
        made = linear(f"{inside}pooler.dense", model.hidden_size, model.hidden_size, "feed_forward", bias=True)
        outside += () if any("pooler" in tensor.name for tensor in outside) else made
    outer = model.outer_programs
    return replace(
        model,
        architecture=f"{_stem(model)}Model",
        vocab_size=0,
        num_labels=0,
        tied=False,
        logit_softcap=False,
        outside=outside,
        outer_programs=outer and OuterPrograms(outer.prologue, _cut(outer.epilogue, {each.name for each in outside})),
    )


def _stem(model: ModelShape) -> str:
    return _SUFFIX.sub("", model.architecture)


def _base(model: ModelShape) -> str:
    """Return the attribute that holds the base model in classes with a head; "" for the base model itself, and if the
    class has no such attribute (T5)."""
    first = {block.prefix.partition(".")[0] for block in model.blocks}
    is_bare = not (model.vocab_size or model.num_labels)
    return "" if is_bare or len(first) > 1 else first.pop()


def _cut(epilogue: Program, kept: set[str]) -> Program:
    """Return the part of a program before it reads a weight of the head."""
    reads = (place for place, each in enumerate(epilogue.instructions) if not kept.issuperset(each.reads_weights))
    instructions = epilogue.instructions[: next(reads, None)]
    # Heads of encoders first select a token: the output is the last tensor with all of them.
    rows = epilogue.slots[epilogue.input].elements
    made = [number for each in instructions for number in each.outputs if epilogue.slots[number].elements == rows]
    return epilogue._replace(instructions=instructions, output=[epilogue.input, *made][-1], output_slots=())
