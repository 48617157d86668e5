"""AutoEP without tokens' values: every expert gets as many tokens, and DeepSpeed's Triton kernels, which a GPU has, are
the tensors that they allocate.

How many tokens a rank sends and receives is the router's business; here both are as many as it has, a copy for each of
a token's experts, as a balanced router has it. Source: deepspeed 0.19.8 module_inject/auto_ep_layer.py,
moe/ep_kernels.py, ops/triton_ops/swiglu_triton.py.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


def neutralize() -> None:
    """Replace, in this process, what AutoEP computes from values; nothing in a DeepSpeed without it."""
    try:
        detection, layer, kernels, gate = (
            _changeable(name)
            for name in ("module_inject.auto_ep", "module_inject.auto_ep_layer", "moe.ep_kernels", _GATE)
        )
    except ImportError:
        return
    detection._gate_activation_matches = lambda _experts: None  # what it says of an activation that it cannot try
    layer.compute_split_plan = _balanced
    kernels.fill_indices_wrapper = _indices
    kernels.permute_rows_supported = lambda _rows: True
    kernels.gather_rows = lambda rows, index: rows.new_empty((index.numel(), rows.shape[1]))
    gate.swiglu = _Gate.apply


_GATE = "ops.triton_ops.swiglu_triton"


def _changeable(name: str) -> Any:
    return importlib.import_module(f"deepspeed.{name}")


def _balanced(
    selected_experts: torch.Tensor,
    num_experts: int,
    ep_size: int,
    num_local_experts: int,
    ep_group: Any,
    **options: Any,
) -> Any:
    """`compute_split_plan` with as many tokens to and from every rank."""
    communication, layer = _changeable("comm"), _changeable("module_inject.auto_ep_layer")
    counts, tokens = options["num_tokens_per_expert"], selected_experts.numel()
    received = torch.empty_like(counts)
    communication.all_to_all_single(received, counts, group=ep_group)
    torch.stack([of_experts.view(ep_size, -1).sum(dim=1) for of_experts in (counts, received)]).cpu()
    splits = [tokens // ep_size] * ep_size
    return layer.SplitPlan(splits, splits, received.view(ep_size, num_local_experts))


def _indices(counts: torch.Tensor, _starts: Any, _offsets: Any, _experts: int, _ranks: int, max_len: int) -> Any:
    return torch.full((max_len,), -1, dtype=torch.int32, device=counts.device)


class _Gate(torch.autograd.Function):
    """`_SwiGLUFn`: keeps both inputs, makes both gradients."""

    @staticmethod
    def forward(context: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(context: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = context.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)
