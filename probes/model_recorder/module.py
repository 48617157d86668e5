"""The shape of a user's module: its forward pass and loss, recorded as a whole on the meta device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch.utils._pytree import tree_map

from ...estimators.models.model_shape import (
    Attention,
    BatchForm,
    Block,
    FeedForward,
    ModelShape,
    Tensor,
    UserModule,
)
from ...estimators.models.program import OuterPrograms, Program, Quantity, Slot
from ..default_script.engine import batches, built, enable_checkpointing, load_loss, own_loss
from ..gc_pause import gc_paused
from ..recording.engine_phases import TensorForm
from .program import BATCHES, Part, program
from .trace import Step, Trace, UnrecordableError, tensors_in, tracing

_CHECKED_BATCH = 5
_NOTHING = Quantity((0, 0, 0), (0, 0, 0))
_EMPTY = Program((Slot(_NOTHING, 1, 0, 0, -1, needs_grad=False),), 0, 0, -1, ())
"""A program without operations, for the parts outside a module's block."""


def recorded_file(own: UserModule, seq_len: int) -> ModelShape:
    """The shape of the module in a file. Raises UnusableModelError, UnrecordableError, and any error of its code."""
    with torch.device("meta"):
        model, file = built(own.factory)
        make_batch = batches(model, file, own.inputs, torch.bfloat16, "meta")
        return recorded_module(model, make_batch, getattr(file, "loss_fn", None), own, seq_len)


def recorded_object(model: Any, example_inputs: Any, loss_fn: Callable[[Any, Any], Any] | None) -> ModelShape:
    """The shape of a module, or of a function's result. example_inputs: the arguments of its `forward`, a tensor, a
    tuple or a dict, with any number of samples. Raises like `recorded_module`."""
    is_single = isinstance(example_inputs, torch.Tensor)
    arguments = (example_inputs,) if is_single else example_inputs
    samples = tensors_in(arguments)[0].shape[0]

    def make_batch(batch: int, _: int) -> Any:
        return resized(arguments, {0: (samples, batch)})

    if not isinstance(model, torch.nn.Module):
        with torch.device("meta"):
            model = model()
    return recorded_module(model, make_batch, loss_fn, UserModule(""), 1)


def resized(tensors: Any, sizes: Mapping[int, tuple[int, int]]) -> Any:
    """The tensors, or their forms, on the meta device. sizes: dimension -> (its size for samples or tokens, its new
    size)."""

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor | TensorForm):
            return leaf
        shape = list(leaf.shape)
        for place, (old, new) in sizes.items():
            if len(shape) > place and shape[place] == old:
                shape[place] = new
        return torch.empty(shape, dtype=torch.bfloat16 if leaf.dtype.is_floating_point else leaf.dtype, device="meta")

    return tree_map(empty, tensors, is_leaf=lambda value: isinstance(value, TensorForm))


def recorded_module(
    model: torch.nn.Module,
    make_batch: Callable[[int, int], Any],
    loss_fn: Callable[[Any, Any], Any] | None,
    own: UserModule,
    seq_len: int,
) -> ModelShape:
    """The shape of a module, which is not changed.

    make_batch: returns tensors on the meta device for a number of samples and a length. A sample has `seq_len` tokens
    if its tensors follow the length; otherwise its length is 1, and only samples count.
    loss_fn: the loss by output and batch; None for the output's own (`load_loss`).

    Raises UnrecordableError, and any error of the module's code on tensors without data.
    """
    model, loss = copy_without_data(model), loss_fn or load_loss(None)
    name = own.factory.rpartition("/")[2] or type(model).__name__
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UnrecordableError("all of its parameters are frozen")
    # Dropout and checkpointing are active in training only.
    model.train()
    method = enable_checkpointing(model)
    follows = _shapes(make_batch(1, seq_len)) != _shapes(make_batch(1, 2 * seq_len))
    shapes = [(batch, seq_len) for batch in (*BATCHES, _CHECKED_BATCH)]
    with torch.device("meta"), gc_paused():  # garbage collection would release tensors at arbitrary times
        batch = make_batch(*shapes[0])
        _, output = _part(model, batch, loss)  # does what only the first call does
        parts = [_part(model, make_batch(*shape), loss)[0] for shape in shapes]
    block = Block(
        prefix="",
        count=1,
        tensors=tuple(_tensors(model)),
        attention=Attention(0, 0, 0, 0, causal=False, rotary=False),
        feed_forward=FeedForward(0, gated=False, activation=""),
        stack="encoder",
        program=program(parts, shapes),
    )
    return ModelShape(
        name=name,
        model_type="module",
        architecture=type(model).__name__,
        hidden_size=0,
        vocab_size=0,
        blocks=(block,),
        outside=(),
        tied=False,
        encoder_len_fixed=seq_len if follows else 1,
        source="recorded from its own code",
        outer_programs=OuterPrograms((), _EMPTY),
        module=own._replace(
            checkpointing=f"model.{method}()" if method else "",
            batch=_form(batch),
            floats=_floats(batch),
            loss="loss_fn" if loss_fn else _loss_part(output),
        ),
    )


def _form(batch: Any) -> BatchForm:
    is_mapping = isinstance(batch, Mapping)
    is_flat = all(isinstance(item, torch.Tensor) for item in (batch.values() if is_mapping else batch))
    return "nested" if not is_flat else "dict" if is_mapping else "tuple"


def _floats(batch: Any) -> Literal["none", "some", "all"]:
    """How many of its tensors have the training precision, which is bf16 here."""
    floats = {tensor.dtype == torch.bfloat16 for tensor in tensors_in(batch)}
    return "none" if True not in floats else "some" if False in floats else "all"


def _loss_part(output: Any) -> str:
    """The part of the output that is the loss (`UserModule.loss`). A first tensor that is no number is none."""
    tensor, part = own_loss(output)
    return "unknown" if part != ".loss" and tensor.dim() else part


def copy_without_data(model: torch.nn.Module) -> torch.nn.Module:
    """A copy on the meta device; its parameters are in bf16, as DeepSpeed's engine casts them (0.19.8 runtime/engine.py
    `_cast_module_mixed_precision`), and whole where ZeRO-3 has sharded them."""
    copies: dict[int, torch.Tensor] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        dtype = torch.bfloat16 if is_parameter and tensor.is_floating_point() else tensor.dtype
        if hasattr(tensor, "ds_shape"):
            empty = torch.empty(tuple(tensor.ds_shape), dtype=dtype, device="meta")
        else:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
        copies[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    # torch ends the process where one is copied; a pipeline's module holds some.
    setattr(torch.distributed.ProcessGroup, "__deepcopy__", lambda group, _copies: group)  # noqa: B010  mypy
    return copy.deepcopy(model, copies)  # the memo of objects that are already copied


def _shapes(batch: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_in(batch)]


def _part(model: torch.nn.Module, batch: Any, loss: Callable[[Any, Any], Any]) -> tuple[Part, Any]:
    """The recorded forward pass and loss of a batch, and the output."""
    trace = Trace(model)
    for place, tensor in enumerate([*tensors_in(batch), *model.buffers()]):
        trace.number(tensor, place + 1)
    with tracing(trace), _checkpoints(trace):
        output = model(**batch) if isinstance(batch, Mapping) else model(*batch)
        result = loss(output, batch)
    held = [trace.keep(tensor) for tensor in tensors_in(output)]
    output_number = trace.keep(result)
    steps = _close_checkpoints(trace.steps, {output_number, *held})
    return Part(trace, steps, None, output_number, held=held), output


@contextmanager
def _checkpoints(trace: Trace) -> Iterator[None]:
    """Record begin and end of the parts that torch's checkpointing runs. Modules use it if gradients are enabled, so
    `is_grad_enabled` is True here."""

    def generator(*_: Any, **__: Any) -> Iterator[None]:
        trace.steps.append(Step("checkpoint", "", ()))
        yield
        trace.steps.append(Step("checkpointed", "", ()))

    with (
        patch.object(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", generator),
        patch.object(torch, "is_grad_enabled", lambda: not trace.no_grad_depth),
    ):
        yield


def _close_checkpoints(steps: Sequence[Step], last: set[int]) -> list[Step]:
    """The steps; the end of a checkpointed part gets the tensors that leave the part as inputs."""
    used, made, reversed_steps = set(last), set[int](), list[Step]()
    results: list[int] = []
    for step in reversed(steps):
        if step.kind == "checkpointed":
            results, made = sorted(used), set()
            reversed_steps.append(step)
            place = len(reversed_steps) - 1
        elif step.kind == "checkpoint":
            own = tuple(number for number in results if number in made)
            reversed_steps[place] = replace(reversed_steps[place], inputs=own)
            reversed_steps.append(step)
        else:
            made.update(step.outputs)
            reversed_steps.append(step)
        if step.kind != "hold":
            used.update(step.inputs)
    return reversed_steps[::-1]


def _tensors(model: torch.nn.Module) -> Iterator[Tensor]:
    for path, parameter in model.named_parameters():
        linear = isinstance(model.get_submodule(path.rpartition(".")[0]), torch.nn.Linear)
        frozen = not parameter.requires_grad
        yield Tensor(path, tuple(parameter.shape), "other", linear=linear and parameter.dim() == 2, frozen=frozen)
