"""A user's module and its batches, from a function in a file or from an object."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ...estimators.models.model_shape import Input
from ..run import Run
from .models import TrainableModel, UnusableModelError, adapted

CHECKPOINTING = ("gradient_checkpointing_enable", "set_grad_checkpointing", "enable_gradient_checkpointing")
"""Methods that enable gradient checkpointing: those of transformers, timm, diffusers."""


def from_file(run: Run, dtype: torch.dtype, device: str) -> TrainableModel:
    """The module of a user's function, with the batches and loss of the file, and, as requested, with LoRA and (if the
    module supports it) checkpointing. Raises UnusableModelError like `built`, and the errors of the user's code."""
    model, module = built(str(run.model))
    model = adapted(model, run)
    if run.gradient_checkpointing:
        enable_checkpointing(model)
    make_batch = batches(module, run.inputs, dtype, device)
    return TrainableModel(model, lambda batch: make_batch(batch, run.workload.seq_len), load_loss(module), 0)


def built(model: str) -> tuple[torch.nn.Module, ModuleType]:
    """The module of FILE.py:FUNCTION, and the file. Raises UnusableModelError if the function is missing or returns no
    module."""
    path, _, function = model.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).parent))  # the file may import modules of its folder
    # Not in sys.modules: the file may be named like a library.
    spec.loader.exec_module(file)
    factory = getattr(file, function, None)
    if not callable(factory):
        raise UnusableModelError(f"{path} has no function {function!r}", fix="name one that returns a torch.nn.Module")
    made = factory()
    if not isinstance(made, torch.nn.Module):
        raise UnusableModelError(
            f"{function} of {path} returned a {type(made).__name__}", fix="let it return a torch.nn.Module"
        )
    return made, file


def enable_checkpointing(model: Any) -> str:
    """Enable gradient checkpointing. Returns the name of the method used; "" if the module has none."""
    for name in CHECKPOINTING:
        if callable(enable := getattr(model, name, None)):
            try:
                enable()
            except ValueError:  # transformers and diffusers: this class does not support it
                return ""
            return name
    return ""


def batches(file: ModuleType, inputs: Sequence[Input], dtype: torch.dtype, device: str) -> Callable[[int, int], Any]:
    """Batches by number of samples and sequence length: from the file's `make_batch(micro_batch_size, seq_len)`, whose
    tensors are passed to `forward` (a dict by name, a tuple by position), or from the shapes of one sample."""
    own_function = getattr(file, "make_batch", None)

    def make_batch(batch: int, seq_len: int) -> Any:
        if own_function is not None:
            return _on_device(own_function(batch, seq_len), dtype, device)
        if not inputs:
            raise UnusableModelError(
                f"{file.__file__} defines no make_batch, so the shape of one sample is needed",
                fix="pass --input-shape, such as 3,32,32, or define make_batch(micro_batch_size, seq_len)",
            )
        types = [dtype if each.dtype == "float" else getattr(torch, each.dtype) for each in inputs]
        return tuple(
            torch.zeros((batch, *each.shape), dtype=kind, device=device)
            for each, kind in zip(inputs, types, strict=True)
        )

    return make_batch


def _on_device(value: Any, dtype: torch.dtype, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, Mapping):
        return {key: _on_device(item, dtype, device) for key, item in value.items()}
    return tuple(_on_device(item, dtype, device) for item in value) if isinstance(value, list | tuple) else value


def load_loss(file: object) -> Callable[[Any, Any], Any]:
    """The file's `loss_fn(output, batch)`; by default the output's own loss, or the mean of its first tensor."""

    def own_loss(output: Any, _batch: Any) -> Any:
        if getattr(output, "loss", None) is not None:
            return output.loss
        first = output if isinstance(output, torch.Tensor) else output[0]
        return first.float().mean()

    loss_fn: Callable[[Any, Any], Any] = getattr(file, "loss_fn", None) or own_loss
    return loss_fn
