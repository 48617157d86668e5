"""What the host is asked to do for one layer: operations, views and module calls, counted from its dimensions.

Counts are those of transformers 5 under a dispatch mode, as torch sees them on a GPU:

    forward    operations  1 for each matrix; an RMSNorm 8 (10 as Gemma writes it), a LayerNorm 1; rotary embedding 10,
                           attention 1, activation 1 and its gate 1, residual sums 2, each dropout 1; routing and
                           sorting tokens by expert 18; an adapter 4, and 2 more to cast its input and output
               views       3 for each matrix, 6 for an adapter, 6 for the rotary embedding, 12
    backward   operations  2 for each matrix, 1 where it is frozen; 1 for each bias; an adapter 5; 1.8 for any other
               views       6 for each matrix, 9 for an adapter, 29

Held against the modules themselves: `benchmarks/probes/host_time.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from ..models.four_bits import quantized
from ..models.lora import Adapters
from ..models.model_shape import Block, ModelShape
from ..workload import Workload

BACKWARD_OF_OTHERS = 1.8
"""Operations of the backward pass for each of the forward pass that is no product with a weight."""

_FOLD_CALLS = 5
"""Modules that peft calls to fold an adapter into a tensor."""

_LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Model types whose mixture of experts is a leaf to ZeRO-3, which hangs its hooks on the mixture and on nothing in it
(deepspeed 0.19.8 runtime/zero/leaf_module_config.py `DEFAULT_LEAF_MODULE_CLASSES`)."""


class LayerOperations(NamedTuple):
    """Of one layer."""

    operations: int
    """Those of its forward pass that launch a kernel."""
    views: int
    """Those that launch none."""
    backward_operations: int
    backward_views: int
    calls: int
    """Calls of modules."""
    hooked: int
    """Those of them that ZeRO-3 hooks."""
    adapted: int
    """Linear layers that have an adapter beside them."""
    folds: int
    """Weights W + B A that LoRA computes, where no module can have an adapter beside it."""


def layer_operations(
    model: ModelShape, block: Block, workload: Workload, chosen: Adapters, *, fused: bool = False
) -> LayerOperations:
    """fused: norms, rotary embedding and gated activation are one kernel each."""
    matrices = sum(1 for tensor in block.tensors if len(tensor.shape) >= 2)
    adapted = sum(1 for tensor in block.tensors if tensor.linear and chosen.rank_of(tensor))
    folds = sum(1 for tensor in block.tensors if chosen.folds(tensor))
    others = _others(model, block, workload, fused=fused)
    cast = 2 if workload.software.fp32_adapters else 0
    full = workload.method == "full"
    biases = sum(1 for tensor in block.tensors if tensor.name.endswith(".bias")) if full else 0
    calls = _calls(block, adapted, folds)
    dequantized = sum(1 for tensor in block.tensors if quantized(tensor, workload))
    # An int8 product casts, compares (four), quantizes, scales and casts back; its derivative scales what it unpacks.
    again = 7 if workload.quantization == "int8" else 0
    return LayerOperations(
        operations=matrices + others + (4 + cast) * adapted + (1 + again) * dequantized,
        views=3 * matrices + (6 if block.attention.rotary else 0) + 12 + 6 * adapted,
        backward_operations=(
            (2 if full else 1) * matrices
            + biases
            + round(BACKWARD_OF_OTHERS * others)
            + (5 + cast) * adapted
            + dequantized
        ),
        backward_views=6 * matrices + 29 + 9 * adapted,
        calls=calls,
        hooked=calls - _unhooked(model, block, chosen, folds),
        adapted=adapted,
        folds=folds,
    )


def norm_operations(model: ModelShape, block: Block, *, fused: bool) -> int:
    """Operations of one norm."""
    return 1 if fused or block.norm == "layer" else 10 if model.model_type.startswith("gemma") else 8


def _others(model: ModelShape, block: Block, workload: Workload, *, fused: bool) -> int:
    """Operations of the forward pass that are no product with a weight."""
    attention, feed_forward = block.attention, block.feed_forward
    count = norm_operations(model, block, fused=fused) * (block.norm_count + (2 if attention.qk_norm else 0)) + 2
    count += ((2 if fused else 10) if attention.rotary else 0) + (7 if workload.attention == "eager" else 1)
    count += 8 if feed_forward.activation == "gelu_new" else 1
    count += 1 if feed_forward.gated and not fused else 0
    count += 18 if feed_forward.experts else 0
    return count + (2 if block.hidden_dropout else 0)


def _calls(block: Block, adapted: int, folds: int) -> int:
    """Modules with parameters, and layer, attention, feed-forward and activation.

    peft puts four more around an adapted one: base layer, dropout, lora_A and lora_B. Around a tensor that it folds it
    puts five.
    """
    own = len({tensor.name.rpartition(".")[0] for tensor in block.tensors}) + 4
    return own + 4 * adapted + _FOLD_CALLS * folds


def _unhooked(model: ModelShape, block: Block, chosen: Adapters, folds: int) -> int:
    """Calls without hooks: what peft puts around a folded tensor comes after DeepSpeed has hung its hooks, and a leaf's
    own modules and their activation have none."""
    if not (block.feed_forward.experts and model.model_type in _LEAVES):
        return _FOLD_CALLS * folds
    inside = [tensor for tensor in block.tensors if tensor.role in ("router", "expert", "feed_forward")]
    adapted = sum(1 for tensor in inside if tensor.linear and chosen.rank_of(tensor))
    return len({tensor.name.rpartition(".")[0] for tensor in inside}) + 1 + 4 * adapted + _FOLD_CALLS * folds
