"""Elements of the keys and values that generation keeps."""

from __future__ import annotations

from .model_shape import Block, ModelShape


def cached_elements(model: ModelShape, tokens: int, *, latent: bool) -> int:
    """Elements of keys and values of one sequence of `tokens` tokens in all decoder layers: A layer's K heads times the
    widths of a key and a value.

    A sliding window keeps its last keys (transformers 5.23 cache_utils.py `DynamicSlidingWindowLayer`). latent: a
    latent attention keeps what its heads are computed from, as vLLM does; transformers keeps the heads.

    Not covered: states of linear attention, which do not grow with the sequence.
    """
    return sum(block.count * _of_layer(block, tokens, latent=latent) for block in model.blocks)


def grouped_heads(model: ModelShape) -> float:
    """Query heads for each head of keys and values, in the decoder layer with the most."""
    groups = [block.attention.heads / block.attention.kv_heads for block in model.blocks if _caches(block)]
    return max(groups, default=1.0)


def _caches(block: Block) -> bool:
    return block.attention.causal and not block.attention.chunk and not block.tokens


def _of_layer(block: Block, tokens: int, *, latent: bool) -> int:
    attention = block.attention
    if not _caches(block):
        return 0
    if attention.kv_lora_rank and latent:
        return tokens * (attention.kv_lora_rank + attention.rope_head_dim)
    kept = min(tokens, attention.window or tokens)
    return kept * attention.kv_heads * (attention.head_dim + attention.v_head_dim)
