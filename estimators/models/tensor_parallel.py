"""The part of a model that one of the ranks holds that split its layers (AutoTP).

Queries, keys, values and what the feed-forward reads its input with are split by columns, with their biases; what both
write their result with by rows, its bias stays whole. An untied output head is split by columns and its logits are
gathered. Norms and embeddings stay whole, and with the embedding a head that is tied to it.

Source: transformers 5.23 `base_model_tp_plan` of each configuration and `_tp_plan` of each model; deepspeed 0.19.8
runtime/engine.py `_apply_autotp_partitioning`, module_inject/layers.py. Not covered: adapters, which the plans do not
name; heads of keys and values that the ranks do not divide, of which some ranks then get more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .model_shape import Block, ModelShape, Tensor

AUTOTP_MODEL_TYPES = frozenset(["llama", "mistral", "qwen2", "qwen3"])
"""`model_type`s whose plan splits these tensors and no others, and which dry runs have confirmed."""

_BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_ROWS = ("o_proj", "down_proj")


def of_rank(model: ModelShape, autotp_size: int) -> ModelShape:
    """What each of so many ranks holds of a model."""
    return model if autotp_size == 1 else _part(model, autotp_size)


@lru_cache(maxsize=64)
def _part(model: ModelShape, autotp_size: int) -> ModelShape:
    return replace(
        model,
        name=f"{model.name} / {autotp_size}",
        blocks=tuple(_block(block, autotp_size) for block in model.blocks),
        outside=tuple(
            tensor._replace(shape=(tensor.shape[0] // autotp_size, *tensor.shape[1:]))
            if tensor.role == "head" and not model.tied
            else tensor
            for tensor in model.outside
        ),
    )


def unsplittable(model: ModelShape, autotp_size: int) -> str | None:
    """Why a model cannot be split evenly among so many ranks; None where it can."""
    if model.model_type not in AUTOTP_MODEL_TYPES or model.num_labels:
        return f"how AutoTP splits {model.architecture} is not known"
    for block in model.blocks:
        widths = {
            "heads": block.attention.heads,
            "heads of keys and values": block.attention.kv_heads,
            "inner width": block.feed_forward.hidden,
        }
        for name, width in widths.items():
            if width % autotp_size:
                return f"{width} {name} do not divide over {autotp_size} ranks that split each layer"
    if not model.tied and model.vocab_size % autotp_size:
        return f"{model.vocab_size} logits do not divide over {autotp_size} ranks that split each layer"
    return None


def _block(block: Block, ranks: int) -> Block:
    feed_forward = block.feed_forward._replace(hidden=block.feed_forward.hidden // ranks)
    return replace(
        block,
        attention=block.attention.of_rank(ranks),
        feed_forward=feed_forward,
        tensors=tuple(_tensor(tensor, ranks) for tensor in block.tensors),
    )


def _tensor(tensor: Tensor, ranks: int) -> Tensor:
    parts, shape = tensor.name.split("."), tensor.shape
    module = parts[-2] if len(parts) > 1 else ""
    if module in _BY_COLUMNS:
        return tensor._replace(shape=(shape[0] // ranks, *shape[1:]))
    if module in _BY_ROWS and len(shape) == 2:
        return tensor._replace(shape=(shape[0], shape[1] // ranks))
    return tensor
