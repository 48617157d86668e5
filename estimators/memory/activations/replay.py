"""Replay of a recorded program as an autograd graph for one workload, with its adapters, precision and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...models.model_shape import Attention, build_attention
from ...models.program import ROWS, ZERO, Instruction, LayerVariant, Program, Size, value_at
from . import kernels
from .kernels import Kernel
from .ops import Ops
from .saved_tensors import AutogradGraph, Node, Storage, Value


@dataclass(slots=True, eq=False)
class Replay:
    ops: Ops
    program: Program
    seq_len: int
    window: int | None
    choose_kernel: Callable[[Attention], tuple[Kernel, Value | None]]
    """Returns the kernel of an attention, and the mask that it needs or None."""
    embedding_needs_grad: bool = False
    """Whether the output of the model's input embedding requires a gradient although the embedding does not train."""
    checkpointing: bool = False
    """Whether the parts that the module checkpoints are recomputed."""
    shared: Mapping[str, Value] = field(default_factory=dict)
    """Weights read by several operations; their gradients wait for the last one."""
    numels: Mapping[str, int] = field(default_factory=dict)
    """Elements of the other weights, for the program of a module."""
    frozen: frozenset[str] = frozenset()
    """Weights that do not train in a model with trained ones."""
    zero3: bool = False
    outer: list[Ops] = field(default_factory=list, init=False)
    values: dict[int, Value] = field(default_factory=dict, init=False)
    storages: dict[int, Storage] = field(default_factory=dict, init=False)
    loop_bytes: dict[Storage, int] = field(default_factory=dict, init=False)
    """Bytes of all iterations of a loop, by the storage of one: every iteration saves its own."""

    def run(self, value: Value | None) -> Value:
        """Return the output for this input; None if the program begins with the model's own inputs."""
        if value is not None:
            self._set(self.program.input, value)
        if self.shared:
            shared = tuple(self.shared.values())
            self.ops.graph.nodes.append(Node((), shared, weights=tuple(value.width for value in shared)))
        for instruction in self.program.instructions:
            inputs = tuple(self.values.get(number) or self._external_value(number) for number in instruction.inputs)
            nodes = len(self.ops.graph.nodes)
            if instruction.kind == "hold":
                self.ops.graph.keep_alive(*inputs)
            elif instruction.kind == "checkpoint":
                self._begin_checkpoint()
            elif instruction.kind == "checkpointed":
                self._end_checkpoint(inputs)
            elif instruction.kind == "linear":
                (number,) = instruction.outputs
                width = self.program.slots[number].width
                self._set(number, self.ops.linear(instruction.name, inputs[0], width=width))
                self._attach_weights(*instruction.reads_weights, f"{instruction.name}.bias")
            elif self.zero3 and instruction.name == ROWS:
                self._set(instruction.outputs[0], self._row_view(inputs[0]))
            elif instruction.kind == "attention":
                self._set(instruction.outputs[0], self._attend(instruction, inputs))
            elif instruction.kind == "cast" and inputs and self._itemsize(instruction.outputs[0]) == inputs[0].itemsize:
                self._set(instruction.outputs[0], inputs[0])
            else:
                self._apply(instruction, inputs)
                self._attach_weights(*instruction.weights)
            self._repeat(nodes, value_at(instruction.repeats, self.seq_len))
        # A stack between the layers of another one begins with an output of that one's layers.
        return self.values.get(self.program.output) or self._external_value(self.program.output)

    def _row_view(self, value: Value) -> Value:
        """Return a view instead of the copy, which is temporary in both passes."""
        rows = value._replace()
        copy = Size(0, value.size) if value.storage.fixed else Size(value.size, 0)
        node = Node((value,), (rows,), reuses_gradient=True, workspace=copy, forward_workspace=copy.per_sample)
        self.ops.graph.nodes.append(node)
        return rows

    def _begin_checkpoint(self) -> None:
        if self.checkpointing:
            self.outer.append(self.ops)
            self.ops = self.ops._replace(graph=AutogradGraph(self.ops.graph.part))

    def _end_checkpoint(self, results: tuple[Value, ...]) -> None:
        if self.checkpointing:
            inner, self.ops = self.ops.graph, self.outer.pop()
            self.ops.graph.checkpoint(inner, results)

    def _attach_weights(self, *names: str) -> None:
        """Assign weights to the last operation, whose derivative computes their gradients."""
        shared = [self.shared[name] for name in names if name in self.shared]
        unshared = tuple(self.numels[name] for name in names if name in self.numels)
        if shared or unshared:
            nodes = self.ops.graph.nodes
            nodes[-1] = nodes[-1]._replace(inputs=(*nodes[-1].inputs, *shared), weights=unshared)

    def _external_value(self, number: int) -> Value:
        """Return a value that no instruction has made: it is external, or from a loop's previous iteration."""
        return self._new(number, needs_grad=self.program.slots[number].needs_grad)

    def _repeat(self, first: int, times: int) -> None:
        """Set the number of iterations of one instruction's nodes, and the bytes that all iterations save."""
        nodes = self.ops.graph.nodes
        for place in range(first, len(nodes)):
            for storage in nodes[place].saved:
                storage.size = self.loop_bytes.get(storage, storage.size)
            if times > 1:
                nodes[place] = nodes[place]._replace(times=times)

    def _set(self, number: int, value: Value) -> None:
        """Assign a value to a slot; later views of the slot share its memory. Storages that the training loop holds are
        counted separately."""
        self.values[number] = value
        self.storages[self.program.slots[number].storage] = value.storage
        # The training loop's variable holds these; `loss.output_terms` counts them.
        value.storage.outer |= number in self.program.output_slots

    def _itemsize(self, number: int) -> int:
        return self.program.slots[number].itemsize or self.ops.itemsize

    def _new(self, number: int, *, needs_grad: bool, label: str = "input") -> Value:
        """Return a new value of a slot, in the memory that the slot shares or in new memory."""
        slot, itemsize = self.program.slots[number], self._itemsize(number)
        size = slot.elements.at(self.seq_len)
        elements = size.per_sample or size.fixed
        storage = self.storages.get(slot.storage)
        if storage is None:
            is_fixed = not size.per_sample
            storage = Storage(elements * itemsize, label, self.ops.graph.part, is_fixed, outer=slot.source != 0)
        if (times := value_at(slot.repeats, self.seq_len)) > 1:
            self.loop_bytes[storage] = max(self.loop_bytes.get(storage, storage.size), elements * itemsize * times)
        value = Value(max(1, elements // slot.width), slot.width, itemsize, storage, needs_grad)
        self._set(number, value)
        return value

    def _apply(self, instruction: Instruction, inputs: tuple[Value, ...]) -> None:
        """Add an operation of torch, with its recorded derivative."""
        ops, slots = self.ops, self.program.slots
        trains = ops.trains and not self.frozen.issuperset(instruction.weights)
        folded = [self._folded(name) for name in instruction.weights]
        # `enable_input_require_grads` makes the embedding's output a leaf that requires a gradient.
        is_leaf = self.embedding_needs_grad and self.program.embedding in instruction.outputs
        mask = sum(1 << place for place, value in enumerate(inputs) if value.needs_grad)
        mask |= (trains or any(folded) or is_leaf) << len(inputs)
        derivative = instruction.derivative(mask)
        outputs = [
            self._new(number, needs_grad=derivative is not None and slots[number].needs_grad, label=instruction.name)
            for number in instruction.outputs
        ]
        saved: list[Storage] = []
        if derivative is not None:
            saved += [inputs[place].storage for place in derivative.saves_inputs]
            saved += [outputs[place].storage for place in derivative.saves_outputs]
            saved += [weight.storage for place in derivative.saves_weights if (weight := folded[place])]
            new = derivative.saves_new.at(self.seq_len)
            if any(new):
                times = value_at(instruction.repeats, self.seq_len)
                saved.append(Storage(max(new) * times, instruction.name, ops.graph.part, not new.per_sample))
        workspace = derivative.workspace.at(self.seq_len) if derivative else ZERO
        if instruction.name == "_softmax":  # CUDA's derivative allocates memory that the meta device's does not
            softmax = kernels.softmax_workspace(outputs[0], outputs[0].itemsize)
            workspace = workspace.plus(Size(softmax, 0))
        if is_leaf:
            saved.append(outputs[0].storage)  # a leaf that requires a gradient lives as long as the graph
        ops.graph.nodes.append(
            Node(
                (*inputs, *(weight for weight in folded if weight)),
                tuple(outputs),
                tuple(dict.fromkeys(saved)),
                reuses_gradient=derivative is not None and derivative.reuses_gradient,
                workspace=workspace,
                product=instruction.is_product,
                trains=trains,
            )
        )

    def _folded(self, name: str) -> Value | None:
        """Return the tensor that peft substitutes for a weight; None if it leaves the weight alone."""
        module = name.removesuffix(".weight")
        return self.ops.folded(module) if module in self.ops.weights and not self.ops.trains else None

    def _attend(self, instruction: Instruction, inputs: tuple[Value, ...]) -> Value:
        """Return attention by the workload's kernel, over views of (tokens, heads x width)."""
        views = []
        attention = build_attention(instruction.details, self.window)
        tokens, keys = attention.tokens or self.seq_len, attention.keys or self.seq_len
        for value, rows in zip(inputs, (tokens, keys, keys, tokens), strict=False):
            views.append(Value(rows, value.rows * value.width // rows, value.itemsize, value.storage, value.needs_grad))
            self.ops.graph.nodes.append(Node((value,), (views[-1],), reuses_gradient=True))
        query, key, value, *biases = views
        kernel, mask = self.choose_kernel(attention)
        # A mask never needs a gradient; relative positions (T5's bias table) do.
        bias = next((each for each in biases if each.needs_grad), None)
        if bias is not None:  # trained relative positions, with the mask added already
            attention, mask = attention._replace(causal=False), None
        details, states = dict(instruction.details), (query, key, value)
        dropout = bool(details["dropout"])
        variant = LayerVariant(softmax_fp32=self.program.softmax_fp32)
        attended = kernels.attend(self.ops, kernel, variant, attention, states, mask=mask, bias=bias, dropout=dropout)
        if kernel == "flash" and details["head_major"]:
            return self.ops.new("attention output", (attended,))  # flash keeps the queries' layout
        return attended
