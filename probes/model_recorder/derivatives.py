"""The derivative of one operation, determined by running it alone on the meta device: the tensors that autograd saves
for each choice of inputs that require a gradient, and the allocations of its backward pass."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.experimental._config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .trace import Reference, Step, TracedTensor, operation_flops, tensors_in

MAX_INPUTS = 4
"""Maximum number of inputs for which all choices are tried; with more inputs the choices are all activations, all
weights, and both."""


@dataclass(frozen=True)
class RawDerivative:
    """The derivative of one run of an operation. Sizes in bytes; the fields are those of `program.Derivative`."""

    saves_inputs: tuple[int, ...]
    saves_outputs: tuple[int, ...]
    saves_weights: tuple[int, ...]
    saves_new: int
    reuses_gradient: bool
    workspace: int
    operations: int
    flops: int


def choices(inputs: Sequence[TracedTensor], *, has_weights: bool) -> list[int]:
    """Bit masks of the inputs that can require a gradient; the bit after those of the inputs stands for the weights."""
    activations = [1 << index for index, tensor in enumerate(inputs) if tensor.is_differentiable]
    weights = 1 << len(inputs) if has_weights else 0
    bits = [*activations, weights] if weights else activations
    if len(bits) > MAX_INPUTS:
        return sorted({sum(activations), weights, sum(bits)} - {0})
    return [sum(chosen) for count in range(1, len(bits) + 1) for chosen in itertools.combinations(bits, count)]


_DERIVED: dict[Any, RawDerivative | None] = {}
"""Keyed by operation, arguments, tensors and choice: layers of a module repeat each other."""


def derive(step: Step, tensors: Sequence[TracedTensor], mask: int) -> RawDerivative | None:
    """The derivative for one choice; None if the operation has none."""
    assert step.call is not None
    function, *arguments = step.call
    places = {number: place for place, number in enumerate(dict.fromkeys((*step.inputs, *step.weights)))}
    relative = tree_map_only(Reference, lambda leaf: Reference(places[leaf.number]), arguments)
    kinds = tuple((each.shape, each.stride, each.dtype) for each in map(tensors.__getitem__, places))
    key = function, repr(relative), kinds, tuple(map(places.__getitem__, step.inputs)), mask
    if key not in _DERIVED:
        with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
            _DERIVED[key] = _derive(step, tensors, mask)
    return _DERIVED[key]


def _derive(step: Step, tensors: Sequence[TracedTensor], mask: int) -> RawDerivative | None:
    leaves = _leaves(step, tensors, mask)
    taken, outputs = _call(step, leaves)
    derived = [output for output in outputs if output.requires_grad]
    if not derived:
        return None
    saved = {_key(tensor): tensor for output in derived for tensor in _saved_by(output.grad_fn)}
    inputs = _places(taken[number] for number in step.inputs)
    weights = _places(taken[number] for number in step.weights)
    results = _places(outputs)
    new = [tensor for key, tensor in saved.items() if not (key in inputs or key in weights or key in results)]
    # Gradients arrive in the layout of the outputs; other layouts cause copies.
    arriving = [torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device="meta") for o in derived]
    sources = {number: leaf for number, leaf in leaves.items() if leaf.requires_grad}
    with _Allocations([*leaves.values(), *taken.values(), *outputs, *arriving, *saved.values()]) as allocated:
        # On the meta device autograd allocates like on a GPU, without computing.
        gradients = torch.autograd.grad(derived, list(sources.values()), arriving, allow_unused=True)
    arrived = _places(arriving)
    own = {_key(g): g.untyped_storage().nbytes() for g in gradients if g is not None and _key(g) not in arrived}
    of_activations = [
        gradient
        for number, gradient in zip(sources, gradients, strict=True)
        if gradient is not None and number not in step.weights
    ]
    return RawDerivative(
        saves_inputs=_found(saved, inputs),
        saves_outputs=tuple(place for place in _found(saved, results) if _key(outputs[place]) not in inputs),
        saves_weights=_found(saved, weights),
        saves_new=sum(tensor.untyped_storage().nbytes() for tensor in new),
        reuses_gradient=bool(of_activations) and all(_key(gradient) in arrived for gradient in of_activations),
        workspace=max(0, allocated.peak_bytes - sum(own.values())),
        operations=allocated.operations,
        flops=allocated.flops,
    )


def _leaves(step: Step, tensors: Sequence[TracedTensor], mask: int) -> dict[int, torch.Tensor]:
    """Tensors without data that replace those of the trace; the chosen ones require a gradient."""
    wanted = {number for index, number in enumerate(step.inputs) if mask >> index & 1}
    if mask >> len(step.inputs) & 1:
        wanted |= set(step.weights)
    made = {}
    for number in dict.fromkeys((*step.inputs, *step.weights)):
        tensor = tensors[number]
        made[number] = torch.empty_strided(
            tensor.shape,
            tensor.stride,
            dtype=tensor.dtype,
            device="meta",
            requires_grad=number in wanted and tensor.is_differentiable,
        )
    return made


def _call(step: Step, leaves: Mapping[int, torch.Tensor]) -> tuple[dict[int, torch.Tensor], list[torch.Tensor]]:
    """The tensors given to the operation, and its results. An operation that writes its inputs gets copies."""
    assert step.call is not None
    function, args, kwargs = step.call
    schema = getattr(function, "_schema", None)
    with torch.enable_grad():
        taken = {number: leaf.clone() if schema and schema.is_mutable else leaf for number, leaf in leaves.items()}

        args, kwargs = tree_map_only(Reference, lambda leaf: taken[leaf.number], (args, kwargs))
        result = function(*args, **kwargs)
    return taken, tensors_in(result)


def _saved_by(node: Any) -> list[torch.Tensor]:
    # C++ nodes have `_saved_*` attributes, nodes of autograd functions `saved_tensors`.
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    return tensors_in([getattr(node, name) for name in names])


def _key(tensor: torch.Tensor) -> int:
    """Key of a tensor's memory, equal for tensors that share it."""
    return int(tensor.untyped_storage()._cdata)


def _places(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Memory -> index of the first tensor that uses it."""
    found: dict[int, int] = {}
    for place, tensor in enumerate(tensors):
        found.setdefault(_key(tensor), place)
    return found


def _found(saved: Mapping[int, torch.Tensor], places: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted(places[key] for key in saved if key in places))


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The peak of allocated bytes beyond those of known tensors, the operations that allocated, and FLOPs."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = self.peak_bytes = self.operations = self.flops = 0
        self.sizes = dict.fromkeys(map(_key, known), 0)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        self.flops += operation_flops(op, args, kwargs or {}, result)
        new = [tensor.untyped_storage() for tensor in tensors_in(result) if _key(tensor) not in self.sizes]
        for storage in new:
            self.sizes[storage._cdata] = storage.nbytes()
            self.live_bytes += storage.nbytes()
            # Memory counts until autograd drops it.
            weakref.finalize(storage, self._release, storage._cdata)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.operations += bool(new)
        return result

    def _release(self, key: int) -> None:
        self.live_bytes -= self.sizes.pop(key)
