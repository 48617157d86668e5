"""From a `config.json` to a `ModelShape`, by arithmetic: one small function for each of transformers' model types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..errors import ModelConfigError
from ..model_shape import ModelShape
from . import gpt, llama
from .body import Body
from .fields import Fields

# Ten times the largest model that anyone has announced; beyond it the dimensions of the file are not a model's.
MAX_PARAMETERS = 10**15


@dataclass(frozen=True, slots=True)
class Family:
    """transformers' classes of one model type: the stem of their names, and the function that knows their tensors."""

    stem: str
    body: Callable[[Fields], Body]


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family("GPT2", gpt.gpt2),
    "gpt_neo": Family("GPTNeo", gpt.gpt_neo),
    "llama": Family("Llama", llama.llama),
    "mistral": Family("Mistral", llama.mistral),
    "qwen2": Family("Qwen2", llama.qwen2),
}


def shape_from_config(config: Mapping[str, object], *, name: str, source: str = "") -> ModelShape:
    """The exact parameter tensors and dimensions of the model that transformers builds from this `config.json`.

    The class is the first of `architectures`; without it the family's usual one (for a decoder its causal language model).
    Fields that the file lacks take the defaults of transformers 5.23's configuration class where published files omit
    them; a dimension that every published file states is required.

    Not covered: buffers; quantised weights (the shapes are those of the unquantised model); adapters.

    Raises ModelConfigError for an unknown `model_type`, a class that is not known for it, and a field that is missing,
    of the wrong type, out of range or in contradiction to another one; the message names the field.
    """
    c = Fields(config, name)
    model_type = c.text("model_type", default="")
    family = FAMILIES.get(model_type)
    if family is None:
        raise ModelConfigError(
            f"{name}: model_type {model_type!r} is not supported" if model_type else f"{name}: model_type is missing",
            why="the parameter tensors of this family are not known here",
            fix=f"use one of: {', '.join(sorted(FAMILIES))}")
    body = family.body(c)
    suffix = _class_suffix(c, family.stem, body)
    head = body.heads[suffix]
    base = "" if suffix == "Model" else f"{body.base}."
    shape = ModelShape(
        name=name, model_type=model_type, architecture=family.stem + suffix, hidden_size=body.hidden_size,
        vocab_size=body.vocab_size if head.logits else 0, num_labels=head.labels,
        blocks=tuple(replace(block, prefix=base + block.prefix) for block in body.blocks),
        outside=head.tensors + tuple(
            replace(tensor, name=base + tensor.name) for tensor in body.outside + head.base_tensors),
        tied=head.tied, max_positions=body.max_positions, encoder_len_fixed=body.encoder_len_fixed,
        logit_softcap=body.logit_softcap, source=source)
    if shape.parameters > MAX_PARAMETERS:
        raise c.error(f"hidden_size, num_hidden_layers and the others give {shape.parameters:.1e} parameters",
                      why="no model is that large")
    return shape


def _class_suffix(c: Fields, stem: str, body: Body) -> str:
    """Which of the body's heads the config asks for, by the ending of its class name."""
    named = c.items("architectures") or []
    if not named:
        return next(iter(body.heads))
    wanted = named[0]
    endings = [ending for ending in body.heads if isinstance(wanted, str) and wanted.endswith(ending)]
    if not endings:
        raise c.error("architectures names a class that is not supported",
                      why=f"known for this model_type: {', '.join(stem + ending for ending in body.heads)}")
    return max(endings, key=len)
