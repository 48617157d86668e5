"""A layer as a program: the operations that the model's own code runs, recorded once, for any batch and length.

Sizes are polynomials: `(a + b S + c S^2) B + (d + e S + f S^2)` elements for B samples of S tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Quantity(NamedTuple):
    """Elements, or bytes, by batch and length."""

    per_sample: tuple[float, float, float]
    """Coefficients of 1, S and S^2, for each sample."""
    fixed: tuple[float, float, float]
    """The same, whatever the batch."""

    def of_sample(self, seq_len: int) -> int:
        return _value(self.per_sample, seq_len)

    def of_batch(self, seq_len: int) -> int:
        """The part that does not depend on the batch."""
        return _value(self.fixed, seq_len)


NOTHING = Quantity((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def _value(coefficients: tuple[float, float, float], seq_len: int) -> int:
    constant, linear, square = coefficients
    return round(constant + linear * seq_len + square * seq_len**2)


class Slot(NamedTuple):
    """One tensor of a program."""

    elements: Quantity
    width: int
    """The last dimension."""
    itemsize: int
    """Bytes per element; 0: those of the weights' type."""
    storage: int
    """Tensors that share memory have the same number."""
    source: int = 0
    """0: made by the program. Otherwise it comes from outside: the same tensor has the same number in all programs of a
    model; -1: a buffer or the input."""
    is_differentiable: bool = True


class Derivative(NamedTuple):
    """What autograd does for one operation when some of its inputs require a gradient."""

    saves_inputs: tuple[int, ...] = ()
    saves_outputs: tuple[int, ...] = ()
    saves_weights: tuple[int, ...] = ()
    saves_new: Quantity = NOTHING
    """Bytes of saved tensors that are neither input nor output."""
    passes: bool = False
    """The gradients of the inputs are views of the output's."""
    workspace: Quantity = NOTHING
    """Bytes of the backward pass besides the gradients of the inputs."""
    operations: int = 0
    """Kernels of the backward pass."""


Kind = Literal["operation", "cast", "linear", "attention", "hold"]


class Instruction(NamedTuple):
    """One operation."""

    kind: Kind
    name: str
    """torch's name of the operation, or the module of a linear layer."""
    inputs: tuple[int, ...]
    """Slots of activations; weights are left out."""
    outputs: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    """Parameters that it reads."""
    is_product: bool = False
    """A matrix product."""
    derivatives: tuple[tuple[int, Derivative], ...] = ()
    """By a bit mask of the inputs that require a gradient; the bit above the inputs' is the weights'."""
    details: tuple[tuple[str, int], ...] = ()
    """Of attention: its dimensions."""


class Program(NamedTuple):
    """A layer's forward pass."""

    slots: tuple[Slot, ...]
    input: int
    output: int
    instructions: tuple[Instruction, ...]

    @property
    def has_fused_attention(self) -> bool:
        return any(instruction.kind == "attention" for instruction in self.instructions)

    def sources(self, *, saved: bool) -> dict[int, Slot]:
        """The tensors from outside, by their number in the model. saved: only those that a derivative reads."""
        read = {
            self.slots[instruction.inputs[index]].storage
            for instruction in self.instructions
            for _, derivative in instruction.derivatives
            for index in derivative.saves_inputs
        }
        return {
            slot.source: slot for slot in self.slots if slot.source > 0 and not (saved and slot.storage not in read)
        }


class Around(NamedTuple):
    """What a model runs around its layers."""

    openings: tuple[Program, ...]
    """Before the first layer of each stack."""
    closing: Program
    """From the last layer to the head."""
