"""Programs from traces: one step is traced at several batches and lengths, and sizes become polynomials of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...estimators.models.program import Coefficients, Derivative, Instruction, Program, Quantity, Slot
from .derivatives import RawDerivative, choices, derive
from .trace import Step, Trace, TracedTensor, UnrecordableError

Shapes = Sequence[tuple[int, int]]
"""(batch, length) of the traces."""

BATCHES = (2, 3)
STEPS = (256, 64, 16)
"""Tokens between two lengths: multiples of the chunks in which models process sequences; the smaller ones for models
with few positions."""

LONG_STEP = 512
"""Tokens between two lengths for code that treats short sequences differently."""

COUNTS, LAST = (2, 3, 4), 6
"""Lengths in steps. Several chunks are needed, because a single one may run other operations."""


def usual_step(max_positions: int) -> int:
    """Tokens between two lengths. max_positions: 0 if unlimited."""
    return next((step for step in STEPS if not 0 < max_positions < LAST * step), STEPS[-1])


def step_shapes(step: int) -> Shapes:
    """Two batches at each of three equidistant lengths, and a last one that tests the polynomials."""
    return (*((batch, count * step) for count in COUNTS for batch in BATCHES), (5, LAST * step))


PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution"})
"""Matrix products, whose time does not depend only on the bytes that they move."""


@dataclass(frozen=True)
class Part:
    """A part of a trace: its steps, and the numbers of its input tensor and output tensor."""

    trace: Trace
    steps: Sequence[Step]
    input: int | None
    output: int
    embedding: int | None = None
    """The output of the input embedding."""
    held: Sequence[int] = ()
    """The tensors of the model's output."""


def program(parts: Sequence[Part], shapes: Shapes) -> Program:
    """The program of a part traced at these shapes. Raises UnrecordableError."""
    if shapes[0][1] == shapes[-1][1] and len({tuple(map(kind, part.steps)) for part in parts}) > 1:
        raise UnrecordableError("its operations depend on the batch size")
    merged = [Merged(part, own) for part, own in zip(parts, groups([part.steps for part in parts]), strict=True)]
    first, numbers = merged[0], [each.numbers() for each in merged]
    if len({len(each) for each in numbers}) > 1:
        raise UnrecordableError("its operations take more tensors in longer sequences")
    index = {number: place for place, number in enumerate(numbers[0])}
    made = {first.representative(number) for step in parts[0].steps for number in step.outputs}
    slots = tuple(_slot(merged, each, shapes, is_outer=each[0] not in made) for each in zip(*numbers, strict=True))
    instructions = tuple(_instruction(merged, place, index, shapes) for place in range(len(first.groups)))
    first_input, output, embedded = (
        -1 if number is None else index[first.representative(number)]
        for number in (parts[0].input, parts[0].output, parts[0].embedding)
    )
    held = tuple(
        index[first.representative(number)] for number in parts[0].held if first.representative(number) in index
    )
    return Program(slots, first_input, output, embedded, instructions, held)


class Merged:
    """A part with its loops merged to one iteration: tensors in the same place of all iterations count as one.

    The second iteration represents all, because the first one reads initial states that require no gradient.
    """

    def __init__(self, part: Part, own: Sequence[Group]) -> None:
        self.part = part
        self.groups = own
        self.members: dict[int, list[int]] = {}
        self._representatives: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        for group in own:
            if len(group) > 1:
                for same in zip(*(step.outputs for step in group), strict=False):
                    self._merge(same)
        for group in own:
            if len(group) > 2:
                for same in zip(*(step.inputs for step in group[1:]), strict=False):
                    self._merge(same)

    def representative(self, number: int) -> int:
        """The number of the tensor that represents this one."""
        while number in self._representatives:
            number = self._representatives[number]
        return number

    def storage(self, number: int) -> int:
        storage = self.part.trace.tensors[number].storage
        while storage in self._storages:
            storage = self._storages[storage]
        return storage

    def step(self, place: int) -> Step:
        group = self.groups[place]
        return group[1] if len(group) > 1 else group[0]

    def numbers(self) -> list[int]:
        first = [] if self.part.input is None else [self.part.input]
        steps = [self.step(place) for place in range(len(self.groups))]
        used = [number for step in steps for number in (*step.inputs, *step.outputs)]
        return list(dict.fromkeys(self.representative(number) for number in (*first, *used, self.part.output)))

    def tensors(self, number: int) -> list[TracedTensor]:
        return [self.part.trace.tensors[each] for each in self.members.get(number, [number])]

    def _merge(self, numbers: Sequence[int]) -> None:
        first = self.representative(numbers[min(1, len(numbers) - 1)])
        kept = self.members.setdefault(first, [first])
        for other in dict.fromkeys(map(self.representative, numbers)):
            if other != first:
                if (storage := self.storage(other)) != (into := self.storage(first)):
                    self._storages[storage] = into
                kept += self.members.pop(other, [other])
                self._representatives[other] = first


def _slot(merged: Sequence[Merged], numbers: Sequence[int], shapes: Shapes, *, is_outer: bool) -> Slot:
    sets = [each.tensors(number) for each, number in zip(merged, numbers, strict=True)]
    first = merged[0].part.trace.tensors[numbers[0]]
    last = {tensor.shape[-1] if tensor.shape else 1 for tensors in sets for tensor in tensors}
    return Slot(
        elements=_quantity([sum(tensor.numel for tensor in tensors) // len(tensors) for tensors in sets], shapes),
        width=max(1, last.pop()) if len(last) == 1 else 1,
        itemsize=0 if first.dtype == torch.bfloat16 else first.dtype.itemsize,
        storage=merged[0].storage(numbers[0]),
        source=(first.source or numbers[0] + 1) if is_outer else 0,
        needs_grad=first.needs_grad if is_outer else first.is_differentiable,
        repeats=_count([len({tensor.storage for tensor in tensors}) for tensors in sets], shapes),
    )


def _instruction(merged: Sequence[Merged], place: int, index: dict[int, int], shapes: Shapes) -> Instruction:
    steps = [each.step(place) for each in merged]
    step, trace, details = steps[0], merged[0].part.trace, steps[0].details.items()
    varies = len({(len(each.inputs), len(each.outputs)) for each in steps}) > 1
    inputs, outputs = (
        [_Row.from_numbers(each, numbers, unique=varies) for each, numbers in zip(merged, tensors, strict=True)]
        for tensors in ([each.inputs for each in steps], [each.outputs for each in steps])
    )
    derivatives: list[tuple[int, Derivative]] = []
    if step.call is not None:
        for mask in choices([trace.tensors[number] for number in inputs[0].numbers], has_weights=bool(step.weights)):
            raw = [
                derive(one, each.part.trace.tensors, row.mask(mask))
                for each, one, row in zip(merged, steps, inputs, strict=True)
            ]
            found = [one for one in raw if one is not None]
            if len(found) == len(raw):
                derivatives.append((mask, _derivative(found, inputs[0], outputs[0], shapes)))
    return Instruction(
        kind=step.kind,  # type: ignore[arg-type]
        name=step.name,
        inputs=tuple(index[number] for number in inputs[0].numbers),
        outputs=tuple(index[number] for number in outputs[0].numbers),
        weights=tuple(trace.weight_names[number] for number in step.weights),
        is_product=step.name in PRODUCTS,
        derivatives=tuple(derivatives),
        details=tuple((name, size if all(one.details[name] == size for one in steps) else 0) for name, size in details),
        flops=_quantity([one.flops for one in steps], shapes),
        repeats=_count([len(each.groups[place]) for each in merged], shapes),
    )


class _Row(NamedTuple):
    """The inputs or outputs of a step."""

    numbers: Sequence[int]
    places: Sequence[int]
    """Index in `numbers` of each tensor of the step."""

    @classmethod
    def from_numbers(cls, merged: Merged, numbers: Sequence[int], *, unique: bool) -> _Row:
        """A row of these tensors. unique: count tensors of all iterations, such as concatenated ones, once."""
        kinds = [merged.representative(number) for number in numbers]
        once = list(dict.fromkeys(kinds))
        return cls(once, [once.index(kind) for kind in kinds]) if unique else cls(kinds, range(len(kinds)))

    def mask(self, chosen: int) -> int:
        """The bit mask of the step's own inputs, from a bit mask of `numbers`."""
        bits = sum(1 << at for at, place in enumerate(self.places) if chosen >> place & 1)
        return bits | (chosen >> len(self.numbers) & 1) << len(self.places)

    def among(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.places[place] for place in places))


def _derivative(raw: Sequence[RawDerivative], inputs: _Row, outputs: _Row, shapes: Shapes) -> Derivative:
    first = raw[0]
    return Derivative(
        saves_inputs=inputs.among(first.saves_inputs),
        saves_outputs=outputs.among(first.saves_outputs),
        saves_weights=first.saves_weights,
        saves_new=_quantity([one.saves_new for one in raw], shapes),
        reuses_gradient=first.reuses_gradient,
        workspace=_quantity([one.workspace for one in raw], shapes),
        operations=first.operations,
        flops=_quantity([one.flops for one in raw], shapes),
    )


def _count(values: Sequence[int], shapes: Shapes) -> Coefficients:
    """Repetitions as a polynomial of the length. Raises UnrecordableError if they depend on the batch."""
    found = _quantity(values, shapes)
    if any(found.per_sample):
        raise UnrecordableError("it has a loop over samples")
    return found.fixed


def _quantity(values: Sequence[int], shapes: Shapes) -> Quantity:
    """The polynomial through the values at these shapes: pairs of batches at one or three lengths, and a last shape.
    Raises UnrecordableError if it misses the last value."""
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
    """The coefficients of the parabola through values at three equidistant lengths, or of a constant."""
    if len(lengths) == 1:
        return values[0], 0.0, 0.0
    step = lengths[1] - lengths[0]
    square = (values[2] - 2 * values[1] + values[0]) / (2 * step**2)
    linear = (values[1] - values[0]) / step - square * (lengths[0] + lengths[1])
    return values[0] - linear * lengths[0] - square * lengths[0] ** 2, linear, square


LONGEST_BODY = 4_000
"""Maximum number of operations in one iteration."""

Group = Sequence[Step]
"""One operation in all iterations of its enclosing loops; a single step outside of loops."""


@dataclass(frozen=True)
class _Loop:
    """Consecutive repetitions of the same operations."""

    iterations: Sequence[Sequence[_Token]]


_Token = int | _Loop
"""The index of a step, or a loop."""


def groups(traces: Sequence[Sequence[Step]]) -> list[list[Group]]:
    """The steps of several traces of one module, grouped so that all traces have the same groups.

    If the traces are equal, each step is a group. Otherwise repetitions are found by the names of the operations, the
    shortest first; repetitions with the same count in all traces are not loops. Releases of memory (`hold`) are then
    omitted. Raises UnrecordableError if the traces differ in anything else.
    """
    kinds = [[kind(step) for step in steps] for steps in traces]
    if all(each == kinds[0] for each in kinds):
        return [[[step] for step in steps] for steps in traces]
    identity: dict[object, int] = {}
    forests = []
    for steps in traces:
        places = [place for place, step in enumerate(steps) if step.kind != "hold"]
        names = [identity.setdefault((steps[place].kind, steps[place].name), len(identity)) for place in places]
        forests.append(_compressed(list(places), names, identity))
    if any(names != forests[0][1] for _, names in forests):
        raise UnrecordableError("its operations depend on the sequence length in other ways than loops")
    aligned = _aligned([[tokens] for tokens, _ in forests])
    return [
        [[steps[place] for place in group] for group in own]
        for steps, own in zip(traces, zip(*aligned, strict=True), strict=True)
    ]


def kind(step: Step) -> tuple[str, str, int]:
    """Key of a step, equal for steps that run the same operation."""
    return step.kind, step.name, len(step.inputs)


def _compressed(tokens: list[_Token], names: list[int], identity: dict[object, int]) -> tuple[list[_Token], list[int]]:
    """The tokens with repetitions replaced by loops, from the shortest to the longest; loops can be nested."""
    period = 1
    while period <= min(len(names) // 2, LONGEST_BODY):
        # Vectorized: a trace has tens of thousands of names and as many candidate periods.
        array = torch.tensor(names)
        same = array[:-period] == array[period:]
        matches = torch.nn.functional.pad(same.cumsum(0), (1, 0))
        # A repetition is a run of at least `period` equal names.
        if not (matches[period:] - matches[:-period] == period).any():
            period += 1
            continue
        tokens, names = _replace_loops(tokens, names, period, same.tolist(), identity)
        period = 1
    return tokens, names


def _replace_loops(
    tokens: list[_Token], names: list[int], period: int, same: list[bool], identity: dict[object, int]
) -> tuple[list[_Token], list[int]]:
    """The tokens with all repetitions of this period replaced by one token each. same: whether a name equals the one a
    period later."""
    made: list[_Token] = []
    called: list[int] = []
    begin = place = 0
    while place < len(same):
        end = next((end for end in range(place, len(same)) if not same[end]), len(same))
        count = (end - place) // period + 1
        if count == 1:
            place = end + 1
            continue
        made, called = made + tokens[begin:place], called + names[begin:place]
        made.append(_Loop([tokens[place + i * period : place + (i + 1) * period] for i in range(count)]))
        called.append(identity.setdefault(tuple(names[place : place + period]), len(identity)))
        begin = place = place + count * period
    return made + tokens[begin:], called + names[begin:]


def _aligned(traces: Sequence[Sequence[Sequence[_Token]]]) -> Iterator[list[list[int]]]:
    """The indices of each operation in each trace. traces: for each trace the iterations of a sequence of tokens."""
    for place in range(len(traces[0][0])):
        column = [[iteration[place] for iteration in iterations] for iterations in traces]
        if not isinstance(column[0][0], _Loop):
            yield column  # type: ignore[misc]
            continue
        loops: list[list[_Loop]] = column  # type: ignore[assignment]
        counts = {len(loop.iterations) for own in loops for loop in own}
        if len(counts) == 1:  # no loop over the sequence
            for index in range(counts.pop()):
                yield from _aligned([[loop.iterations[index] for loop in own] for own in loops])
        else:
            yield from _aligned([[body for loop in own for body in loop.iterations] for own in loops])
