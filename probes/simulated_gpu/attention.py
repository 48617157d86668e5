"""The attention kernel that CUDA's dispatcher would choose.

On a device without fused kernels `scaled_dot_product_attention` falls back to the math kernel and keeps the S x S
scores, unlike trainings on recent GPUs. Here the operator is chosen as on CUDA; fused operators support fake tensors.

Source: pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (order flash, efficient, math and the conditions of
    each) and transformers/attention.cpp (padding of heads and masks). cuDNN's kernel, which newer builds prefer on
    compute capability 9 and 10, is treated as flash attention: both keep the output and one float32 per query and head.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .device import DEVICE_TYPE

aten: Any = torch.ops.aten
_functional: Any = torch.nn.functional
_composite = _functional.scaled_dot_product_attention
_plain_softmax = _functional.softmax


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
    enable_gqa: bool,
    compute_capability: int,
    dropout: float = 0.0,
) -> str:
    """The kernel that CUDA would run for these inputs on a GPU of this compute capability: "flash", "efficient" or
    "math"."""
    head = query.shape[-1]
    value_head = value.shape[-1]
    dtype = query.dtype
    half = dtype in (torch.float16, torch.bfloat16)
    if query.dim() != 4 or not dtype == key.dtype == value.dtype:
        return "math"
    needs_grad = query.requires_grad or key.requires_grad or value.requires_grad
    # The backward kernel does not fit the shared memory of consumer cards (check_requires_grad_and_head_dim).
    large_head = needs_grad and compute_capability in (86, 89, 120) and (head > 224 or (head > 192 and dropout > 0))
    same_heads = query.shape[-3] == key.shape[-3] == value.shape[-3]
    if (
        half
        and compute_capability >= 80
        and mask is None
        and head == key.shape[-1] == value_head <= 256
        and (same_heads or enable_gqa)
        and (query.shape[-2] == key.shape[-2] or not causal)
        and not large_head
    ):
        return "flash"
    # Tensor cores load 16 bytes at a time (minimum_gemm_alignment).
    alignment = 8 if half and compute_capability >= 70 else 4 if compute_capability >= 80 else 1
    known_dtype = dtype in (torch.float16, torch.float32) or (dtype is torch.bfloat16 and compute_capability >= 80)
    aligned = head % alignment == value_head % alignment == 0
    # A mask that requires a gradient is no obstacle (torch test_mem_efficient_attention_attn_mask_vs_math_ref_grads).
    return "efficient" if known_dtype and compute_capability >= 50 and same_heads and aligned else "math"


def install(compute_capability: int) -> None:
    """Replace `torch.nn.functional.scaled_dot_product_attention` in this process."""

    def routed(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        chosen = "math"
        if query.device.type == DEVICE_TYPE:
            how: dict[str, Any] = {"causal": is_causal, "enable_gqa": enable_gqa, "dropout": dropout_p}
            chosen = kernel(query, key, value, attn_mask, compute_capability=compute_capability, **how)
        if chosen == "flash":
            return flash(query, key, value, dropout_p, is_causal, scale)
        if chosen == "efficient":
            return efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return _composite(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    # Models look the function up in torch.nn.functional at every call.
    _functional.scaled_dot_product_attention = routed
    _functional.softmax = _softmax


FLASH = "ds_advise_fa"
"""Transformers' name for flash attention without the flash-attn package."""


def register_with_transformers() -> None:
    """Register `FLASH` with transformers: it uses no mask, allows any soft cap, and saves the tensors of flash-attn."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def forward(
        module: Any, query: Any, key: Any, value: Any, _mask: Any, dropout: float = 0.0, scaling: Any = None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        # Cross attention and decoding steps have other numbers of queries than keys.
        causal = bool(getattr(module, "is_causal", True)) and query.shape[2] == key.shape[2]
        return flash(query, key, value, dropout, causal, scaling).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(FLASH, forward)


def _softmax(
    input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Any:
    """Softmax of float16 to float32 in one kernel, like torch on CUDA (aten/src/ATen/native/SoftMax.cpp)."""
    if input.dtype is torch.float16 and dtype is torch.float32 and dim is not None and input.device.type == DEVICE_TYPE:
        return aten._softmax(input, dim, True)
    return _plain_softmax(input, dim, _stacklevel, dtype)


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> Any:
    """Flash attention without a mask, as on CUDA."""
    head = query.shape[-1]
    scale = scale if scale is not None else 1.0 / math.sqrt(head)
    missing = -head % 8
    if missing:  # the kernel needs a head size that is a multiple of 8
        query, key, value = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (query, key, value))
    output = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, scale=scale)[0]
    return output[..., :head] if missing else output


def efficient(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None) -> Any:
    """Memory-efficient attention, as on CUDA."""
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -math.inf)
        missing = -mask.shape[-1] % 16
        if missing:  # the kernel loads the mask in aligned vectors
            mask = torch.nn.functional.pad(mask, (0, missing))[..., : mask.shape[-1]]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    needs_grad = any(tensor.requires_grad for tensor in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, needs_grad, dropout, causal, scale=scale
    )[0]
