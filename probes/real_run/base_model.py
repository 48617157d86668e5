"""Preparation of a probe's base model: random values, quantization for QLoRA, Liger's kernels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from ...estimators.workload import Workload
from ..dry_run.models import UnusableModelError

_BLOCK = 1_000_003
"""Number of random values, which all weights repeat: torch draws on one core, 30 ns each, and a model of billions would
take minutes. No width divides the number, so the rows of a matrix differ."""


def prepare(model: torch.nn.Module, workload: Workload, dtype: torch.dtype, device: str, *, has_weights: bool) -> None:
    """Change the model in place.

    has_weights: the weights were loaded; otherwise they are uninitialized and may be NaN.

    Raises UnusableModelError where bitsandbytes or Liger is missing or unsuitable.
    """
    if not has_weights:
        _fill(model)
    if workload.method == "qlora" and workload.quantization != "nf4":
        raise UnusableModelError("a probe quantizes to NF4 alone", fix="leave --quantization out")
    if workload.method == "qlora":
        _quantize(model, dtype, device)
    if workload.loss == "fused" or workload.kernels == "liger":
        _apply_liger(model)


def _fill(model: torch.nn.Module) -> None:
    """Fill every weight, or this rank's shard of it, with random values."""
    block = torch.randn(_BLOCK).mul_(0.02)
    with torch.no_grad():
        for parameter in model.parameters():
            values = getattr(parameter, "ds_tensor", parameter)
            block = block.to(values.dtype)
            if not values.is_cpu or not values.is_contiguous():
                values.normal_(0, 0.02)
                continue
            flat = values.view(-1)
            rows, rest = divmod(flat.numel(), _BLOCK)
            flat[: rows * _BLOCK].view(rows, _BLOCK).copy_(block)
            flat[rows * _BLOCK :].copy_(block[:rest])


def _quantize(model: Any, dtype: torch.dtype, device: str) -> None:
    """Quantize every linear layer except the head to NF4 with quantized constants, like `BitsAndBytesConfig` for QLoRA.

    Each layer moves to the device, where bitsandbytes quantizes it; other modules stay on the host.
    """
    parts = _import("bitsandbytes", "QLoRA").nn
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is not torch.nn.Linear or layer is head:
                continue
            options: dict[str, Any] = {"compress_statistics": True, "quant_type": "nf4"}
            smaller = parts.Linear4bit(1, 1, bias=False, compute_dtype=dtype, **options)
            smaller.in_features, smaller.out_features = layer.in_features, layer.out_features
            smaller.weight = parts.Params4bit(layer.weight.data, requires_grad=False, **options)
            smaller.bias = layer.bias
            setattr(parent, name, smaller.to(device))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    setattr(model, "is_loaded_in_4bit", True)  # noqa: B010  what peft looks for


def _apply_liger(model: torch.nn.Module) -> None:
    """Apply Liger's kernels, like `use_liger_kernel` of the Trainer."""
    if not torch.cuda.is_available():
        raise UnusableModelError("Liger's kernels are for GPUs", fix="leave --loss and --kernels out")
    _import("liger_kernel.transformers", "the fused loss or layer")._apply_liger_kernel_to_instance(model=model)


def _import(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise UnusableModelError(
            f"{what} needs {package}, which is not installed", fix=f"pip install {package}"
        ) from None
