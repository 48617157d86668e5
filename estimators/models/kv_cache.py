"""Elements of the keys and values that generation keeps."""

from __future__ import annotations

from .model_shape import Block, ModelShape


def decoders(model: ModelShape) -> list[Block]:
    """The kinds of layers that generate."""
    return [block for block in model.blocks if block.stack == "decoder" and not block.tokens]


def cached_per_layer(model: ModelShape, prompt: int, tokens: int, *, latent: bool = False) -> list[int]:
    """Elements of one sequence of `tokens` tokens in a layer of each kind of `decoders`: K heads times the widths of a
    key and a value, for at most a sliding window's tokens; of cross attention those of the prompt.

    latent: a latent attention keeps what its heads are computed from, as vLLM does; transformers keeps whole heads.
    Linear attention keeps a state whatever the tokens, not counted.
    """
    found = []
    for block in decoders(model):
        size = 0
        for attention in (block.attention, block.cross_attention):
            if attention is None or attention.chunk:
                continue
            seen = model.encoder_len(prompt) if attention.cross else tokens
            heads = attention.heads if attention.kv_lora_rank else attention.kv_heads
            width = heads * (attention.head_dim + attention.v_head_dim)
            if latent and attention.kv_lora_rank:
                width = attention.kv_lora_rank + attention.rope_head_dim
            size += width * min(seen, attention.window or seen)
        found.append(size)
    return found


def cached_elements(model: ModelShape, tokens: int, *, prompt: int = 0, latent: bool = False) -> int:
    """`cached_per_layer` in all layers."""
    sizes = cached_per_layer(model, prompt or tokens, tokens, latent=latent)
    return sum(block.count * size for block, size in zip(decoders(model), sizes, strict=True))


def grouped_heads(model: ModelShape) -> float:
    """Query heads for each head of keys and values, in the layer with the most."""
    return max((block.attention.heads / block.attention.kv_heads for block in decoders(model)), default=1.0)
