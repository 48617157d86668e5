"""What autograd does for one operation: found by running it alone on the meta device, with each choice of inputs that
require a gradient."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .trace import Reference, Step, TracedTensor

MOST_INPUTS = 4
"""Of an operation with more inputs only all activations, all weights and both are tried."""


@dataclass(frozen=True)
class RawDerivative:
    """Of one run: sizes in bytes."""

    saves_inputs: tuple[int, ...]
    saves_outputs: tuple[int, ...]
    saves_weights: tuple[int, ...]
    saves_new: int
    passes: bool
    workspace: int
    operations: int


class _Live(TorchDispatchMode):
    """Bytes that are alive, beyond those of known storages, their peak, and the operations that made them."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = self.operations = 0
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        made = False
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                key = storage._cdata
                if key not in self.sizes:
                    made = True
                    self.sizes[key] = storage.nbytes()
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._release, key)
        self.peak = max(self.peak, self.live)
        self.operations += made
        return result

    def _release(self, key: int) -> None:
        self.live -= self.sizes.pop(key)


def choices(step: Step, tensors: list[TracedTensor]) -> list[int]:
    """Bit masks of the inputs that can require a gradient; the highest bit stands for the weights."""
    own = [1 << index for index, number in enumerate(step.inputs) if tensors[number].is_differentiable]
    weights = 1 << len(step.inputs) if step.weights else 0
    bits = [*own, weights] if weights else own
    if len(bits) > MOST_INPUTS:
        return sorted({sum(own), weights, sum(bits)} - {0})
    return [sum(chosen) for count in range(1, len(bits) + 1) for chosen in itertools.combinations(bits, count)]


def derive(step: Step, tensors: list[TracedTensor], mask: int) -> RawDerivative | None:
    """One choice; None where nothing is derived."""
    op, args, kwargs = step.call
    mutates = bool(getattr(op, "_schema", None)) and op._schema.is_mutable
    numbers = [*step.inputs, *step.weights]
    wanted = {number for index, number in enumerate(step.inputs) if mask >> index & 1}
    if mask >> len(step.inputs) & 1:
        wanted |= set(step.weights)
    leaves = {
        number: torch.empty_strided(
            tensors[number].shape, tensors[number].stride, dtype=tensors[number].dtype, device="meta",
            requires_grad=number in wanted and tensors[number].is_differentiable,
        )
        for number in dict.fromkeys(numbers)
    }  # fmt: skip
    with torch.enable_grad():
        given = {number: leaf.clone() if mutates else leaf for number, leaf in leaves.items()}

        def resolve(leaf: Any) -> Any:
            return given[leaf.number] if isinstance(leaf, Reference) else leaf

        result = op(*tree_map(resolve, args), **tree_map(resolve, kwargs))
    outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
    derived = [output for output in outputs if output.requires_grad]
    if not derived:
        return None
    inside = {given[number].untyped_storage()._cdata: index for index, number in reversed(list(enumerate(step.inputs)))}
    weights = {given[number].untyped_storage()._cdata: index for index, number in enumerate(step.weights)}
    made = {output.untyped_storage()._cdata: index for index, output in reversed(list(enumerate(outputs)))}
    saved = {tensor.untyped_storage()._cdata: tensor for output in derived for tensor in _saved(output.grad_fn)}
    new = sum(
        tensor.untyped_storage().nbytes()
        for key, tensor in saved.items()
        if key not in inside and key not in made and key not in weights
    )
    inputs = tuple(sorted(inside[key] for key in saved if key in inside))
    kept = tuple(sorted(made[key] for key in saved if key in made and key not in inside))
    arriving = [torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device="meta") for o in derived]
    sources = [leaves[number] for number in dict.fromkeys(numbers) if leaves[number].requires_grad]
    known = [*leaves.values(), *given.values(), *outputs, *arriving, *saved.values()]
    with _Live(known) as live:
        gradients = torch.autograd.grad(derived, sources, arriving, allow_unused=True)
    came = {gradient.untyped_storage()._cdata for gradient in arriving}
    results = [gradient for gradient in gradients if gradient is not None]
    own = {g.untyped_storage()._cdata: g.untyped_storage().nbytes() for g in results}
    fresh = sum(size for key, size in own.items() if key not in came)
    activations = [
        gradient
        for source, gradient in zip(sources, gradients, strict=True)
        if gradient is not None and not any(source is leaves[number] for number in step.weights)
    ]
    return RawDerivative(
        inputs,
        kept,
        tuple(sorted(weights[key] for key in saved if key in weights)),
        new,
        bool(activations) and all(g.untyped_storage()._cdata in came for g in activations),
        max(0, live.peak - fresh),
        live.operations,
    )


def _saved(node: Any) -> list[torch.Tensor]:
    """The tensors that a node of the graph saved."""
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    values = [getattr(node, name) for name in names]
    return [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor)]
