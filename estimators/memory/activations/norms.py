"""Normalisation layers as transformers writes them; they differ in what they compute in fp32."""

from __future__ import annotations

from typing import Literal

from .ops import Ops
from .saved_tensors import Value

NormVariant = Literal["layer", "rms", "rms_fp32", "rms_plus_one", "rms_t5", "rms_bare", "layer_fp32", "layer_bare"]


def norm(ops: Ops, variant: NormVariant, value: Value, label: str = "normed", *, heads: int = 1) -> Value:
    """One norm over the last dimension, of which a row has `heads`.

    layer:        torch's own LayerNorm: the input, a mean and a reciprocal deviation per row.
    rms:          Llama: x in fp32 squared and scaled, cast back, times the weight.
    rms_fp32:     OLMo 2, gpt-oss: the product with the weight is in fp32, then cast.
    rms_plus_one: Gemma: as rms_fp32 with (1 + weight), which always is a new tensor of H.
    rms_t5:       T5: the fp32 copy serves the variance only; x itself is scaled.
    rms_bare:     Llama 4, of queries and keys: Llama's without a weight.
    layer_fp32:   Cohere: mean and variance by hand in fp32.
    layer_bare:   OLMo: torch's LayerNorm of an fp32 copy, without a weight.

    Fused kernels of RMS norms keep the input as it is and a reciprocal RMS per row; but for Gemma's, the gradient of
    the input is written over that of the output (liger-kernel 0.8.5 ops/rms_norm.py, unsloth kernels/rms_layernorm.py).
    """
    if ops.fused and variant in ("rms", "rms_plus_one", "rms_fp32"):
        return _fused(ops, variant, value, label, heads)
    if variant == "layer":
        return _native(ops, value, label, heads)
    if variant == "layer_bare":
        return ops.cast(_native(ops, ops.cast(value, 4), label, heads), value.itemsize)
    if variant == "layer_fp32":
        return _by_hand(ops, value, label, heads)
    wide = ops.cast(value, 4)
    squares = ops.power("squares", wide)
    scale = _per_row(ops, squares, "reciprocal RMS", heads)
    if variant == "rms_t5":
        normed = ops.graph.apply(
            "normed in fp32", (value, scale), itemsize=4, saves=_factors(value, scale), workspace=2 * wide.size
        )
        return _weighted(ops, ops.cast(normed, ops.itemsize), label)
    normed = ops.multiply(wide, scale, "normed in fp32")
    if variant == "rms_bare":
        return ops.cast(normed, value.itemsize)
    if variant == "rms":
        return _weighted(ops, ops.cast(normed, value.itemsize), label)
    return ops.cast(_weighted(ops, normed, label), value.itemsize)


def _factors(left: Value, right: Value) -> tuple[Value, ...]:
    return (left, right) if left.needs_grad else ()


def _per_row(ops: Ops, value: Value, label: str, heads: int) -> Value:
    """One fp32 number per row: mean over the row, then the reciprocal square root, whose result is saved."""
    mean = ops.graph.apply(f"{label} squared", (value,), width=heads, itemsize=4)
    return ops.saves_output(label, mean)


def _weighted(ops: Ops, value: Value, label: str) -> Value:
    """weight * x: x is saved only for the weight's gradient, which is a full product before it is summed."""
    if not ops.trains:
        return ops.scale(value, label)
    return ops.graph.apply(label, (value,), saves=(value,), trains=True, workspace=value.size)


def _fused(ops: Ops, variant: NormVariant, value: Value, label: str, heads: int) -> Value:
    scale = ops.graph.tensor(value.rows, heads, 4, "reciprocal RMS")
    return ops.graph.apply(label, (value,), saves=(value, scale), passes=variant != "rms_plus_one", trains=ops.trains)


def _native(ops: Ops, value: Value, label: str, heads: int) -> Value:
    statistics = ops.graph.tensor(value.rows, 2 * heads, 4, "mean and deviation")
    return ops.graph.apply(label, (value,), saves=(value, statistics), trains=ops.trains)


def _by_hand(ops: Ops, value: Value, label: str, heads: int) -> Value:
    wide = ops.cast(value, 4)
    mean = ops.graph.apply("mean", (wide,), width=heads, itemsize=4)
    centred = ops.add(wide, mean, "centred")
    scale = _per_row(ops, ops.power("squares", centred), "reciprocal deviation", heads)
    normed = ops.multiply(ops.add(wide, mean, "centred"), scale, "normed in fp32")
    return ops.cast(_weighted(ops, normed, label), value.itemsize)
