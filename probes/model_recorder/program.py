"""Programs from traces: the same steps traced at several batches and lengths, with sizes as polynomials of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...estimators.models.program import Derivative, Instruction, Program, Quantity, Slot
from .derivatives import RawDerivative, choices, derive
from .trace import Step, Trace, UnrecordableError

Shapes = Sequence[tuple[int, int]]
"""Batches and lengths of the traces."""

BATCHES = (2, 3)
STEPS = (256, 64, 16)
"""Tokens between two lengths: multiples of the chunks in which models process sequences; fewer for few positions."""

COUNTS, LAST = (2, 3, 4), 6
"""The lengths in steps. One chunk alone can run other operations than several."""


def shapes_up_to(max_positions: int) -> Shapes:
    """Two batches at each of three equally distant lengths, and a last one that tests the polynomials. max_positions: 0
    for any length."""
    step = next((step for step in STEPS if not 0 < max_positions < LAST * step), STEPS[-1])
    return (*((batch, count * step) for count in COUNTS for batch in BATCHES), (5, LAST * step))


PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution"})
"""Matrix products, whose time does not follow from the bytes that they move."""


@dataclass(frozen=True)
class Part:
    """A part of a trace: its steps, and the numbers of the tensor that it takes and of the one that it makes."""

    trace: Trace
    steps: Sequence[Step]
    input: int | None
    output: int
    embedding: int | None = None
    """The output of the input embedding."""
    held: Sequence[int] = ()
    """The model's output."""


def program(parts: Sequence[Part], shapes: Shapes) -> Program:
    """The program of a part that was traced at these shapes. Raises UnrecordableError."""
    first = parts[0]
    kinds = [[(step.kind, step.name, len(step.inputs)) for step in part.steps] for part in parts]
    if any(each != kinds[0] for each in kinds):
        what = "sequence length, as in a loop over chunks" if shapes[0][1] != shapes[-1][1] else "batch size"
        raise UnrecordableError(f"its operations depend on the {what}")
    numbers = [_numbers(part) for part in parts]
    index = {number: place for place, number in enumerate(numbers[0])}
    made = {number for step in first.steps for number in step.outputs}
    slots = tuple(
        _slot([part.trace for part in parts], each, shapes, is_outer=each[0] not in made)
        for each in zip(*numbers, strict=True)
    )
    for step in first.steps:
        if step.kind == "attention" and any(slots[index[number]].needs_grad for number in step.inputs[3:]):
            raise UnrecordableError("its attention adds trainable relative positions to the scores")
    instructions = tuple(
        _instruction(each, parts, index, shapes) for each in zip(*(part.steps for part in parts), strict=True)
    )
    given, embedded = (-1 if number is None else index[number] for number in (first.input, first.embedding))
    held = tuple(index[number] for number in first.held if number in index)
    return Program(slots, given, index[first.output], embedded, instructions, held)


def _numbers(part: Part) -> list[int]:
    """The tensors of a part in the order of their first use."""
    given = [] if part.input is None else [part.input]
    used = [number for step in part.steps for number in (*step.inputs, *step.outputs)]
    return list(dict.fromkeys([*given, *used, part.output]))


def _slot(traces: Sequence[Trace], numbers: Sequence[int], shapes: Shapes, *, is_outer: bool) -> Slot:
    tensors = [trace.tensors[number] for trace, number in zip(traces, numbers, strict=True)]
    first = tensors[0]
    last = {tensor.shape[-1] if tensor.shape else 1 for tensor in tensors}
    return Slot(
        elements=_quantity([tensor.numel for tensor in tensors], shapes),
        width=max(1, last.pop()) if len(last) == 1 else 1,
        itemsize=0 if first.dtype == torch.bfloat16 else first.dtype.itemsize,
        storage=first.storage,
        source=(first.source or numbers[0] + 1) if is_outer else 0,
        needs_grad=first.needs_grad if is_outer else first.is_differentiable,
    )


def _instruction(steps: Sequence[Step], parts: Sequence[Part], index: dict[int, int], shapes: Shapes) -> Instruction:
    step, details = steps[0], steps[0].details.items()
    derivatives: list[tuple[int, Derivative]] = []
    if step.call is not None:
        for mask in choices(step, parts[0].trace.tensors):
            raw = [derive(one, part.trace.tensors, mask) for one, part in zip(steps, parts, strict=True)]
            found = [one for one in raw if one is not None]
            if len(found) == len(raw):
                derivatives.append((mask, _derivative(found, shapes)))
    return Instruction(
        kind=step.kind,  # type: ignore[arg-type]
        name=step.name,
        inputs=tuple(index[number] for number in step.inputs),
        outputs=tuple(index[number] for number in step.outputs),
        weights=tuple(parts[0].trace.weight_names[number] for number in step.weights),
        is_product=step.name in PRODUCTS,
        derivatives=tuple(derivatives),
        details=tuple((name, size if all(one.details[name] == size for one in steps) else 0) for name, size in details),
        flops=_quantity([one.flops for one in steps], shapes),
    )


def _derivative(raw: Sequence[RawDerivative], shapes: Shapes) -> Derivative:
    first = raw[0]
    return Derivative(
        saves_inputs=first.saves_inputs,
        saves_outputs=first.saves_outputs,
        saves_weights=first.saves_weights,
        saves_new=_quantity([one.saves_new for one in raw], shapes),
        passes=first.passes,
        workspace=_quantity([one.workspace for one in raw], shapes),
        operations=first.operations,
        flops=_quantity([one.flops for one in raw], shapes),
    )


def _quantity(values: Sequence[int], shapes: Shapes) -> Quantity:
    """The polynomial through the values at these shapes: pairs of batches at one or three lengths, and a last shape.
    Raises UnrecordableError where it misses the last value."""
    first = range(0, len(shapes) - 1, 2)
    lengths = [shapes[index][1] for index in first]
    per_sample = [float(values[index + 1] - values[index]) for index in first]
    fixed = [values[index] - BATCHES[0] * each for index, each in zip(first, per_sample, strict=True)]
    found = Quantity(_parabola(lengths, per_sample), _parabola(lengths, fixed))
    batch, length = shapes[-1]
    expected = found.at(length).at(batch)
    if abs(expected - values[-1]) > 1:
        raise UnrecordableError(
            f"a tensor has {values[-1]} elements or bytes where {expected} follow from shorter ones"
        )
    return found


def _parabola(lengths: Sequence[int], values: Sequence[float]) -> tuple[float, float, float]:
    """The coefficients of the parabola through values at three equally distant lengths, or of a constant."""
    if len(lengths) == 1:
        return values[0], 0.0, 0.0
    step = lengths[1] - lengths[0]
    square = (values[2] - 2 * values[1] + values[0]) / (2 * step**2)
    linear = (values[1] - values[0]) / step - square * (lengths[0] + lengths[1])
    return values[0] - linear * lengths[0] - square * lengths[0] ** 2, linear, square
