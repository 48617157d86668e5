"""The tensors that an autograd graph saves for its backward pass, and what that pass needs besides.

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

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...models.program import ZERO, Size

IN_PLACE = True
"""torch adds a gradient to an earlier one in place if nobody else holds it, and scatters an index's gradient into fresh
zeros. Under a TorchDispatchMode, as in a dry run, both take one tensor more."""


@dataclass(slots=True, eq=False)
class Storage:
    """The memory behind one or more tensors, as torch's UntypedStorage: views share it, and it is saved once."""

    size: int
    label: str
    part: str
    """The group that it is reported under."""
    fixed: bool = False
    """Its size does not depend on the micro batch size."""
    outer: bool = False
    """It is accounted for outside the graph."""


class Value(NamedTuple):
    """A tensor of rows x width elements (per sample, unless its storage is fixed)."""

    rows: int
    width: int
    itemsize: int
    storage: Storage
    needs_grad: bool

    @property
    def size(self) -> int:
        return self.rows * self.width * self.itemsize


class Node(NamedTuple):
    """One operation."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Storage, ...] = ()
    passes: bool = False
    """The output's gradient is passed on (add, view) instead of a new tensor."""
    workspace: Size = ZERO
    forward_workspace: int = 0
    overwrites: bool = False
    """The inputs' gradients overwrite what was saved."""
    product: bool = False
    """A matrix product or an attention kernel; its time does not depend on the bytes it moves."""
    moves: tuple[int, int] = (0, 0)
    """Further bytes per sample that its kernels move, forward and backward."""
    trains: bool = False
    """A weight of it requires a gradient."""
    held: tuple[Storage, ...] = ()
    """Saved storages that hooks of saved tensors do not see, so that checkpointing keeps them."""
    again: AutogradGraph | None = None
    """What checkpointing runs again; it saves the inputs."""
    weights: tuple[int, ...] = ()
    """Elements of the weights whose gradients its backward pass makes, in the program of a module."""
    times: int = 1
    """Iterations of a loop that it stands for; the sizes of values and workspaces are those of one."""


@dataclass(slots=True, eq=False)
class AutogradGraph:
    """Operations in the order of execution."""

    part: str = ""
    """The group of new storages."""
    nodes: list[Node] = field(default_factory=list)
    kept: frozenset[Storage] = frozenset()
    """The tensors that a checkpointed part reads from outside, which the graph around it keeps."""

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
        storage = Storage(rows * width * itemsize, label, self.part, fixed, outer)
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
        forward_workspace: int = 0,
        overwrites: bool = False,
        product: bool = False,
        moves: tuple[int, int] = (0, 0),
        hidden: bool = False,
    ) -> Value:
        """One operation with one output, shaped like the first input unless other sizes are given.

        saves: inputs that the derivative reads. view: the output shares the first input's storage. hidden: the
        derivative keeps what it saves by itself instead of in `save_for_backward`. workspace, fixed_workspace: bytes
        of the backward pass per sample and once; forward_workspace: of the forward pass per sample. moves: bytes per
        sample besides inputs, outputs and workspace. The others are those of `Node`.
        """
        first = inputs[0]
        rows, width, itemsize = rows or first.rows, width or first.width, itemsize or first.itemsize
        storage = first.storage
        if not view:
            fixed = all(value.storage.fixed for value in inputs)
            storage = Storage(rows * width * itemsize, label, self.part, fixed)
        output = Value(rows, width, itemsize, storage, trains or any(value.needs_grad for value in inputs))
        saved: tuple[Storage, ...] = ()
        if output.needs_grad:
            saved = tuple(dict.fromkeys([value.storage for value in saves])) + ((storage,) if saves_output else ())
        self.nodes.append(
            Node(
                tuple(inputs),
                (output,),
                saved,
                passes or view,
                Size(workspace, fixed_workspace),
                forward_workspace,
                overwrites,
                product,
                moves,
                trains,
                saved if hidden else (),
            )
        )
        return output

    def checkpoint(self, inner: AutogradGraph, results: Sequence[Value]) -> None:
        """A checkpointed part of the forward pass. It keeps what it reads from outside."""
        made = {id(value) for node in inner.nodes for value in node.outputs}
        read = (value for node in inner.nodes if node.outputs for value in node.inputs)
        given = {id(value): value for value in read if id(value) not in made}
        kept = tuple(dict.fromkeys(value.storage for value in given.values()))
        inner.kept = frozenset(kept)
        self.nodes.append(Node(tuple(given.values()), tuple(results), kept, again=inner))

    def unrolled(self) -> Iterator[Node]:
        """All operations, those that run again in place of their checkpoints."""
        for node in self.nodes:
            yield from node.again.unrolled() if node.again else (node,)

    def hold(self, *values: Value) -> None:
        """Local variables hold these tensors up to here, although nothing reads them any more."""
        self.nodes.append(Node(values, (), passes=True))

    def gather(self, label: str, value: Value, index: Value, *, rows: int) -> Value:
        """value[index]: the index is saved; the gradient is scattered into zeros."""
        return self.apply(label, (value,), rows=rows, saves=(index,), workspace=0 if IN_PLACE else value.size)

    def split(self, value: Value, widths: Sequence[int]) -> tuple[Value, ...]:
        """Views of neighbouring columns; their gradients are joined in one new tensor (`split`, `chunk`)."""
        parts = tuple(Value(value.rows, width, value.itemsize, value.storage, value.needs_grad) for width in widths)
        self.nodes.append(Node((value,), parts))
        return parts

    def saved(self) -> tuple[Storage, ...]:
        """Distinct storages that the backward pass will read."""
        return tuple(dict.fromkeys(storage for node in self.nodes for storage in node.saved if self._counts(storage)))

    def _counts(self, storage: Storage) -> bool:
        return not storage.outer and storage not in self.kept

    def held(self) -> tuple[Storage, ...]:
        """The saved storages that non-reentrant checkpointing keeps all the same."""
        return tuple(dict.fromkeys(storage for node in self.nodes for storage in node.held if not storage.outer))

    def forward_moments(self, *, saves: bool = True) -> list[Size]:
        """Live bytes after each operation of the forward pass: saved so far, and still to be read."""
        return [moment for _, moment in self.forward_marks(saves=saves)]

    def forward_marks(self, *, saves: bool = True, threshold: int = 0) -> list[tuple[int, Size]]:
        """The same, each with the number of operations that have begun and that have weights of more than `threshold`
        elements; a checkpointed part is one of them at its end."""
        last = {value.storage: step for step, node in enumerate(self.nodes) for value in node.inputs}
        kept = set(self.saved()) if saves else set()
        alive: set[Storage] = set()
        live = _LiveBytes()
        for step, node in enumerate(self.nodes):
            # What is saved may be no operation's output, as the mask of a dropout.
            for storage in [*[value.storage for value in node.outputs], *node.saved]:
                if storage not in alive and self._counts(storage):
                    alive.add(storage)
                    live.add(storage.size, storage.fixed)
            live.made += any(numel > threshold for numel in node.weights)
            live.mark(Size(node.forward_workspace, 0))
            if node.again:
                live.mark_all(node.again.forward_moments(saves=False))
                live.made += 1
            if step == len(self.nodes) - 1:
                break
            for value in (*node.inputs, *node.outputs):
                storage = value.storage
                if storage in alive and storage not in kept and last.get(storage, step) <= step:
                    alive.discard(storage)
                    live.add(-storage.size, storage.fixed)
        return live.marks

    def backward_moments(self, output: Value) -> BackwardMoments:
        """Live bytes during each node of the backward pass, less what is saved at its start."""
        live = self._backward(output, WeightsInPass())
        return BackwardMoments([moment for _, moment in live.marks], live.products, live.products_made)

    def backward_marks(self, output: Value, weights: WeightsInPass) -> list[tuple[int, Size]]:
        """The same with weights, each after the elements whose gradients have been made; 0 before the first."""
        return self._backward(output, weights).marks

    def _backward(self, output: Value, weights: WeightsInPass) -> _LiveBytes:
        live = _LiveBytes(weights)
        self._run_backward(live, {id(output): live.gradient(output, users=1)})
        return live

    def _run_backward(self, live: _LiveBytes, gradients: dict[int, _Gradient]) -> None:
        users = Counter(storage for node in self.nodes for storage in node.saved)
        for node in reversed(self.nodes):
            if node.again:
                live.mark_all(node.again.forward_moments())
                again = total(node.again.saved())
                live.add(again.per_sample, False)
                live.add(again.fixed, True)
                node.again._run_backward(live, gradients)
                self._release(node, users, live)
                continue
            incoming = [gradients.pop(id(value)) for value in node.outputs if id(value) in gradients]
            outgoing: list[tuple[Value, _Gradient]] = []
            if node.overwrites:
                self._release(node, users, live)
            live.make(node.weights)
            if incoming:
                for value in node.inputs:
                    if value.needs_grad:
                        gradient = incoming[0] if node.passes else live.gradient(value)
                        gradient.users += 1
                        outgoing.append((value, gradient))
                live.mark(node.workspace)
            weighs = bool(incoming) and node.trains and node.product
            if weighs:
                live.products.append(live.marks[-1][1])
            if not node.overwrites:
                self._release(node, users, live)
            for gradient in incoming:
                live.release(gradient)
            if weighs:
                live.products_made.append(Size(*live.live))
            live.pass_by(node.weights)
            for value, gradient in outgoing:
                earlier = gradients.get(id(value))
                gradients[id(value)] = gradient if earlier is None else live.sum(value, earlier, gradient)

    def _release(self, node: Node, users: Counter[Storage], live: _LiveBytes) -> None:
        """Free what the node saved, unless another one saved it too."""
        for storage in node.saved:
            users[storage] -= 1
            if not users[storage] and self._counts(storage):
                live.add(-storage.size, storage.fixed)


class BackwardMoments(NamedTuple):
    """Live bytes of a backward pass."""

    all: Sequence[Size]
    products: Sequence[Size]
    """While the gradient of a matrix of weights is made."""
    products_made: Sequence[Size]
    """When it is complete: what its product read is gone."""


class WeightsInPass(NamedTuple):
    """What the backward pass of a module makes and releases in addition to activations."""

    width: int = 0
    """Bytes per element of a gradient while it is made."""
    stay: bool = False
    """Gradients stay until the step."""
    released: int = 0
    """Bytes per element of gathered weights, which are released when their gradients are made."""
    threshold: int = 0
    """Tensors with at most that many elements are not gathered."""
    slack: int = 0
    """Elements that are not gathered when the backward pass begins: the prefetch puts them in the place of those that
    are released."""
    bucket: int = 0
    """Elements whose gradients are made before the first reduction."""


@dataclass(slots=True, eq=False)
class _Gradient:
    size: int
    fixed: bool
    users: int


class _LiveBytes:
    """Live bytes during a pass, and their value at each moment."""

    def __init__(self, weights: WeightsInPass | None = None) -> None:
        self.live, self.marks = [0, 0], list[tuple[int, Size]]()
        self.products, self.products_made = list[Size](), list[Size]()
        self.weights = weights or WeightsInPass()
        self.making = self.made = self.passed = 0

    def add(self, size: int, fixed: bool) -> None:
        self.live[fixed] += size

    def mark(self, workspace: Size = ZERO) -> None:
        per_sample, fixed = self.live
        weights = self.weights
        fixed += weights.width * (self.making + self.made * weights.stay)
        fixed += weights.released * min(0, weights.slack - self.passed)
        self.marks.append((self.made, Size(per_sample + workspace.per_sample, fixed + workspace.fixed)))

    def make(self, weights: tuple[int, ...]) -> None:
        self.making = sum(weights)

    def pass_by(self, weights: tuple[int, ...]) -> None:
        """The gradients of weights are complete, and go where gradients wait."""
        if not weights:
            return
        making, self.making = self.making, 0
        self.made += making
        self.mark(ZERO if self.weights.stay else Size(0, self.weights.width * making))
        self.passed += sum(numel for numel in weights if numel > self.weights.threshold)

    def mark_all(self, moments: Iterable[Size]) -> None:
        for moment in moments:
            self.mark(moment)

    def gradient(self, value: Value, users: int = 0) -> _Gradient:
        size, fixed = value.size, value.storage.fixed
        self.add(size, fixed)
        return _Gradient(size, fixed, users)

    def release(self, gradient: _Gradient) -> None:
        gradient.users -= 1
        if not gradient.users:
            self.add(-gradient.size, gradient.fixed)

    def sum(self, value: Value, earlier: _Gradient, later: _Gradient) -> _Gradient:
        """Two gradients of one tensor are added, in place if nobody else holds the earlier one."""
        if earlier.users == 1 and IN_PLACE:
            self.release(later)
            return earlier
        both = self.gradient(value, users=1)
        self.mark()
        self.release(later)
        self.release(earlier)
        return both


def total(storages: Iterable[Storage]) -> Size:
    sums = [0, 0]
    for storage in storages:
        sums[storage.fixed] += storage.size
    return Size(*sums)


def frontier(moments: Iterable[Size]) -> tuple[Size, ...]:
    """The moments that can be the largest for some micro batch size."""
    best: list[Size] = []
    for moment in sorted(set(moments), reverse=True):
        if not best or moment.fixed > best[-1].fixed:
            best.append(moment)
    return tuple(best)
