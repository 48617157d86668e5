"""Live bytes of the passes of recorded operations at each moment, and the bytes that they move.

The backward pass is replayed node by node, newest first, as in torch's engine: gradients of the inputs are allocated,
then the node's saved tensors and the gradient of its output are freed. Gradients of one tensor are added.

Source: torch 2.13, `torch/csrc/autograd/engine.cpp` and `input_buffer.cpp` (when saved tensors are released, when
gradients are added in place).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...models.program import ZERO, Size
from . import saved_tensors
from .saved_tensors import AutogradGraph, Node, Storage, Value, total


class WeightsInPass(NamedTuple):
    """Gradients that the backward pass of a module makes, and weights that it releases, in addition to activations."""

    width: int = 0
    """Bytes per element of a gradient while it is made."""
    keeps_gradients: bool = False
    """Whether gradients stay until the step."""
    released: int = 0
    """Bytes per element of gathered weights, which are released when their gradients have been made."""
    threshold: int = 0
    """Tensors with at most this many elements are not gathered."""
    slack: int = 0
    """Elements not gathered when the backward pass begins. The prefetch gathers them in place of released ones."""
    bucket: int = 0
    """Elements whose gradients are made before the first reduction."""


NO_WEIGHTS = WeightsInPass()

Moves = Mapping[str, Size]
"""Bytes that the operations of a pass move, by the label of their result."""


@dataclass(slots=True, eq=False)
class _Gradient:
    size: int
    fixed: bool
    users: int


class LiveBytes:
    """Live bytes during a pass, and their value at each moment."""

    def __init__(self, weights: WeightsInPass = NO_WEIGHTS) -> None:
        self.live = [0, 0]  # per sample, and independent of the batch
        self.marks = list[tuple[int, Size]]()
        # While a weight matrix's gradient is made, and when it is complete and its product's operands are freed.
        self.products = list[Size]()
        self.products_made = list[Size]()
        self.weights = weights
        self.making = self.made = self.passed = 0

    @property
    def moments(self) -> list[Size]:
        return [moment for _, moment in self.marks]

    def add(self, size: int, fixed: bool) -> None:
        self.live[fixed] += size

    def mark(self, workspace: Size = ZERO) -> None:
        per_sample, fixed = self.live
        weights = self.weights
        fixed += weights.width * (self.making + self.made * weights.keeps_gradients)
        # Weights are released only after the slack that the prefetch refills is used up.
        fixed += weights.released * min(0, weights.slack - self.passed)
        self.marks.append((self.made, Size(per_sample + workspace.per_sample, fixed + workspace.fixed)))

    def begin_gradients(self, weights: tuple[int, ...]) -> None:
        self.making = sum(weights)

    def finish_gradients(self, weights: tuple[int, ...]) -> None:
        """Record that the gradients of weights are complete and move to where gradients wait."""
        if not weights:
            return
        making, self.making = self.making, 0
        self.made += making
        self.mark(ZERO if self.weights.keeps_gradients else Size(0, self.weights.width * making))
        self.passed += sum(numel for numel in weights if numel > self.weights.threshold)

    def mark_all(self, inner: LiveBytes) -> None:
        """Record the moments of a part that runs meanwhile."""
        for moment in inner.moments:
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
        """Return the sum of two gradients of one tensor, in place if the earlier one has no other user."""
        # torch accumulates in place only into a buffer that nothing else refers to (input_buffer.cpp `accumulate`).
        if earlier.users == 1 and saved_tensors.IN_PLACE:
            self.release(later)
            return earlier
        both = self.gradient(value, users=1)
        self.mark()
        self.release(later)
        self.release(earlier)
        return both


def forward_pass(graph: AutogradGraph, *, saves: bool = True, threshold: int = 0) -> LiveBytes:
    """Return the live bytes after each operation of the forward pass: saved tensors, and those still to be read.

    saves: whether a backward pass follows. Each mark has the number of operations begun that have weights of more than
    `threshold` elements; a checkpointed part counts as one at its end.
    """
    last = {value.storage: step for step, node in enumerate(graph.nodes) for value in node.inputs}
    kept = set(graph.saved()) if saves else set()
    alive: set[Storage] = set()
    live = LiveBytes()
    for step, node in enumerate(graph.nodes):
        # A saved storage may not be any operation's output, such as the mask of a dropout.
        for storage in [*[value.storage for value in node.outputs], *node.saved]:
            if storage not in alive and graph.owns(storage):
                alive.add(storage)
                live.add(storage.size, storage.fixed)
        live.made += any(numel > threshold for numel in node.weights)
        live.mark(Size(node.forward_workspace, 0))
        if node.recomputed:
            live.mark_all(forward_pass(node.recomputed, saves=False))
            live.made += 1
        if step == len(graph.nodes) - 1:
            break
        for value in (*node.inputs, *node.outputs):
            storage = value.storage
            if storage in alive and storage not in kept and last.get(storage, step) <= step:
                alive.discard(storage)
                live.add(-storage.size, storage.fixed)
    return live


def backward_pass(graph: AutogradGraph, output: Value, weights: WeightsInPass = NO_WEIGHTS) -> LiveBytes:
    """Return the live bytes during each node of the backward pass, less the saved bytes at its start. Each mark has the
    elements of `weights` whose gradients have been made."""
    live = LiveBytes(weights)
    _run_backward(graph, live, {id(output): live.gradient(output, users=1)})
    return live


def _run_backward(graph: AutogradGraph, live: LiveBytes, gradients: dict[int, _Gradient]) -> None:
    users = Counter(storage for node in graph.nodes for storage in node.saved)
    for node in reversed(graph.nodes):
        if node.recomputed:
            live.mark_all(forward_pass(node.recomputed))
            recomputed_size = total(node.recomputed.saved())
            live.add(recomputed_size.per_sample, False)
            live.add(recomputed_size.fixed, True)
            _run_backward(node.recomputed, live, gradients)
            _release(graph, node, users, live)
            continue
        incoming = [gradients.pop(id(value)) for value in node.outputs if id(value) in gradients]
        outgoing: list[tuple[Value, _Gradient]] = []
        if node.overwrites:
            _release(graph, node, users, live)
        live.begin_gradients(node.weights)
        if incoming:
            for value in node.inputs:
                if value.needs_grad:
                    gradient = incoming[0] if node.reuses_gradient else live.gradient(value)
                    gradient.users += 1
                    outgoing.append((value, gradient))
            live.mark(node.workspace)
        weighs = bool(incoming) and node.trains and node.product
        if weighs:
            live.products.append(live.marks[-1][1])
        if not node.overwrites:
            _release(graph, node, users, live)
        for gradient in incoming:
            live.release(gradient)
        if weighs:
            live.products_made.append(Size(*live.live))
        live.finish_gradients(node.weights)
        for value, gradient in outgoing:
            earlier = gradients.get(id(value))
            gradients[id(value)] = gradient if earlier is None else live.sum(value, earlier, gradient)


def _release(graph: AutogradGraph, node: Node, users: Counter[Storage], live: LiveBytes) -> None:
    """Free the node's saved storages, unless another node saved them too."""
    for storage in node.saved:
        users[storage] -= 1
        if not users[storage] and graph.owns(storage):
            live.add(-storage.size, storage.fixed)


def forward_bytes(graph: AutogradGraph) -> Size:
    """Return the bytes that a forward pass moves through GPU memory."""
    return _total(forward_moves(graph))


def forward_moves(graph: AutogradGraph) -> Moves:
    """Return the bytes that a forward pass moves through GPU memory, by the label of an operation's result. Eager
    PyTorch runs one kernel per operation, which reads its inputs and writes its result. Products and attention kernels
    are counted in FLOPs instead; a view moves nothing."""
    by_label, known = dict[str, list[int]](), set[int]()
    for node in graph.unrolled():
        moved = by_label.setdefault(_label(node), [0, 0])  # per sample, and independent of the batch
        moved[0] += node.moves[0]
        input_storages = {id(value.storage) for value in node.inputs}
        made = [value for value in node.outputs if id(value.storage) not in input_storages]
        known |= input_storages | {id(value.storage) for value in made}
        masks = [storage for storage in node.saved if id(storage) not in known and not storage.outer]
        known |= {id(storage) for storage in masks}
        if node.product:
            continue
        for value in (*node.inputs, *made) if made else ():
            moved[value.storage.fixed] += value.size * node.times
        for storage in masks:
            moved[storage.fixed] += storage.size
    return {label: Size(*moved) for label, moved in by_label.items()}


def backward_bytes(graph: AutogradGraph, output: Value) -> Size:
    """Return the bytes that a backward pass moves."""
    return _total(backward_moves(graph, output))


def backward_moves(graph: AutogradGraph, output: Value) -> Moves:
    """Return the bytes that a backward pass moves, by the label of an operation's result. An operation reads its
    output's gradient once per input that needs one, and its saved tensors, and writes the gradients. A workspace is
    written and read. Adding gradients of one tensor takes two reads and a write."""
    by_label, arrived = dict[str, list[int]](), {id(output)}
    for node in reversed([*graph.unrolled()]):
        gradients = [value for value in node.outputs if id(value) in arrived]
        if not gradients:
            continue
        moved = by_label.setdefault(_label(node), [0, 0])
        moved[0] += node.moves[1]
        wanted = [value for value in node.inputs if value.needs_grad]
        if not node.product and (node.saved or not node.reuses_gradient):
            # A weight's gradient is a separate product if it has a workspace; a fused kernel reads once.
            readers = len(wanted) + (node.trains and node.workspace.per_sample > 0)
            for value in gradients:
                moved[value.storage.fixed] += value.size * node.times * (1 if node.overwrites else readers)
            for storage in node.saved:
                moved[storage.fixed] += storage.size
            for value in wanted:
                moved[value.storage.fixed] += value.size * node.times
            moved[0] += 2 * node.workspace.per_sample * node.times
            moved[1] += 2 * node.workspace.fixed * node.times
        for value in wanted:
            if id(value) in arrived:
                moved[value.storage.fixed] += 3 * value.size * node.times
            arrived.add(id(value))
    return {label: Size(*moved) for label, moved in by_label.items()}


def _label(node: Node) -> str:
    return node.outputs[0].storage.label if node.outputs else ""


def _total(moves: Moves) -> Size:
    return Size(sum(size.per_sample for size in moves.values()), sum(size.fixed for size in moves.values()))


def frontier(moments: Iterable[Size]) -> tuple[Size, ...]:
    """Return the moments that can be the largest for some micro batch size."""
    best: list[Size] = []
    # Sorted by bytes per sample: a later moment can win for small batches only if its fixed part is larger.
    for moment in sorted(set(moments), reverse=True):
        if not best or moment.fixed > best[-1].fixed:
            best.append(moment)
    return tuple(best)
