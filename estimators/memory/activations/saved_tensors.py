"""A symbolic autograd graph: what operations save for their backward pass, and what that pass needs besides.

The graph records operations on tensors that have a size and no values, with torch's own rules: an operation saves what
its derivative reads (`mul` its factors, `tanh` its result, a linear layer its input when the weight trains), nothing
when no input requires a gradient, and a storage that several operations save is kept once. `saved` is then the sum
over distinct storages. The backward pass is replayed node by node, newest first, as torch's engine does: gradients of
the inputs appear, then what the node had saved and the gradient of its output go; gradients that meet are added.

Source: torch 2.13, `tools/autograd/derivatives.yaml` (what is saved), `torch/csrc/autograd/engine.cpp` and
`input_buffer.cpp` (when it is released, when gradients are added in place).

Sizes are bytes for one sample, or, with `fixed`, bytes for the whole batch whatever its size (rotary tables, masks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Size(NamedTuple):
    """`per_sample` B + `fixed` bytes."""

    per_sample: int
    fixed: int

    def at(self, micro_batch_size: int) -> int:
        return self.per_sample * micro_batch_size + self.fixed

    def plus(self, other: Size) -> Size:
        return Size(self.per_sample + other.per_sample, self.fixed + other.fixed)

    def minus(self, other: Size) -> Size:
        return Size(self.per_sample - other.per_sample, self.fixed - other.fixed)

    def times(self, count: int) -> Size:
        return Size(self.per_sample * count, self.fixed * count)


ZERO = Size(0, 0)

IN_PLACE = True
"""torch adds a gradient to an earlier one in place where nobody else holds that one, and scatters the gradient of an
index into fresh zeros. Under a TorchDispatchMode, as in a dry run, it never does: both take one tensor more."""


class Storage:
    """Memory that one or more tensors view. `outer`: it belongs to the surroundings of the graph, which account for
    it."""

    __slots__ = ("fixed", "label", "outer", "part", "size")

    def __init__(self, size: int, label: str, part: str, *, fixed: bool = False, outer: bool = False) -> None:
        self.size, self.label, self.part, self.fixed, self.outer = size, label, part, fixed, outer


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of rows x width elements (per sample, unless its storage is fixed)."""

    rows: int
    width: int
    itemsize: int
    storage: Storage
    needs_grad: bool

    @property
    def size(self) -> int:
        return self.rows * self.width * self.itemsize


@dataclass(slots=True, eq=False)
class _Node:
    """One operation. `passes`: the gradient of the output is handed on as it is (add, view) instead of a new tensor."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Storage, ...]
    passes: bool
    workspace: Size


@dataclass(slots=True)
class _Gradient:
    size: int
    fixed: bool
    users: int = 0


@dataclass(slots=True)
class AutogradGraph:
    """Operations in the order in which they run. `part` names the group that new storages are reported under."""

    part: str = ""
    nodes: list[_Node] = field(default_factory=list)

    def tensor(
        self,
        rows: int,
        width: int,
        itemsize: int,
        label: str,
        *,
        needs_grad: bool = True,
        fixed: bool = False,
        outer: bool = False,
    ) -> Value:
        """A tensor that no recorded operation made."""
        storage = Storage(rows * width * itemsize, label, self.part, fixed=fixed, outer=outer)
        return Value(rows, width, itemsize, storage, needs_grad)

    def apply(
        self,
        label: str,
        inputs: Sequence[Value],
        *,
        rows: int | None = None,
        width: int | None = None,
        itemsize: int | None = None,
        saves: Iterable[Value] = (),
        saves_output: bool = False,
        passes: bool = False,
        view: bool = False,
        trains: bool = False,
        workspace: int = 0,
        fixed_workspace: int = 0,
    ) -> Value:
        """One operation with one output, shaped like the first input unless told otherwise.

        saves:     inputs that the derivative reads. passes: its gradient is the output's, as in add and view.
        view:      the output shares the first input's storage. trains: a weight of the operation requires a gradient.
        workspace, fixed_workspace: bytes that the backward pass takes for the operation's own use, per sample and once.
        """
        first = inputs[0]
        rows, width = rows or first.rows, width or first.width
        itemsize = itemsize or first.itemsize
        storage = (
            first.storage
            if view
            else Storage(rows * width * itemsize, label, self.part, fixed=all(value.storage.fixed for value in inputs))
        )
        needs_grad = trains or any(value.needs_grad for value in inputs)
        output = Value(rows, width, itemsize, storage, needs_grad)
        kept = tuple({id(value.storage): value.storage for value in saves}.values())
        if saves_output:
            kept += (storage,)
        self.nodes.append(
            _Node(
                tuple(inputs), (output,), kept if needs_grad else (), passes or view, Size(workspace, fixed_workspace)
            )
        )
        return output

    def hold(self, *values: Value) -> None:
        """Local variables of the code hold these tensors up to here, although nothing reads them any more."""
        self.nodes.append(_Node(values, (), (), True, ZERO))

    def gather(self, label: str, value: Value, index: Value, *, rows: int) -> Value:
        """value[index]: the index is saved; the gradient is scattered into zeros."""
        return self.apply(label, (value,), rows=rows, saves=(index,), workspace=0 if IN_PLACE else value.size)

    def split(self, value: Value, widths: Sequence[int]) -> tuple[Value, ...]:
        """Views of neighbouring columns whose gradients are joined in one new tensor (`split`, `chunk`)."""
        parts = tuple(Value(value.rows, width, value.itemsize, value.storage, value.needs_grad) for width in widths)
        self.nodes.append(_Node((value,), parts, (), False, ZERO))
        return parts

    def saved(self) -> tuple[Storage, ...]:
        """Distinct storages that the backward pass will read, the surroundings' own left out."""
        kept = {id(storage): storage for node in self.nodes for storage in node.saved if not storage.outer}
        return tuple(kept.values())

    def forward_moments(self, *, saves: bool = True) -> list[Size]:
        """Live bytes after each operation of the forward pass: what is saved so far, if anything is, and what is still
        to be read."""
        last = {id(value.storage): step for step, node in enumerate(self.nodes) for value in node.inputs}
        kept = {id(storage) for storage in self.saved()} if saves else set()
        born: set[int] = set()
        live, moments = [0, 0], []
        for step, node in enumerate(self.nodes):
            # What is saved may be no operation's output, as the mask of a dropout.
            for storage in (*(value.storage for value in node.outputs), *node.saved):
                if id(storage) not in born and not storage.outer:
                    born.add(id(storage))
                    live[storage.fixed] += storage.size
            moments.append(Size(live[0], live[1]))
            for storage in {id(value.storage): value.storage for value in (*node.inputs, *node.outputs)}.values():
                if (
                    id(storage) in born
                    and id(storage) not in kept
                    and last.get(id(storage), step) <= step
                    and step < len(self.nodes) - 1
                ):
                    born.discard(id(storage))
                    live[storage.fixed] -= storage.size
        return moments

    def backward_moments(self, output: Value) -> list[Size]:
        """Live bytes during each node of the backward pass, less what is saved when it starts."""
        users: dict[int, int] = {}
        for node in self.nodes:
            for storage in node.saved:
                users[id(storage)] = users.get(id(storage), 0) + 1
        live, moments = [0, 0], []

        def create(value: Value) -> _Gradient:
            live[value.storage.fixed] += value.size
            return _Gradient(value.size, value.storage.fixed)

        def release(gradient: _Gradient) -> None:
            gradient.users -= 1
            if not gradient.users:
                live[gradient.fixed] -= gradient.size

        gradients: dict[int, _Gradient] = {id(output): create(output)}
        gradients[id(output)].users = 1
        for node in reversed(self.nodes):
            incoming = [gradients.pop(id(value)) for value in node.outputs if id(value) in gradients]
            if incoming:
                outgoing: list[tuple[Value, _Gradient]] = []
                for value in node.inputs:
                    if value.needs_grad:
                        gradient = incoming[0] if node.passes else create(value)
                        gradient.users += 1
                        outgoing.append((value, gradient))
                moments.append(Size(live[0], live[1]).plus(node.workspace))
            for storage in node.saved:
                users[id(storage)] -= 1
                if not users[id(storage)] and not storage.outer:
                    live[storage.fixed] -= storage.size
            for gradient in incoming:
                release(gradient)
            if incoming:
                for value, gradient in outgoing:
                    earlier = gradients.get(id(value))
                    if earlier is None:
                        gradients[id(value)] = gradient
                    elif earlier.users == 1 and IN_PLACE:
                        release(gradient)
                    else:
                        total = create(value)
                        total.users = 1
                        moments.append(Size(live[0], live[1]))
                        release(gradient)
                        release(earlier)
                        gradients[id(value)] = total
        return moments


def total(storages: Iterable[Storage]) -> Size:
    """Bytes of distinct storages."""
    per_sample = fixed = 0
    for storage in storages:
        if storage.fixed:
            fixed += storage.size
        else:
            per_sample += storage.size
    return Size(per_sample, fixed)


def frontier(moments: Iterable[Size]) -> tuple[Size, ...]:
    """The moments of which one is the largest, whatever the micro batch size."""
    best: list[Size] = []
    for moment in sorted(set(moments), reverse=True):
        if not best or moment.fixed > best[-1].fixed:
            best.append(moment)
    return tuple(best)
