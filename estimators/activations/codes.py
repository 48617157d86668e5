"""How transformers' code of each model type computes a layer, as far as saved tensors differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..model_shape import Block
from .norms import NormCode

SDPA_AND_FLASH = frozenset({"sdpa", "flash"})
FLASH_ONLY = frozenset({"flash"})
NEITHER: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCode:
    """What `modeling_<model type>.py` does.

    norm:     the norms over the hidden size; qk_norm: those of queries and keys.
    layout:   "pre": x + f(norm(x)), twice; "output": x + norm(f(x)) (OLMo 2); "sandwich": x + norm(f(norm(x))) (Gemma 2);
              "post": norm(x + f(x)) (BERT); "parallel": x + attention(norm(x)) + feed_forward(norm(x)).
    rotary:   type in which queries and keys are rotated: the model's, or fp32 and cast back.
    heads:    how queries, keys and values reach the kernel: "views" of the projections (rotated ones are new tensors
              anyway), or "copies".
    scaled_query: queries are scaled before the kernel, which makes a new tensor.
    kernels:  attention implementations that the class supports besides eager.
    softmax_fp32, scores_fp32: eager attention takes the softmax, or all of the scores, in fp32.
    residual_scaled: each branch is multiplied by a constant before it is added (Granite).
    router_fp32, router_normalised, clamped_gate: of a mixture of experts, see `feed_forward.experts`.
    """

    norm: NormCode = "rms"
    qk_norm: NormCode = "rms"
    layout: Literal["pre", "output", "sandwich", "post", "parallel"] = "pre"
    rotary: Literal["model", "fp32"] = "model"
    heads: Literal["views", "copies"] = "views"
    scaled_query: bool = False
    kernels: frozenset[str] = SDPA_AND_FLASH
    softmax_fp32: bool = True
    scores_fp32: bool = False
    residual_scaled: bool = False
    router_fp32: bool = False
    router_normalised: bool = True
    clamped_gate: bool = False


LLAMA = LayerCode()
GPT = LayerCode(norm="layer")

CODES: Mapping[str, LayerCode] = {
    "bert": LayerCode(norm="layer", layout="post", softmax_fp32=False),
    "bloom": LayerCode(norm="layer", heads="copies", kernels=NEITHER),
    "cohere": LayerCode(norm="layer_fp32", qk_norm="layer_fp32", layout="parallel", rotary="fp32"),
    "cohere2": LayerCode(norm="layer_fp32", layout="parallel", rotary="fp32"),
    "deepseek_v2": LayerCode(rotary="fp32", router_fp32=True, router_normalised=False),
    "deepseek_v3": LayerCode(router_fp32=True),
    "falcon": LayerCode(norm="layer", heads="copies", softmax_fp32=False),
    "gemma": LayerCode(norm="rms_plus_one"),
    "gemma2": LayerCode(norm="rms_plus_one", layout="sandwich", kernels=FLASH_ONLY),
    "gemma3_text": LayerCode(norm="rms_plus_one", qk_norm="rms_plus_one", layout="sandwich"),
    "glm4": LayerCode(layout="sandwich"),
    "gpt2": LayerCode(norm="layer", softmax_fp32=False),
    "gpt_bigcode": GPT,
    "gpt_neo": LayerCode(norm="layer", kernels=FLASH_ONLY, softmax_fp32=False, scores_fp32=True),
    "gpt_neox": GPT,
    "gpt_oss": LayerCode(norm="rms_fp32", kernels=FLASH_ONLY, softmax_fp32=False, clamped_gate=True),
    "gptj": LayerCode(norm="layer", kernels=FLASH_ONLY, softmax_fp32=False, scores_fp32=True),
    "granite": LayerCode(residual_scaled=True),
    "granitemoe": LayerCode(residual_scaled=True),
    "mpt": LayerCode(norm="layer", heads="copies", kernels=NEITHER),
    "olmo": LayerCode(norm="layer_bare", rotary="fp32"),
    "olmo2": LayerCode(norm="rms_fp32", qk_norm="rms_fp32", layout="output", rotary="fp32"),
    "olmo3": LayerCode(norm="rms_fp32", qk_norm="rms_fp32", layout="output", rotary="fp32"),
    "opt": LayerCode(norm="layer", scaled_query=True),
    "phi": GPT,
    "roberta": LayerCode(norm="layer", layout="post", softmax_fp32=False),
    "stablelm": LayerCode(norm="layer", qk_norm="layer"),
    "starcoder2": GPT,
    "t5": LayerCode(norm="rms_t5", kernels=frozenset({"sdpa"})),
    "vit": GPT,
    "whisper": LayerCode(norm="layer", scaled_query=True, heads="copies", softmax_fp32=False),
}


def layer_code(model_type: str, block: Block) -> LayerCode:
    """The code of a model type; Llama's, or GPT's for a LayerNorm, where it has no entry of its own."""
    return CODES.get(model_type, LLAMA if block.norm == "rms" else GPT)
