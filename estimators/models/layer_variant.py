"""How transformers' code computes a layer, as far as it differs among model types."""

from __future__ import annotations

from typing import Literal, NamedTuple

NormVariant = Literal["layer", "rms", "rms_fp32", "rms_plus_one", "rms_t5", "layer_bare"]
"""The norms of `memory.activations.ops.norm`."""


class LayerVariant(NamedTuple):
    """How `modeling_<model type>.py` (transformers 5.23) computes a layer, as far as saved tensors differ."""

    norm: NormVariant = "rms"
    """The norms over the hidden size."""
    norm_operations: int = 8
    """Operations that an RMSNorm over the hidden size launches."""
    qk_norm: NormVariant = "rms"
    """The norms of queries and keys."""
    layout: Literal["pre", "output", "sandwich", "post"] = "pre"
    """pre: x + f(norm(x)), twice; output: x + norm(f(x)) (OLMo 2); sandwich: x + norm(f(norm(x))) (Gemma 2); post:
    norm(x + f(x)) (BERT). Parallel blocks have no layout."""
    rotary: Literal["model", "fp32"] = "model"
    """The type in which queries and keys are rotated: the model's, or fp32 and cast back."""
    heads: Literal["views", "copies"] = "views"
    """Queries, keys and values reach the kernel as views of the projections (rotated ones are new tensors anyway), or
    as copies."""
    scaled_query: bool = False
    """Queries are scaled before the kernel, which makes a new tensor."""
    kernels: frozenset[str] = frozenset({"sdpa", "flash"})
    """The attention implementations that the class supports besides eager."""
    softmax_fp32: bool = True
    """Eager attention takes the softmax in fp32 and casts it back."""
    holds_scores: bool = False
    """Eager attention keeps the raw scores in a variable until it returns."""
    chosen_mask: bool = False
    """Before transformers 5 eager attention chooses (`torch.where`) between the scores and what masks them."""
    gathers_positions: bool = False
    """Eager attention gathers two biases by position for every score (DeBERTa)."""
    boolean_mask: bool = False
    """The mask of eager attention is boolean, and the scores are filled with it."""
    masked: bool = False
    """sdpa always gets a mask."""
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
    convolved_input: bool = False
    """Two convolutions, each with a GELU, make the encoder's input (Whisper)."""
    router_fp32: bool = False
    """A mixture of experts computes the router's logits in fp32."""
    softmax_of_top_k: bool = False
    """A mixture of experts takes the softmax after the top-k."""
    routing_fp32: bool = False
    """A mixture of experts leaves its routing weights in fp32."""
    gpt_oss_experts: bool = False
    """A mixture of experts is gpt-oss's, whose gate is clamped."""
