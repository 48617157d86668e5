"""How transformers' code computes a layer: the variants among model types with a row, and programs of recorded layers.

A program is the sequence of operations of a model's own code, recorded once, for any batch and length.

Sizes are polynomials of B samples and S tokens:

    size = (a + b S + c S^2) B + (d + e S + f S^2)

`probes.model_recorder` records programs; `memory.activations.replay` replays them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, NamedTuple

Coefficients = tuple[float, float, float]
"""The coefficients of 1, S and S^2."""

ONCE: Coefficients = 1.0, 0.0, 0.0

ROWS = "rows of a linear layer's input"
"""Name of the copy of an input whose rows are not contiguous in memory (`at::linear`). torch's layer saves the copy.
DeepSpeed's, under ZeRO-3, saves the input and copies it again in the backward pass (deepspeed 0.19.8
runtime/zero/linear.py)."""


class Size(NamedTuple):
    """`per_sample` B + `fixed` bytes or elements."""

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


class Quantity(NamedTuple):
    """Elements or bytes as a function of batch and length."""

    per_sample: Coefficients
    fixed: Coefficients

    def at(self, seq_len: int) -> Size:
        return Size(value_at(self.per_sample, seq_len), value_at(self.fixed, seq_len))


def value_at(coefficients: Coefficients, seq_len: int) -> int:
    constant, linear, square = coefficients
    return round(constant + linear * seq_len + square * seq_len**2)


class Slot(NamedTuple):
    elements: Quantity
    width: int
    """Last dimension; 1 if it depends on the length."""
    itemsize: int
    """Bytes per element; 0 for the weights' type."""
    storage: int
    """Number of its memory. Tensors that share memory have the same number."""
    source: int
    """0 if the program creates the tensor, -1 for a buffer or the layer's input. Any other number identifies a tensor
    from outside, and is the same in all programs of a model."""
    needs_grad: bool
    """Whether it can require a gradient. A tensor from outside does require it."""
    repeats: Coefficients = ONCE
    """Number of such tensors that the iterations of a loop create, by the length. `elements` counts one of them."""


class Derivative(NamedTuple):
    """Work of autograd for one operation when some of its inputs require a gradient."""

    saves_inputs: tuple[int, ...]
    saves_outputs: tuple[int, ...]
    saves_weights: tuple[int, ...]
    saves_new: Quantity
    """Bytes of saved tensors that are neither input, output nor weight."""
    reuses_gradient: bool
    """Whether the gradients of the inputs are views of the output's gradient."""
    workspace: Quantity
    """Bytes that the backward pass allocates in addition to the gradients of inputs and weights."""
    operations: int
    """Kernels of the backward pass."""
    flops: Quantity
    """Operations of matrix products and convolutions."""


Kind = Literal["operation", "cast", "linear", "attention", "hold", "checkpoint", "checkpointed"]
"""hold: tensors held by variables of the code until here, where their memory is released. checkpoint, checkpointed:
begin and end (with the results as inputs) of a part that gradient checkpointing runs again."""


class Instruction(NamedTuple):
    kind: Kind
    name: str
    """torch's name of the operation, or the module of a linear layer."""
    inputs: tuple[int, ...]
    """Slots of its input activations."""
    outputs: tuple[int, ...]
    weights: tuple[str, ...]
    """Parameters that it reads, except those of a linear layer."""
    is_product: bool
    """Whether its time follows from its FLOPs instead of the bytes that it moves."""
    derivatives: tuple[tuple[int, Derivative], ...]
    """Derivatives by a bit mask of the inputs that require a gradient. The bit above the inputs is for the weights."""
    details: tuple[tuple[str, int], ...]
    """Dimensions of an attention; empty for other operations."""
    flops: Quantity
    """Operations of matrix products and convolutions, by `torch.utils.flop_counter`."""
    repeats: Coefficients = ONCE
    """Iterations of the loops around it, by the length. Sizes and FLOPs count one iteration."""

    def derivative(self, mask: int) -> Derivative | None:
        """Return the derivative for the inputs in `mask`. If it was not recorded, return that of the smallest recorded
        set that contains them."""
        # A superset is the safe side: it saves at least what the missing derivative would.
        larger = [each for each in self.derivatives if mask and each[0] & mask == mask]
        return min(larger, key=lambda each: each[0].bit_count())[1] if larger else None

    @property
    def reads_weights(self) -> tuple[str, ...]:
        # `linear` is one instruction with its module's name, so that adapters and quantization can replace it.
        return (f"{self.name}.weight",) if self.kind == "linear" else self.weights


class Program(NamedTuple):
    """The operations of a layer, or of the parts around the layers."""

    slots: tuple[Slot, ...]
    input: int
    """The slot of the hidden states; -1 for a program that begins with the model's own inputs."""
    output: int
    embedding: int
    """The slot of the input embedding's output; -1 in a program without one."""
    instructions: tuple[Instruction, ...]
    output_slots: tuple[int, ...] = ()
    """Slots of the model's output, which a training loop holds in a variable."""
    flash: bool = True
    """Whether the model's class supports the flash-attn package."""
    softmax_fp32: bool = True
    """Whether the class's eager attention computes the softmax in fp32 and casts it back."""

    @property
    def kernels(self) -> frozenset[str]:
        """Attention implementations that the class supports in addition to eager."""
        if not any(instruction.kind == "attention" for instruction in self.instructions):
            return frozenset()
        return frozenset({"sdpa", "flash"} if self.flash else {"sdpa"})

    @property
    def has_mask(self) -> bool:
        """Whether attention gets a mask even without a window."""
        return any(dict(instruction.details).get("masked") for instruction in self.instructions)

    def slots_requiring_grad(self, trained: Container[str]) -> set[int]:
        """Return the slots that require a gradient if the weights in `trained` do."""
        found = {number for number, slot in enumerate(self.slots) if slot.source > 0 and slot.needs_grad}
        for each in self.instructions:
            trains = any(name in trained for name in each.reads_weights)
            if trains or found.intersection(each.inputs):
                found.update(number for number in each.outputs if self.slots[number].needs_grad)
        return found

    def sources(self, *, saved: bool) -> dict[int, Slot]:
        """Return the tensors from outside, by their number in the model. saved: only those that a derivative reads."""
        read = {
            self.slots[instruction.inputs[place]].storage
            for instruction in self.instructions
            for _, derivative in instruction.derivatives
            for place in derivative.saves_inputs
        }
        read |= {self.slots[each.inputs[0]].storage for each in self.instructions if each.kind == "linear"}
        return {
            slot.source: slot for slot in self.slots if slot.source > 0 and not (saved and slot.storage not in read)
        }


class OuterPrograms(NamedTuple):
    prologue: tuple[Program, ...]
    """Programs before the first layer of each stack."""
    epilogue: Program
    """Program from the last layer to the head."""


NormVariant = Literal["layer", "rms", "rms_fp32", "rms_plus_one", "layer_bare"]
"""The norms of `memory.activations.ops.norm`."""


class LayerVariant(NamedTuple):
    """Differences of `modeling_<model type>.py` (transformers 5.23) that affect the saved tensors of a layer."""

    norm: NormVariant = "rms"
    norm_operations: int = 8
    """Operations that an RMSNorm over the hidden size launches."""
    qk_norm: NormVariant = "rms"
    layout: Literal["pre", "output", "sandwich"] = "pre"
    """pre: x + f(norm(x)), twice; output: x + norm(f(x)) (OLMo 2); sandwich: x + norm(f(norm(x))) (Gemma 2)."""
    rotary: Literal["model", "fp32"] = "model"
    """Type in which queries and keys are rotated: the model's, or fp32 with a cast back."""
    kernels: frozenset[str] = frozenset({"sdpa", "flash"})
    """Attention implementations that the class supports in addition to eager."""
    softmax_fp32: bool = True
    """Whether eager attention computes the softmax in fp32 and casts it back."""
    where_mask: bool = False
    """Whether eager attention before transformers 5 masks the scores with `torch.where`."""
    masked: bool = False
    """Whether sdpa always gets a mask."""
    joined: bool = False
    """Whether `cat` joins rotated and unrotated columns. Queries and keys are then head-major, and so is flash's
    output, which must be copied for the output projection."""
    residual_scaled: bool = False
    """Whether each branch is multiplied by a constant before it is added."""
    embedding_dropout: bool = False
    """Whether dropout is applied to the embedding, with the layers' probability."""
    summed_input: bool = False
    """Whether the first layer's input is a sum or product of the embedding (learned positions, a multiplier)."""
    router_fp32: bool = False
    """Whether a mixture of experts computes the router's logits in fp32."""
    softmax_of_top_k: bool = False
    """Whether a mixture of experts computes the softmax after the top-k."""
    routing_fp32: bool = False
    """Whether a mixture of experts leaves its routing weights in fp32."""
    gpt_oss_experts: bool = False
    """Whether a mixture of experts is gpt-oss's, whose gate is clamped."""
