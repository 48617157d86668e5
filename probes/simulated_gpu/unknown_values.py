"""Functions that need a tensor's value, or a real generator, made harmless for fake tensors."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..recording.ledger import Ledger


def neutralize(ledger: Ledger) -> None:
    """Replace, in this process, what cannot run on fake tensors."""
    state = torch.zeros(16, dtype=torch.uint8)
    torch_module: Any = torch
    for module in (torch_module, torch_module.random):
        module.get_rng_state = lambda: state
        module.set_rng_state = lambda _state: None

    def pin_memory(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if ledger.is_pinned(tensor):
            return tensor
        with ledger.births_pinned():
            return torch.empty_like(tensor)

    torch_module.Tensor.pin_memory = pin_memory
    torch_module.Tensor.is_pinned = lambda tensor, *_: ledger.is_pinned(tensor)
    setattr(FakeTensor, "data_ptr", _address)  # noqa: B010  # a type checker objects to exchanging torch's method


def _address(tensor: torch.Tensor) -> int:
    """An address for a tensor that has none: aligned as its place in its storage is, and never another storage's."""
    return int((tensor.untyped_storage()._cdata << 40) + tensor.storage_offset() * tensor.element_size())


def neutralize_transformers() -> None:
    """Let transformers take its training path, not its tracing path, and see a batch of unpacked samples.

    It treats a fake tensor as a sign of tracing and then builds masks that a training run does not, and it reads
    position ids to find out whether several samples were packed into one.

    A model built under ZeRO-3 gets random weights, module by module, each gathered for it; one loaded from a checkpoint
    gets the checkpoint's in the same manner. Only the largest module is gathered here: it alone decides the peak.
    """
    import_utils: Any = importlib.import_module("transformers.utils.import_utils")
    if hasattr(import_utils, "is_fake_tensor"):
        import_utils.is_fake_tensor = lambda _tensor: False
    integration: Any = importlib.import_module("transformers.integrations.deepspeed")
    if hasattr(integration, "initialize_weights_zero3"):
        integration.initialize_weights_zero3 = gather_largest_module
    try:
        masking_utils: Any = importlib.import_module("transformers.masking_utils")
    except ImportError:  # transformers before 4.53
        return
    if hasattr(masking_utils, "find_packed_sequence_indices"):
        masking_utils.find_packed_sequence_indices = lambda *_, **__: None


def gather_largest_module(model: torch.nn.Module) -> None:
    """Gather and release the largest module's own parameters under ZeRO-3, as loading a checkpoint does with each."""
    import deepspeed

    def size(module: torch.nn.Module) -> int:
        return sum(getattr(parameter, "ds_numel", 0) for parameter in module.parameters(recurse=False))

    largest = max(model.modules(), key=size)
    with deepspeed.zero.GatheredParameters(list(largest.parameters(recurse=False)), modifier_rank=0):
        pass
