"""Layers that several ranks split (AutoTP), as `deepspeed.initialize` does it from `tensor_parallel.autotp_size`."""

from __future__ import annotations

from typing import Any

from ..request import Request


def prepare(request: Request) -> None:
    """Form the groups of ranks before the engine does, by DeepSpeed's own function for where torch cannot split groups:
    a `DeviceMesh` computes them with tensors, whose values a dry run does not know."""
    if request.autotp_size > 1:
        from deepspeed.utils import groups

        groups._init_tp_groups_with_new_group(request.autotp_size)


def skip_check(engine: Any) -> None:
    """Leave out the comparison of the first batch between the ranks that split it, which compares values."""
    check = getattr(engine, "first_dataloader_check", None)
    if check is not None:
        check.remove()
