"""A recorded program, run again as an autograd graph for one workload."""

from __future__ import annotations

from dataclasses import dataclass

from ...models.layer_variant import LayerVariant
from ...models.model_shape import Attention
from ...models.program import Derivative, Instruction, Program, Slot
from .kernels import Kernel, attend
from .ops import Ops
from .saved_tensors import Node, Size, Storage, Value

_FUSED_ATTENTION = LayerVariant()


@dataclass(slots=True, eq=False)
class Replay:
    """One run of a program."""

    ops: Ops
    program: Program
    seq_len: int
    attention: Attention
    kernel: Kernel
    mask: Value | None = None
    embedding_needs_grad: bool = False
    """The output of the model's input embedding requires a gradient, although the embedding does not train."""

    def run(self, value: Value | None) -> Value:
        """The output for this input; None where the program begins with the model's own inputs."""
        slots: dict[int, Value] = {}
        storages: dict[int, Storage] = {}
        if value is not None:
            slots[self.program.input] = value
            storages[self.program.slots[self.program.input].storage] = value.storage
        for instruction in self.program.instructions:
            for number in instruction.inputs:
                if number not in slots:
                    slots[number] = self._new(self.program.slots[number], storages, needs_grad=False)
            inputs = tuple(slots[number] for number in instruction.inputs)
            if instruction.kind == "hold":
                self.ops.graph.hold(*inputs)
            elif instruction.kind == "linear":
                slots[instruction.outputs[0]] = self._adopt(
                    instruction.outputs[0], self.ops.linear(instruction.name, inputs[0]), storages
                )
            elif instruction.kind == "attention":
                slots[instruction.outputs[0]] = self._attend(instruction, inputs, storages)
            elif instruction.kind == "cast" and inputs and self._itemsize(instruction.outputs[0]) == inputs[0].itemsize:
                slots[instruction.outputs[0]] = self._adopt(instruction.outputs[0], inputs[0], storages)
            else:
                slots.update(self._apply(instruction, inputs, storages))
        return slots[self.program.output]

    def _itemsize(self, number: int) -> int:
        return self.program.slots[number].itemsize or self.ops.itemsize

    def _adopt(self, number: int, value: Value, storages: dict[int, Storage]) -> Value:
        """The tensor of a slot is one that was made here; later views of the slot share its memory."""
        storages[self.program.slots[number].storage] = value.storage
        return value

    def _new(self, slot: Slot, storages: dict[int, Storage], *, needs_grad: bool, label: str = "input") -> Value:
        per_sample, fixed = slot.elements.of_sample(self.seq_len), slot.elements.of_batch(self.seq_len)
        elements, itemsize = per_sample or fixed, slot.itemsize or self.ops.itemsize
        storage = storages.get(slot.storage)
        if storage is None:
            storage = Storage(elements * itemsize, label, self.ops.graph.part, not per_sample, bool(slot.source))
            storages[slot.storage] = storage
        width = max(1, slot.width)
        return Value(max(1, elements // width), width, itemsize, storage, needs_grad)

    def _apply(
        self, instruction: Instruction, inputs: tuple[Value, ...], storages: dict[int, Storage]
    ) -> dict[int, Value]:
        trains = bool(instruction.weights) and self.ops.trains
        folded = [self._folded(name.removesuffix(".weight")) for name in instruction.weights]
        mask = sum(1 << index for index, value in enumerate(inputs) if value.needs_grad)
        is_leaf = self.embedding_needs_grad and self._is_input_embedding(instruction)
        needs_grad = trains or any(folded) or is_leaf
        mask |= needs_grad << len(inputs)
        derivative = _derivative(instruction, mask)
        slots = self.program.slots
        made = {
            number: self._new(
                slots[number], storages, needs_grad=derivative is not None and slots[number].is_differentiable,
                label=instruction.name,
            )
            for number in instruction.outputs
        }  # fmt: skip
        outputs, saved, workspace = tuple(made.values()), list[Storage](), Size(0, 0)
        if derivative is not None:
            saved = [inputs[index].storage for index in derivative.saves_inputs]
            saved += [outputs[index].storage for index in derivative.saves_outputs]
            saved += [own.storage for index in derivative.saves_weights if (own := folded[index])]
            new = self._size(derivative.saves_new)
            if any(new):
                saved.append(Storage(max(new), "saved", self.ops.graph.part, not new.per_sample))
            workspace = self._size(derivative.workspace)
            if is_leaf:
                saved.append(outputs[0].storage)  # a leaf that requires a gradient lives as long as the graph
        self.ops.graph.nodes.append(
            Node(
                inputs + tuple(own for own in folded if own),
                outputs,
                tuple(dict.fromkeys(saved)),
                passes=derivative is not None and derivative.passes,
                workspace=workspace,
                product=instruction.is_product,
                trains=trains,
            )
        )
        return made

    def _is_input_embedding(self, instruction: Instruction) -> bool:
        weights = [self.ops.weights.get(name.removesuffix(".weight")) for name in instruction.weights]
        return any(tensor is not None and tensor.role == "embedding" for tensor in weights)

    def _folded(self, name: str) -> Value | None:
        """The weight that peft substitutes; None where it leaves the weight alone."""
        return self.ops.folded(name) if name in self.ops.weights and not self.ops.trains else None

    def _size(self, quantity: object) -> Size:
        return Size(quantity.of_sample(self.seq_len), quantity.of_batch(self.seq_len))  # type: ignore[attr-defined]

    def _attend(self, instruction: Instruction, inputs: tuple[Value, ...], storages: dict[int, Storage]) -> Value:
        rows = []
        for value in inputs:
            tokens = self.seq_len
            whole = Value(tokens, value.rows * value.width // tokens, value.itemsize, value.storage, value.needs_grad)
            self.ops.graph.nodes.append(Node((value,), (whole,), passes=True))
            rows.append(whole)
        attended = attend(
            self.ops, self.kernel, _FUSED_ATTENTION, self.attention, (rows[0], rows[1], rows[2]), mask=self.mask
        )
        if self.kernel == "flash" and dict(instruction.details)["head_major"]:
            attended = self.ops.new("attention output", (attended,))
        return self._adopt(instruction.outputs[0], attended, storages)


def _derivative(instruction: Instruction, mask: int) -> Derivative | None:
    """Of the inputs that require a gradient; of the fewest that contain them where the choice was not recorded."""
    if not mask:
        return None
    larger = [each for each in instruction.derivatives if each[0] & mask == mask]
    return min(larger, key=lambda each: each[0].bit_count())[1] if larger else None
