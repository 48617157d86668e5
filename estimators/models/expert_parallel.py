"""The part of a mixture of experts that one rank holds whose group spreads the experts over its ranks (AutoEP).

Of E experts each of EP ranks keeps E / EP whole ones, the gate and up projections apart; the router, the experts that
every token passes and all else are on every rank. A token travels to the ranks of its experts and back.

Source: deepspeed 0.19.8 module_inject/auto_ep_layer.py, moe/ep_experts.py, moe/ep_repack.py,
module_inject/auto_ep_presets/. Not covered: adapters; gates that clamp.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..phrase import phrase
from .model_shape import Block, ModelShape, Tensor

AUTOEP_PRESETS = {"mixtral": "mixtral", "qwen3_moe": "qwen3_moe"}
"""`preset_model` by `model_type`: those of DeepSpeed's presets that dry runs have confirmed."""


def of_rank(model: ModelShape, autoep_size: int) -> ModelShape:
    """What each of so many ranks holds of a model."""
    return model if autoep_size == 1 else _spread(model, autoep_size)


@lru_cache(maxsize=64)
def _spread(model: ModelShape, ranks: int) -> ModelShape:
    return replace(
        model,
        name=f"{model.name}, experts / {ranks}",
        blocks=tuple(_block(block, ranks) if block.feed_forward.experts else block for block in model.blocks),
    )


def unspreadable(model: ModelShape, autoep_size: int) -> str | None:
    """Why a model's experts cannot be spread over so many ranks; None where they can."""
    counts = {block.feed_forward.experts for block in model.blocks} - {0}
    if not counts:
        return phrase("{model} has no experts to spread over ranks", model=model.architecture)
    if model.model_type not in AUTOEP_PRESETS or model.num_labels:
        return phrase("how AutoEP spreads the experts of {model} is not known", model=model.architecture)
    for count in counts:
        if count % autoep_size:
            return phrase("{count} experts do not divide over {ranks} ranks", count=count, ranks=autoep_size)
    return None


def _block(block: Block, ranks: int) -> Block:
    return replace(
        block,
        feed_forward=block.feed_forward._replace(autoep_size=ranks),
        tensors=tuple(part for tensor in block.tensors for part in _parts(tensor, ranks)),
    )


def _parts(tensor: Tensor, ranks: int) -> tuple[Tensor, ...]:
    """A rank's part of a tensor; fused gates and ups become tensors of their own (w1 and w3, w2 between them)."""
    if tensor.role != "expert":
        return (tensor,)
    experts, one, other = tensor.shape
    at, _, name = tensor.name.rpartition(".")
    if name == "down_proj":
        return (tensor._replace(name=f"{at}.w2", shape=(experts // ranks, one, other)),)
    return tuple(
        tensor._replace(name=f"{at}.{part}", shape=(experts // ranks, one // 2, other)) for part in ("w1", "w3")
    )
