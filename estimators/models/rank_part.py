"""The part of a model that one rank holds before ZeRO shards it: split layers (AutoTP), some of the experts (AutoEP).

AutoTP: queries, keys, values and the feed-forward's input projections are split by columns, with their biases. The
output projections of both are split by rows; their biases stay whole. An untied output head is split by columns and its
logits are gathered. Norms, embeddings and tied heads stay whole.

AutoEP: each of EP ranks keeps E / EP of the E experts whole, with separate gate and up projections. All other tensors,
including the router and shared experts, are on every rank. A token is sent to the ranks of its experts and back.

Source: transformers 5.23 `base_model_tp_plan` of each configuration and `_tp_plan` of each model; deepspeed 0.19.8
runtime/engine.py `_apply_autotp_partitioning`, module_inject/layers.py, module_inject/auto_ep_layer.py,
moe/ep_experts.py, moe/ep_repack.py, module_inject/auto_ep_presets/. Not covered: adapters; gates that clamp; heads of
keys and values whose number is not divisible by the ranks (some ranks then hold more).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..plan import Plan
from .families import find_family, supports
from .model_shape import ModelShape, Tensor

_BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_ROWS = ("o_proj", "down_proj")


def rank_share(model: ModelShape, plan: Plan) -> ModelShape:
    """Return the part of a model that each rank holds; the model itself if it is neither split nor spread."""
    return spread_experts(split_layers(model, plan.autotp_size), plan.autoep_size)


@lru_cache(maxsize=64)
def split_layers(model: ModelShape, ranks: int) -> ModelShape:
    if ranks == 1:
        return model
    return replace(
        model,
        name=f"{model.name} / {ranks}",
        blocks=tuple(
            replace(
                block,
                attention=block.attention.rank_share(ranks),
                feed_forward=block.feed_forward._replace(hidden=block.feed_forward.hidden // ranks),
                tensors=tuple(_split_tensor(tensor, ranks) for tensor in block.tensors),
            )
            for block in model.blocks
        ),
        outside=tuple(
            tensor._replace(shape=(tensor.shape[0] // ranks, *tensor.shape[1:]))
            # A tied head is the embedding, which AutoTP leaves whole.
            if tensor.role == "head" and not model.tied
            else tensor
            for tensor in model.outside
        ),
    )


def _split_tensor(tensor: Tensor, ranks: int) -> Tensor:
    parts, shape = tensor.name.split("."), tensor.shape
    module = parts[-2] if len(parts) > 1 else ""
    if module in _BY_COLUMNS:
        return tensor._replace(shape=(shape[0] // ranks, *shape[1:]))
    # A bias of a row-split layer is added after the all-reduce, so every rank keeps it whole.
    if module in _BY_ROWS and len(shape) == 2:
        return tensor._replace(shape=(shape[0], shape[1] // ranks))
    return tensor


def why_no_tensor_parallelism(model: ModelShape, ranks: int) -> str | None:
    """Return why AutoTP cannot split a model's layers evenly over the ranks; None if it can."""
    if not supports(model, "autotp") or model.num_labels:
        return f"how AutoTP splits {model.architecture} is not known"
    for block in model.blocks:
        widths = {
            "heads": block.attention.heads,
            "heads of keys and values": block.attention.kv_heads,
            "inner width": block.feed_forward.hidden,
        }
        for name, width in widths.items():
            if width % ranks:
                return f"{width} {name} are not divisible by {ranks} ranks that split each layer"
    if not model.tied and model.vocab_size % ranks:
        return f"{model.vocab_size} logits are not divisible by {ranks} ranks that split each layer"
    return None


@lru_cache(maxsize=64)
def spread_experts(model: ModelShape, ranks: int) -> ModelShape:
    if ranks == 1:
        return model
    blocks = tuple(
        replace(
            block,
            feed_forward=block.feed_forward._replace(autoep_size=ranks),
            tensors=tuple(part for tensor in block.tensors for part in _spread_tensor(tensor, ranks)),
        )
        if block.feed_forward.experts
        else block
        for block in model.blocks
    )
    return replace(model, name=f"{model.name}, experts / {ranks}", blocks=blocks)


def _spread_tensor(tensor: Tensor, ranks: int) -> tuple[Tensor, ...]:
    """Return a rank's part of a tensor. Fused gates and ups become separate tensors (w1 and w3, with w2 between)."""
    if tensor.role != "expert":
        return (tensor,)
    experts, one, other = tensor.shape
    at, _, name = tensor.name.rpartition(".")
    if name == "down_proj":
        return (tensor._replace(name=f"{at}.w2", shape=(experts // ranks, one, other)),)
    return tuple(
        tensor._replace(name=f"{at}.{part}", shape=(experts // ranks, one // 2, other)) for part in ("w1", "w3")
    )


def why_no_expert_parallelism(model: ModelShape, ranks: int) -> str | None:
    """Return why AutoEP cannot spread a model's experts over the ranks; None if it can."""
    counts = {block.feed_forward.experts for block in model.blocks} - {0}
    if not counts:
        return f"{model.architecture} has no experts to spread over ranks"
    if not find_family(model).autoep_preset or model.num_labels:
        return f"AutoEP's sharding of the experts of {model.architecture} is not known"
    for count in counts:
        if count % ranks:
            return f"{count} experts are not divisible by {ranks} ranks"
    return None
