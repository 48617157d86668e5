"""How transformers' code of each model type computes a layer, as far as saved tensors differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from ...models.model_shape import Block, ModelShape
from ...workload import Workload
from .ops import NormVariant


class LayerVariant(NamedTuple):
    """What `modeling_<model type>.py` does."""

    norm: NormVariant = "rms"
    """The norms over the hidden size."""
    qk_norm: NormVariant = "rms"
    """The norms of queries and keys."""
    layout: Literal["pre", "output", "sandwich", "post"] = "pre"
    """pre: x + f(norm(x)), twice; output: x + norm(f(x)) (OLMo 2); sandwich: x + norm(f(norm(x))) (Gemma 2); post:
    norm(x + f(x)) (BERT). Parallel blocks have no layout."""
    rotary: Literal["model", "fp32"] = "model"
    """The type in which queries and keys are rotated: the model's, or fp32 and cast back."""
    heads: Literal["views", "copies"] = "views"
    """How queries, keys and values reach the kernel: as views of the projections (rotated ones are new tensors anyway),
    or as copies."""
    scaled_query: bool = False
    """Queries are scaled before the kernel, which makes a new tensor."""
    kernels: frozenset[str] = frozenset({"sdpa", "flash"})
    """The attention implementations that the class supports besides eager."""
    softmax_fp32: bool = True
    """Eager attention takes the softmax in fp32 and casts it back."""
    scores_fp32: bool = False
    """Eager attention casts queries and keys to fp32 first."""
    holds_scores: bool = False
    """Eager attention keeps the raw scores in a variable until it returns."""
    chosen_mask: bool = False
    """Before transformers 5 eager attention chooses (`torch.where`) between the scores and what masks them."""
    gathers_positions: bool = False
    """Eager attention gathers two biases by position for every score (DeBERTa)."""
    boolean_mask: bool = False
    """Eager attention is given a mask of booleans, and fills with it."""
    masked: bool = False
    """sdpa is always given a mask."""
    joined: bool = False
    """Rotated and passed-through columns are joined by `cat`, which makes queries and keys head-major; flash's output
    then is too, and has to be copied for the output projection."""
    residual_scaled: bool = False
    """Each branch is multiplied by a constant before it is added."""
    relative: bool = False
    """Relative positions are added to the scores of every layer (T5); the feed-forward has a dropout of its own."""
    embedding_norm: bool = False
    embedding_dropout: bool = False
    """The embedding is dropped out, with the layers' probability."""
    summed_input: bool = False
    """The first layer's input is a sum or product of the embedding (learned positions, a multiplier)."""
    router_fp32: bool = False
    """A mixture of experts computes the router's logits in fp32."""
    softmax_of_top_k: bool = False
    """A mixture of experts takes the softmax after the top-k."""
    routing_fp32: bool = False
    """A mixture of experts leaves its routing weights in fp32."""
    clamped_gate: bool = False
    """A mixture of experts has gpt-oss's gate."""
    every_expert: bool = False
    """Each expert of a mixture computes every token, times its score (Llama 4)."""
    tempered: bool = False
    """Queries that are not rotated are scaled by their position, in fp32."""
    holds_attention: bool = False
    """A layer keeps its attention's output in a variable until it returns."""


LLAMA = LayerVariant()
GPT = LayerVariant(norm="layer")
_BERT = LayerVariant(
    norm="layer", layout="post", softmax_fp32=False, embedding_norm=True, embedding_dropout=True, summed_input=True
)
_GEMMA_3 = LayerVariant(norm="rms_plus_one", qk_norm="rms_plus_one", layout="sandwich")
_LLAMA_4 = LayerVariant(
    qk_norm="rms_bare",
    rotary="fp32",
    kernels=frozenset({"sdpa"}),
    softmax_fp32=False,
    every_expert=True,
    tempered=True,
    holds_attention=True,
)
_OLMO_2 = LayerVariant(norm="rms_fp32", qk_norm="rms_fp32", layout="output", rotary="fp32")
_T5 = LayerVariant(
    norm="rms_t5", kernels=frozenset({"sdpa"}), softmax_fp32=False, relative=True, embedding_dropout=True
)
_QWEN_3_5 = LayerVariant(norm="rms_plus_one", qk_norm="rms_plus_one", joined=True)
_EAGER_ONLY: frozenset[str] = frozenset()
_FLASH_ONLY = frozenset({"flash"})

VARIANTS: Mapping[str, LayerVariant] = {
    "bert": _BERT,
    "bloom": LayerVariant(norm="layer", embedding_norm=True, heads="copies", kernels=_EAGER_ONLY, holds_scores=True),
    "clip": LayerVariant(norm="layer", summed_input=True),
    "cohere": LayerVariant(norm="layer_fp32", qk_norm="layer_fp32", rotary="fp32"),
    "cohere2": LayerVariant(norm="layer_fp32", rotary="fp32"),
    "deberta": LayerVariant(norm="layer", gathers_positions=True),
    "deberta-v2": LayerVariant(norm="layer", gathers_positions=True),
    "deepseek_v2": LayerVariant(rotary="fp32", router_fp32=True, routing_fp32=True),
    "deepseek_v3": LayerVariant(router_fp32=True, routing_fp32=True),
    "falcon": LayerVariant(norm="layer", heads="copies", softmax_fp32=False, masked=True),
    "gemma": LayerVariant(norm="rms_plus_one"),
    "gemma2": LayerVariant(norm="rms_plus_one", layout="sandwich", kernels=_FLASH_ONLY),
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "glm": LayerVariant(joined=True),
    "glm4": LayerVariant(layout="sandwich", joined=True),
    "gpt2": LayerVariant(norm="layer", softmax_fp32=False, summed_input=True, embedding_dropout=True, chosen_mask=True),
    "gpt_bigcode": LayerVariant(norm="layer", summed_input=True, embedding_dropout=True),
    "gpt_neo": LayerVariant(norm="layer", kernels=_FLASH_ONLY, softmax_fp32=False, scores_fp32=True, summed_input=True),
    "gpt_neox": LayerVariant(norm="layer", joined=True),
    "gpt_oss": LayerVariant(
        norm="rms_fp32", kernels=_FLASH_ONLY, softmax_fp32=False, clamped_gate=True, softmax_of_top_k=True
    ),
    "gptj": LayerVariant(norm="layer", kernels=_FLASH_ONLY, softmax_fp32=False, scores_fp32=True),
    "granite": LayerVariant(residual_scaled=True, summed_input=True),
    "granitemoe": LayerVariant(residual_scaled=True, summed_input=True, softmax_of_top_k=True),
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    "mixtral": LayerVariant(routing_fp32=True),
    "mpt": LayerVariant(norm="layer", kernels=_EAGER_ONLY, boolean_mask=True),
    "olmo": LayerVariant(norm="layer_bare", rotary="fp32"),
    "olmo2": _OLMO_2,
    "olmo3": _OLMO_2,
    "opt": LayerVariant(norm="layer", scaled_query=True, summed_input=True),
    "phi": LayerVariant(norm="layer", qk_norm="layer", joined=True),
    "phi3": LayerVariant(joined=True),
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_moe": _QWEN_3_5,
    "qwen3_5_moe_text": _QWEN_3_5,
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_next": _QWEN_3_5,
    "roberta": _BERT,
    "stablelm": LayerVariant(norm="layer", qk_norm="layer", joined=True),
    "starcoder2": GPT,
    "t5": _T5,
    "mt5": _T5,
    "vit": LayerVariant(norm="layer", summed_input=True),
    "whisper": LayerVariant(
        norm="layer", scaled_query=True, heads="copies", softmax_fp32=False, embedding_dropout=True
    ),
    "xlm-roberta": _BERT,
}

TOWERS: Mapping[str, LayerVariant] = {
    "clip": LayerVariant(norm="layer", embedding_norm=True),
    "gemma3": LayerVariant(norm="layer", summed_input=True),
    "qwen2_5_vl": LayerVariant(rotary="fp32", joined=True),
}
"""Of vision towers."""


def layer_variant(model_type: str, block: Block) -> LayerVariant:
    """The variant of a model type; Llama's, or GPT's for a LayerNorm, where it has no entry of its own.

    A vision tower beside a language model is plain, whatever the language model does.
    """
    plain = LLAMA if block.norm == "rms" else GPT
    if block.hidden_size:
        return TOWERS.get(model_type, plain)
    return VARIANTS.get(model_type, plain)


@lru_cache(maxsize=64)
def with_offered_attention(model: ModelShape, workload: Workload) -> Workload:
    """The workload with the attention that runs: eager where the model's class does not offer what is asked.

    A "triton" kernel is never the class's own: the model's code brings it.
    """
    if workload.attention == "triton":
        return workload
    offered = all(workload.attention in layer_variant(model.model_type, block).kernels for block in model.blocks)
    return workload if offered else replace(workload, attention="eager")
