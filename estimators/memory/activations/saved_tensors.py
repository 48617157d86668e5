"""The operations of a forward pass, and the tensors that autograd saves for the backward pass.

The graph records operations on tensors that have a size and no values, with torch's own rules: an operation saves the
tensors that its derivative reads (`mul` its factors, `tanh` its result, a linear layer its input when the weight
trains), none if no input requires a gradient, and a storage that several operations save is kept once. `saved` is the
sum over distinct storages. `passes` computes the live memory at each moment of the passes.

Source: torch 2.13, `tools/autograd/derivatives.yaml`.

Sizes are bytes for one sample or, if `fixed`, for the whole batch whatever its size (rotary tables, masks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...models.program import ZERO, Size

IN_PLACE = True
"""Whether gradients are added in place. torch does so if the earlier one has no other reference, and scatters an
index's gradient into fresh zeros. Under a TorchDispatchMode, as in a dry run, both need one more tensor."""


@dataclass(slots=True, eq=False)
class Storage:
    """The memory behind one or more tensors, like torch's UntypedStorage: views share it, and it is saved once."""

    size: int
    label: str
    part: str
    """The group under which it is reported."""
    fixed: bool = False
    """Whether the size is independent of the micro batch size."""
    outer: bool = False
    """Whether it is counted outside the graph."""


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
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Storage, ...] = ()
    reuses_gradient: bool = False
    """Whether the output's gradient is passed on (add, view) instead of a new tensor."""
    workspace: Size = ZERO
    forward_workspace: int = 0
    overwrites: bool = False
    """Whether the inputs' gradients overwrite the saved tensors."""
    product: bool = False
    """Whether it is a matrix product or an attention kernel, whose time does not depend on the bytes it moves."""
    moves: tuple[int, int] = (0, 0)
    """Additional bytes per sample that its kernels move, forward and backward."""
    trains: bool = False
    """Whether one of its weights requires a gradient."""
    unhooked: tuple[Storage, ...] = ()
    """Saved storages that saved-tensor hooks do not see, so that checkpointing keeps them."""
    recomputed: AutogradGraph | None = None
    """The graph that checkpointing recomputes, or None; `saved` then holds its inputs."""
    weights: tuple[int, ...] = ()
    """Elements of the weights with gradients computed in its backward pass, in the program of a module."""
    times: int = 1
    """Number of loop iterations that it represents; values and workspaces have the sizes of one."""


@dataclass(slots=True, eq=False)
class AutogradGraph:
    """Operations in execution order."""

    part: str = ""
    """The group (`Storage.part`) of new storages."""
    nodes: list[Node] = field(default_factory=list)
    external: frozenset[Storage] = frozenset()
    """Storages that a checkpointed part reads from outside; the graph around it keeps them."""

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
        reuses_gradient: bool = False,
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
        """Add an operation with one output, of the first input's shape unless other sizes are given. Return the output.

        saves: inputs that the derivative reads. view: whether the output shares the first input's storage. hidden:
        whether the derivative keeps its saved tensors as attributes instead of in `save_for_backward`. workspace,
        fixed_workspace: bytes of the backward pass per sample and in total. forward_workspace: bytes of the forward
        pass per sample. moves: bytes per sample in addition to inputs, outputs and workspace. The others are those of
        `Node`.
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
            # Storages, not tensors: two views of one memory are kept once, as autograd keeps them.
            saved = tuple(dict.fromkeys([value.storage for value in saves])) + ((storage,) if saves_output else ())
        self.nodes.append(
            Node(
                tuple(inputs),
                (output,),
                saved,
                reuses_gradient or view,
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
        """Add a checkpointed part of the forward pass. It keeps the tensors that it reads from outside."""
        made = {id(value) for node in inner.nodes for value in node.outputs}
        read = (value for node in inner.nodes if node.outputs for value in node.inputs)
        external_values = {id(value): value for value in read if id(value) not in made}
        storages = tuple(dict.fromkeys(value.storage for value in external_values.values()))
        # The graph around the part keeps what the part reads, so the part must not count it again.
        inner.external = frozenset(storages)
        self.nodes.append(Node(tuple(external_values.values()), tuple(results), storages, recomputed=inner))

    def unrolled(self) -> Iterator[Node]:
        """Yield all operations, with the recomputed ones in place of their checkpoints."""
        for node in self.nodes:
            yield from node.recomputed.unrolled() if node.recomputed else (node,)

    def keep_alive(self, *values: Value) -> None:
        """Mark that local variables hold these tensors up to here, although no operation reads them any more."""
        self.nodes.append(Node(values, (), reuses_gradient=True))

    def gather(self, label: str, value: Value, index: Value, *, rows: int) -> Value:
        """Return value[index]. The index is saved; the gradient is scattered into zeros."""
        return self.apply(label, (value,), rows=rows, saves=(index,), workspace=0 if IN_PLACE else value.size)

    def split(self, value: Value, widths: Sequence[int]) -> tuple[Value, ...]:
        """Return views of adjacent columns (`split`, `chunk`). Their gradients are joined in one new tensor."""
        parts = tuple(Value(value.rows, width, value.itemsize, value.storage, value.needs_grad) for width in widths)
        # One node for all parts: their gradients are written into one new tensor.
        self.nodes.append(Node((value,), parts))
        return parts

    def saved(self) -> tuple[Storage, ...]:
        """Return the distinct storages that the backward pass will read."""
        return tuple(dict.fromkeys(storage for node in self.nodes for storage in node.saved if self.owns(storage)))

    def owns(self, storage: Storage) -> bool:
        """Return whether no other term counts the storage."""
        return not storage.outer and storage not in self.external

    def unhooked(self) -> tuple[Storage, ...]:
        """Return the saved storages that non-reentrant checkpointing keeps nevertheless."""
        return tuple(dict.fromkeys(storage for node in self.nodes for storage in node.unhooked if not storage.outer))


def total(storages: Iterable[Storage]) -> Size:
    sums = [0, 0]
    for storage in storages:
        sums[storage.fixed] += storage.size
    return Size(*sums)
