"""The operations of a forward pass, and the tensors that autograd saves of them for the backward pass.

The graph records operations on tensors that have a size and no values, with torch's own rules: an operation saves what
its derivative reads (`mul` its factors, `tanh` its result, a linear layer its input when the weight trains), nothing
when no input requires a gradient, and a storage that several operations save is kept once. `saved` is then the sum
over distinct storages. What the passes hold at each moment is in `passes`.

Source: torch 2.13, `tools/autograd/derivatives.yaml`.

Sizes are bytes for one sample, or, with `fixed`, bytes for the whole batch whatever its size (rotary tables, masks).
"""

from __future__ import annotations

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
        return tuple(dict.fromkeys(storage for node in self.nodes for storage in node.saved if self.counts(storage)))

    def counts(self, storage: Storage) -> bool:
        """Whether no other term counts the storage."""
        return not storage.outer and storage not in self.kept

    def held(self) -> tuple[Storage, ...]:
        """The saved storages that non-reentrant checkpointing keeps all the same."""
        return tuple(dict.fromkeys(storage for node in self.nodes for storage in node.held if not storage.outer))


def total(storages: Iterable[Storage]) -> Size:
    sums = [0, 0]
    for storage in storages:
        sums[storage.fixed] += storage.size
    return Size(*sums)
