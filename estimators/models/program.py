"""How transformers' code computes a layer: what differs among model types that have a row, and the program of a layer
that was recorded.

A program is the operations that a model's own code runs, recorded once, for any batch and length.

Sizes are polynomials of B samples and S tokens:

    size = (a + b S + c S^2) B + (d + e S + f S^2)

Made by `probes.model_recorder`; run again by `memory.activations.replay`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, NamedTuple

Coefficients = tuple[float, float, float]
"""The coefficients of 1, S and S^2."""

ONCE: Coefficients = 1.0, 0.0, 0.0

ROWS = "rows of a linear layer's input"
"""Name of the copy of an input whose rows do not follow each other in memory (`at::linear`). The layer saves the copy.
DeepSpeed's, under ZeRO-3, saves the input and copies it again backward (deepspeed 0.19.8 runtime/zero/linear.py)."""


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
    """Elements or bytes by batch and length."""

    per_sample: Coefficients
    fixed: Coefficients

    def at(self, seq_len: int) -> Size:
        return Size(value_at(self.per_sample, seq_len), value_at(self.fixed, seq_len))


def value_at(coefficients: Coefficients, seq_len: int) -> int:
    constant, linear, square = coefficients
    return round(constant + linear * seq_len + square * seq_len**2)


class Slot(NamedTuple):
    """One tensor of a program."""

    elements: Quantity
    width: int
    """The last dimension; 1 where it depends on the length."""
    itemsize: int
    """Bytes per element; 0: those of the weights' type."""
    storage: int
    """Tensors that share memory have the same number."""
    source: int
    """0: the program makes the tensor. Otherwise it comes from outside: the same tensor has the same number in all
    programs of a model; -1: a buffer or the layer's input."""
    needs_grad: bool
    """It can require a gradient; one from outside does."""
    repeats: Coefficients = ONCE
    """Tensors like it that iterations of a loop make, by the length; `elements` are those of one."""


class Derivative(NamedTuple):
    """What autograd does for one operation when some of its inputs require a gradient."""

    saves_inputs: tuple[int, ...]
    """Places of the inputs that it saves."""
    saves_outputs: tuple[int, ...]
    saves_weights: tuple[int, ...]
    saves_new: Quantity
    """Bytes of saved tensors that are neither input, output nor weight."""
    passes: bool
    """The gradients of the inputs are views of the output's."""
    workspace: Quantity
    """Bytes that the backward pass allocates besides the gradients of inputs and weights."""
    operations: int
    """Kernels of the backward pass."""
    flops: Quantity
    """Operations of matrix products and convolutions."""


Kind = Literal["operation", "cast", "linear", "attention", "hold", "checkpoint", "checkpointed"]
"""hold: tensors whose memory is released here, because variables of the code held them. checkpoint, checkpointed: begin
and end, with its results as inputs, of what gradient checkpointing runs again."""


class Instruction(NamedTuple):
    """One operation."""

    kind: Kind
    name: str
    """torch's name of the operation, or the module of a linear layer."""
    inputs: tuple[int, ...]
    """Slots of the activations that it reads."""
    outputs: tuple[int, ...]
    weights: tuple[str, ...]
    """Parameters that it reads; not those of a linear layer."""
    is_product: bool
    """Its time follows from its FLOPs instead of the bytes that it moves."""
    derivatives: tuple[tuple[int, Derivative], ...]
    """By a bit mask of the inputs that require a gradient; the bit above the inputs' is the weights'."""
    details: tuple[tuple[str, int], ...]
    """The dimensions of attention."""
    flops: Quantity
    """Operations of matrix products and convolutions, by `torch.utils.flop_counter`."""
    repeats: Coefficients = ONCE
    """Iterations of the loops around it, by the length; sizes and FLOPs are those of one."""

    def derivative(self, mask: int) -> Derivative | None:
        """For the inputs that require a gradient; of the fewest that contain them where the choice was not recorded."""
        larger = [each for each in self.derivatives if mask and each[0] & mask == mask]
        return min(larger, key=lambda each: each[0].bit_count())[1] if larger else None

    @property
    def reads_weights(self) -> tuple[str, ...]:
        """The parameters that it reads."""
        return (f"{self.name}.weight",) if self.kind == "linear" else self.weights


class Program(NamedTuple):
    """The operations of a layer, or of what runs around the layers."""

    slots: tuple[Slot, ...]
    input: int
    """The slot of the hidden states; -1 for a program that begins with the model's own inputs."""
    output: int
    embedding: int
    """The slot of the input embedding's output; -1 in a program without one."""
    instructions: tuple[Instruction, ...]
    held: tuple[int, ...] = ()
    """Slots of the model's output, which a training loop holds in a variable."""

    @property
    def has_fused_attention(self) -> bool:
        return any(instruction.kind == "attention" for instruction in self.instructions)

    @property
    def has_mask(self) -> bool:
        """Attention gets a mask even where no window limits it."""
        return any(dict(instruction.details).get("masked") for instruction in self.instructions)

    def derived(self, trained: Container[str]) -> set[int]:
        """The slots that require a gradient where these weights do."""
        found = {number for number, slot in enumerate(self.slots) if slot.source > 0 and slot.needs_grad}
        for each in self.instructions:
            trains = any(name in trained for name in each.reads_weights)
            if trains or found.intersection(each.inputs):
                found.update(number for number in each.outputs if self.slots[number].needs_grad)
        return found

    def sources(self, *, saved: bool) -> dict[int, Slot]:
        """The tensors from outside, by their number in the model. saved: only those that a derivative reads."""
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


class Around(NamedTuple):
    """What a model runs around its layers."""

    openings: tuple[Program, ...]
    """Before the first layer of each stack."""
    closing: Program
    """From the last layer to the head."""


NormVariant = Literal["layer", "rms", "rms_fp32", "rms_plus_one", "rms_t5", "layer_bare"]
"""The norms of `memory.activations.ops.norm`."""


class LayerVariant(NamedTuple):
    """How `modeling_<model type>.py` (transformers 5.23) computes a layer, as far as saved tensors differ."""

    norm: NormVariant = "rms"
    """The norms over the hidden size."""
    norm_operations: int = 8
    """Operations that an RMSNorm over the hidden size launches."""
    qk_norm: NormVariant = "rms"
    """The norms of queries and keys."""
    layout: Literal["pre", "output", "sandwich", "post"] = "pre"
    """pre: x + f(norm(x)), twice; output: x + norm(f(x)) (OLMo 2); sandwich: x + norm(f(norm(x))) (Gemma 2); post:
    norm(x + f(x)) (BERT). Parallel blocks have no layout."""
    rotary: Literal["model", "fp32"] = "model"
    """The type in which queries and keys are rotated: the model's, or fp32 and cast back."""
    heads: Literal["views", "copies"] = "views"
    """Queries, keys and values reach the kernel as views of the projections (rotated ones are new tensors anyway), or
    as copies."""
    scaled_query: bool = False
    """Queries are scaled before the kernel, which makes a new tensor."""
    kernels: frozenset[str] = frozenset({"sdpa", "flash"})
    """The attention implementations that the class supports besides eager."""
    softmax_fp32: bool = True
    """Eager attention takes the softmax in fp32 and casts it back."""
    holds_scores: bool = False
    """Eager attention keeps the raw scores in a variable until it returns."""
    chosen_mask: bool = False
    """Before transformers 5 eager attention chooses (`torch.where`) between the scores and what masks them."""
    gathers_positions: bool = False
    """Eager attention gathers two biases by position for every score (DeBERTa)."""
    boolean_mask: bool = False
    """The mask of eager attention is boolean, and the scores are filled with it."""
    masked: bool = False
    """sdpa always gets a mask."""
    joined: bool = False
    """Rotated and passed-through columns are joined by `cat`, which makes queries and keys head-major; flash's output
    then is too, and has to be copied for the output projection."""
    residual_scaled: bool = False
    """Each branch is multiplied by a constant before it is added."""
    relative: bool = False
    """Relative positions are added to the scores of every layer (T5); the feed-forward has a dropout of its own."""
    embedding_norm: bool = False
    embedding_dropout: bool = False
    """The embedding is dropped out, with the layers' probability."""
    summed_input: bool = False
    """The first layer's input is a sum or product of the embedding (learned positions, a multiplier)."""
    convolved_input: bool = False
    """Two convolutions, each with a GELU, make the encoder's input (Whisper)."""
    router_fp32: bool = False
    """A mixture of experts computes the router's logits in fp32."""
    softmax_of_top_k: bool = False
    """A mixture of experts takes the softmax after the top-k."""
    routing_fp32: bool = False
    """A mixture of experts leaves its routing weights in fp32."""
    gpt_oss_experts: bool = False
    """A mixture of experts is gpt-oss's, whose gate is clamped."""
