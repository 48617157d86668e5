"""What the fused attention kernels allocate in the backward pass without an operator that shows it."""

from __future__ import annotations

from typing import Any

import torch

_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_EFFICIENT_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
FUSED_BACKWARDS = frozenset((id(_FLASH_BACKWARD), id(_EFFICIENT_BACKWARD)))
"""By identity."""


def kernel_workspace(operation: Any, args: tuple[Any, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """(shape, dtype) of what a fused backward kernel allocates while it runs and no operator shows.

    Flash: the query gradient accumulates in float32, one float32 row sum per query, and with fewer key heads than query
    heads the key and value gradients at full heads; S rounded up to 128, D to 32 (to 64 above 128).
    Efficient (compute capability 7.0 on): the query gradient in float32, S and D rounded up to 64, and the row sums.
    Source: pytorch transformers/cuda/flash_attn/flash_api.cpp (mha_bwd), transformers/cuda/attention_backward.cu and
    mem_eff_attention/kernel_backward.h (kNeedsAccumGradQ).
    Not covered: the efficient kernel's partial sums per split of the keys, and cuDNN's workspace.
    """
    if operation is _FLASH_BACKWARD:
        query, key = args[1], args[2]
        batch, heads, length, head = query.shape
        rounded = -(-length // 128) * 128
        wide = -(-head // 32) * 32 if head <= 128 else -(-head // 64) * 64
        shapes = [((batch, rounded, heads, wide), torch.float32), ((batch, heads, rounded), torch.float32)]
        if key.shape[1] != heads:
            shapes += [((batch, key.shape[2], heads, head), query.dtype)] * 2
        return shapes
    if operation is _EFFICIENT_BACKWARD:
        batch, heads, length, head = args[1].shape
        rounded = (batch, heads, -(-length // 64) * 64, -(-head // 64) * 64)
        return [(rounded, torch.float32), ((batch, heads, length), torch.float32)]
    return []
