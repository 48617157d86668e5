"""How transformers' code of each model type computes a layer, as far as saved tensors differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...models.model_shape import Block
from .norms import NormVariant

SDPA_AND_FLASH = frozenset({"sdpa", "flash"})
FLASH_ONLY = frozenset({"flash"})
SDPA_ONLY = frozenset({"sdpa"})
NEITHER: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariant:
    """What `modeling_<model type>.py` does.

    norm:     the norms over the hidden size; qk_norm: those of queries and keys.
    layout:   "pre": x + f(norm(x)), twice; "output": x + norm(f(x)) (OLMo 2); "sandwich": x + norm(f(norm(x)))
              (Gemma 2); "post": norm(x + f(x)) (BERT). Parallel blocks have no layout.
    rotary:   type in which queries and keys are rotated: the model's, or fp32 and cast back.
    heads:    how queries, keys and values reach the kernel: "views" of the projections (rotated ones are new tensors
              anyway), or "copies".
    scaled_query: queries are scaled before the kernel, which makes a new tensor.
    kernels:  attention implementations that the class supports besides eager.
    softmax_fp32, scores_fp32: eager attention takes the softmax, or all of the scores, in fp32.
    holds_scores: eager attention keeps the raw scores in a variable until it returns.
    boolean_mask: eager attention is given a mask of booleans, and fills with it.
    masked:   sdpa is always given a mask.
    joined:   rotated and passed-through columns are joined by `cat`, which makes queries and keys head-major; flash's
              output then is too, and has to be copied for the output projection.
    residual_scaled: each branch is multiplied by a constant before it is added.
    relative: relative positions are added to the scores of every layer (T5), and dropout is applied within
              the feed-forward.
    embedding_norm, embedding_dropout: the embedding is normed, dropped out (with the layers' probability).
    summed_input: the first layer's input is a sum or product of the embedding (learned positions, a multiplier).
    router_fp32, softmax_of_top_k, routing_fp32, clamped_gate: a mixture of experts computes the router's logits in
              fp32, takes the softmax after the top-k, leaves routing weights in fp32, has gpt-oss's gate.
    """

    norm: NormVariant = "rms"
    qk_norm: NormVariant = "rms"
    layout: Literal["pre", "output", "sandwich", "post"] = "pre"
    rotary: Literal["model", "fp32"] = "model"
    heads: Literal["views", "copies"] = "views"
    scaled_query: bool = False
    kernels: frozenset[str] = SDPA_AND_FLASH
    softmax_fp32: bool = True
    scores_fp32: bool = False
    holds_scores: bool = False
    boolean_mask: bool = False
    masked: bool = False
    joined: bool = False
    residual_scaled: bool = False
    relative: bool = False
    embedding_norm: bool = False
    embedding_dropout: bool = False
    summed_input: bool = False
    router_fp32: bool = False
    softmax_of_top_k: bool = False
    routing_fp32: bool = False
    clamped_gate: bool = False


LLAMA = LayerVariant()
GPT = LayerVariant(norm="layer")

VARIANTS: Mapping[str, LayerVariant] = {
    "bert": LayerVariant(
        norm="layer", layout="post", softmax_fp32=False, embedding_norm=True, embedding_dropout=True, summed_input=True
    ),
    "bloom": LayerVariant(norm="layer", embedding_norm=True, heads="copies", kernels=NEITHER, holds_scores=True),
    "cohere": LayerVariant(norm="layer_fp32", qk_norm="layer_fp32", rotary="fp32"),
    "cohere2": LayerVariant(norm="layer_fp32", rotary="fp32"),
    "deepseek_v2": LayerVariant(rotary="fp32", router_fp32=True, routing_fp32=True),
    "deepseek_v3": LayerVariant(router_fp32=True, routing_fp32=True),
    "falcon": LayerVariant(norm="layer", heads="copies", softmax_fp32=False, masked=True),
    "gemma": LayerVariant(norm="rms_plus_one"),
    "gemma2": LayerVariant(norm="rms_plus_one", layout="sandwich", kernels=FLASH_ONLY),
    "gemma3": LayerVariant(norm="rms_plus_one", qk_norm="rms_plus_one", layout="sandwich"),
    "gemma3_text": LayerVariant(norm="rms_plus_one", qk_norm="rms_plus_one", layout="sandwich"),
    "glm": LayerVariant(joined=True),
    "glm4": LayerVariant(layout="sandwich", joined=True),
    "gpt2": LayerVariant(norm="layer", softmax_fp32=False, summed_input=True, embedding_dropout=True),
    "gpt_bigcode": LayerVariant(norm="layer", summed_input=True, embedding_dropout=True),
    "gpt_neo": LayerVariant(norm="layer", kernels=FLASH_ONLY, softmax_fp32=False, scores_fp32=True, summed_input=True),
    "gpt_neox": LayerVariant(norm="layer", joined=True),
    "gpt_oss": LayerVariant(
        norm="rms_fp32", kernels=FLASH_ONLY, softmax_fp32=False, clamped_gate=True, softmax_of_top_k=True
    ),
    "gptj": LayerVariant(norm="layer", kernels=FLASH_ONLY, softmax_fp32=False, scores_fp32=True),
    "granite": LayerVariant(residual_scaled=True, summed_input=True),
    "granitemoe": LayerVariant(residual_scaled=True, summed_input=True, softmax_of_top_k=True),
    "mixtral": LayerVariant(routing_fp32=True),
    "mpt": LayerVariant(norm="layer", kernels=NEITHER, boolean_mask=True),
    "olmo": LayerVariant(norm="layer_bare", rotary="fp32"),
    "olmo2": LayerVariant(norm="rms_fp32", qk_norm="rms_fp32", layout="output", rotary="fp32"),
    "olmo3": LayerVariant(norm="rms_fp32", qk_norm="rms_fp32", layout="output", rotary="fp32"),
    "opt": LayerVariant(norm="layer", scaled_query=True, summed_input=True),
    "phi": LayerVariant(norm="layer", qk_norm="layer", joined=True),
    "phi3": LayerVariant(joined=True),
    "roberta": LayerVariant(
        norm="layer", layout="post", softmax_fp32=False, embedding_norm=True, embedding_dropout=True, summed_input=True
    ),
    "stablelm": LayerVariant(norm="layer", qk_norm="layer", joined=True),
    "starcoder2": GPT,
    "t5": LayerVariant(norm="rms_t5", kernels=SDPA_ONLY, softmax_fp32=False, relative=True, embedding_dropout=True),
    "mt5": LayerVariant(norm="rms_t5", kernels=SDPA_ONLY, softmax_fp32=False, relative=True, embedding_dropout=True),
    "vit": LayerVariant(norm="layer", summed_input=True),
    "whisper": LayerVariant(
        norm="layer", scaled_query=True, heads="copies", softmax_fp32=False, embedding_dropout=True
    ),
    "xlm-roberta": LayerVariant(
        norm="layer", layout="post", softmax_fp32=False, embedding_norm=True, embedding_dropout=True, summed_input=True
    ),
}


def layer_variant(model_type: str, block: Block) -> LayerVariant:
    """The variant of a model type; Llama's, or GPT's for a LayerNorm, where it has no entry of its own."""
    return VARIANTS.get(model_type, LLAMA if block.norm == "rms" else GPT)
