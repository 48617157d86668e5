"""Functions that need a tensor's value, or a real generator, made harmless for fake tensors."""

from __future__ import annotations

from typing import Any

import torch

from .ledger import Ledger


def neutralize(ledger: Ledger) -> None:
    """Replace, in this process, what cannot run on fake tensors; after transformers is imported."""
    state = torch.zeros(16, dtype=torch.uint8)
    torch.get_rng_state = torch.random.get_rng_state = lambda: state
    torch.set_rng_state = torch.random.set_rng_state = lambda _state: None

    def pin_memory(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if ledger.is_pinned(tensor):
            return tensor
        with ledger.births_pinned():
            return torch.empty_like(tensor)

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda tensor, *_: ledger.is_pinned(tensor)  # type: ignore[method-assign]


def neutralize_transformers() -> None:
    """Let transformers take its training path, not its tracing path, and see a batch of unpacked samples.

    It treats a fake tensor as a sign of tracing and then builds masks that a training run does not, and it reads position
    ids to find out whether several samples were packed into one.
    """
    import transformers.utils.import_utils as import_utils
    if hasattr(import_utils, "is_fake_tensor"):
        import_utils.is_fake_tensor = lambda _tensor: False
    try:
        import transformers.masking_utils as masking_utils
    except ImportError:  # transformers before 4.53
        return
    if hasattr(masking_utils, "find_packed_sequence_indices"):
        masking_utils.find_packed_sequence_indices = lambda *_, **__: None
