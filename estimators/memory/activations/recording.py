"""Recordings of a model's layers. Bytes are linear in the micro batch size, which is set later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ...estimate import MEMORY_SYMBOLS, Formula, Terms
from ...models.families import layer_variant
from ...models.lora import adapters, trains_embedding
from ...models.model_shape import Attention, Block, ModelShape, Tensor
from ...models.program import LayerVariant, Program, Size
from ...models.vision_parts import has_backward, is_tower, trains_projector
from ...workload import Workload
from .kernels import FIRST_BOOLEAN_MASKS, Kernel, kernel_and_mask
from .layer import Layer
from .ops import Ops
from .passes import (
    Moves,
    WeightsInPass,
    backward_bytes,
    backward_moves,
    backward_pass,
    forward_bytes,
    forward_moves,
    forward_pass,
    frontier,
)
from .replay import Replay
from .saved_tensors import AutogradGraph, Storage, Value, total

SOURCE = "transformers 5.23 modeling code; what torch 2.13 autograd saves"


class PerBatchTerm(NamedTuple):
    """A term that is linear in the micro batch size, before that size is known."""

    name: str
    size: Size
    text: str
    inputs: Mapping[str, float]
    """Values of the formula's symbols, without B."""
    symbols: Mapping[str, str] = MEMORY_SYMBOLS

    def terms(self, micro_batch_size: int) -> Terms:
        formula = Formula(self.name, self.text, SOURCE, self.symbols)
        return formula.term(self.size.at(micro_batch_size), B=micro_batch_size, **self.inputs)


def saved_term(name: str, saved: Sequence[Storage], *, count: int, rows: int) -> PerBatchTerm:
    """Return `count` times the storages of one graph, in bytes per token (per batch if independent of B)."""
    # Per token, so that the printed formula shows the sizes of the layer's tensors and not those of the batch.
    tokens = " + ".join(f"{storage.size / rows:g} {storage.label}" for storage in saved if not storage.fixed)
    fixed = " + ".join(f"{storage.size} {storage.label}" for storage in saved if storage.fixed)
    layers = "L " if count > 1 else ""
    sums = ((f"{layers}B S ({tokens})", tokens), (f"{layers}({fixed})", fixed))
    text = " + ".join(text for text, sizes in sums if sizes)
    text += ": bytes per token of each saved tensor" if tokens else ""
    return PerBatchTerm(name, total(saved).times(count), text, {"S": rows, **({"L": count} if count > 1 else {})})


def saved_terms(stack: str, saved: Iterable[Storage], *, count: int, rows: int) -> list[PerBatchTerm]:
    groups: dict[str, list[Storage]] = {}
    for storage in saved:
        groups.setdefault(storage.part, []).append(storage)
    return [saved_term(f"{stack} {name}", group, count=count, rows=rows) for name, group in groups.items()]


@dataclass(frozen=True)
class Recording:
    """The storages that recorded operations save, and the peaks of their passes."""

    graph: AutogradGraph
    value: Value
    output: Value

    @cached_property
    def saved(self) -> tuple[Storage, ...]:
        return self.graph.saved()

    @property
    def has_backward(self) -> bool:
        return self.output.needs_grad

    @property
    def input_size(self) -> Size:
        return Size(self.value.size, 0)

    @cached_property
    def forward(self) -> tuple[Size, ...]:
        # A layer has hundreds of moments; only a few of them can be the peak for some batch.
        return frontier(forward_pass(self.graph).moments)

    @cached_property
    def unsaved(self) -> tuple[Size, ...]:
        """Moments of a forward pass that saves nothing: the first forward pass under checkpointing."""
        return frontier(forward_pass(self.graph, saves=False).moments)

    @cached_property
    def backward(self) -> tuple[tuple[Size, ...], ...]:
        """All moments, those while a matrix's gradient is computed, and those when it is complete."""
        live = backward_pass(self.graph, self.output)
        return frontier(live.moments), frontier(live.products), frontier(live.products_made)

    def whole_pass(self, weights: WeightsInPass) -> tuple[tuple[Size, ...], ...]:
        """Return four groups of moments of a module, less the saved bytes: the forward pass before it reads its last
        gathered weight; the whole forward pass and the backward pass before the first gradient of a weight; the
        backward pass from then on until the first reduction; the rest."""
        saved = total(self.saved)
        marks = backward_pass(self.graph, self.output, weights).marks
        forward = [
            (passed, moment.minus(saved))
            for passed, moment in forward_pass(self.graph, threshold=weights.threshold).marks
        ]
        in_layers = [moment for passed, moment in forward if passed < forward[-1][0]]
        before = [moment for _, moment in forward] + [moment for made, moment in marks if not made]
        begun = [moment for made, moment in marks if 0 < made < weights.bucket]
        reduced = [moment for made, moment in marks if made >= weights.bucket]
        return frontier(in_layers), frontier(before), frontier(begun), frontier(reduced)

    @cached_property
    def moved_bytes(self) -> tuple[Size, Size]:
        """Bytes moved through GPU memory outside products, forward and backward."""
        return forward_bytes(self.graph), backward_bytes(self.graph, self.output)

    def moves(self) -> tuple[Moves, Moves]:
        """Return `moved_bytes` by operation."""
        return forward_moves(self.graph), backward_moves(self.graph, self.output)


class LayerRecorder(NamedTuple):
    """The parameters common to all recordings of one model and workload; the key of their caches."""

    model: ModelShape
    workload: Workload
    checkpointing: bool
    compute_capability: float | None
    zero3: bool = False
    """Whether ZeRO-3's linear layer is in use (`Ops.keeps_frozen_inputs`)."""
    reduces: bool = True
    """Whether ZeRO takes gradients of weights as they are made, which it does from stage 1 on."""

    @property
    def trains(self) -> bool:
        return self.workload.method == "full"

    @property
    def trains_embedding(self) -> bool:
        return trains_embedding(self.model, self.workload)

    def has_backward(self, block: Block) -> bool:
        return has_backward(self.model, block, self.workload, checkpointing=self.checkpointing)

    def rows(self, block: Block) -> int:
        return self.model.stream_len(block, self.workload.seq_len)

    def variant(self, block: Block) -> LayerVariant:
        return layer_variant(self.model, block)

    def blocks(self) -> list[tuple[Block, bool]]:
        """Return the blocks, with True for layers whose input needs no gradient: with adapters the first layer of a
        stream, and all layers without a backward pass. The embedding's output requires a gradient under checkpointing
        (`enable_input_require_grads`), with a trained embedding, and with trained parts for images."""
        images_train = trains_projector(self.model, self.workload)
        images_train |= any(self.has_backward(block) for block in self.model.blocks if is_tower(block))
        parts: list[tuple[Block, bool]] = []
        seen: set[str] = set()
        for block in self.model.blocks:
            # Without a gradient to pass on, the layer below an adapter saves only what its own adapters need.
            needs_grad = self.checkpointing or (
                self.trains if is_tower(block) else self.trains_embedding or images_train
            )
            is_first = not needs_grad and block.stack not in seen
            if not self.has_backward(block):
                parts.append((block, True))
                continue
            seen.add(block.stack)
            if is_first:
                parts.append((replace(block, count=1), True))
            if block.count > is_first:
                parts.append((replace(block, count=block.count - is_first), False))
        return parts

    def ops(self, tensors: Iterable[Tensor], part: str) -> Ops:
        own = tuple(tensors)
        weights = {tensor.name.removesuffix(".weight"): tensor for tensor in own if len(tensor.shape) >= 2}
        return Ops(
            graph=AutogradGraph(part),
            workload=self.workload,
            weights=weights,
            adapters=adapters(self.model, self.workload),
            frozen=bool(own) and all(tensor.frozen for tensor in own),
            biased=frozenset(tensor.name.removesuffix(".bias") for tensor in own if tensor.name.endswith(".bias")),
            keeps_frozen_inputs=self.zero3,
            reduces_gradients=self.reduces and self.trains,
        )

    def layer(self, block: Block, *, first: bool) -> Recording:
        """Return the recording of one layer. Checkpointing keeps the layer's input, so the recomputation excludes
        it."""
        rows = self.rows(block)
        part = "activations" if self.model.module else "input" if block.program is None else "layers"
        ops = self.ops(block.tensors, part)
        graph, hidden, item = ops.graph, self.model.activation_width(block), self.workload.activation_itemsize
        value = graph.tensor(rows, hidden, item, "layer input", needs_grad=not first, outer=self.checkpointing)
        if block.program is not None:
            hidden_states = value if block.program.input >= 0 else None
            return Recording(graph, value, self.replay(ops, block.program, block).run(hidden_states))
        kernel, masked = self.kernel(block)
        mask = self.mask(ops, kernel, rows) if masked else None
        layer = Layer(ops=ops, variant=self.variant(block), block=block, kernel=kernel, mask=mask)
        return Recording(graph, value, layer.forward(value))

    def replay(self, ops: Ops, program: Program, block: Block, *, embedding_needs_grad: bool = False) -> Replay:
        rows = self.rows(block)

        def choose_kernel(attention: Attention) -> tuple[Kernel, Value | None]:
            kernel, masked = self.kernel(block, attention)
            return kernel, self.mask(ops, kernel, rows) if masked else None

        replay = Replay(ops, program, rows, block.attention.window, choose_kernel, embedding_needs_grad)
        if self.model.module:
            uses = Counter(name for each in program.instructions for name in each.reads_weights)
            numels = {tensor.name: tensor.numel for tensor in block.tensors if not tensor.frozen}
            replay.frozen = frozenset(tensor.name for tensor in block.tensors if tensor.frozen)
            replay.checkpointing, replay.zero3 = self.checkpointing, self.zero3
            replay.numels = {name: numel for name, numel in numels.items() if uses[name] < 2}
            # A weight that two operations read gets its gradient from both, and keeps it until the last one has run.
            replay.shared = {
                name: ops.graph.tensor(1, numel, ops.itemsize, name, fixed=True, outer=True)
                for name, numel in numels.items()
                if uses[name] > 1
            }
        return replay

    @staticmethod
    def mask(ops: Ops, kernel: Kernel, rows: int) -> Value:
        """Return the mask that all layers share. For sdpa: boolean (of the scores' type before transformers 4.53), and
        one for all samples unless they are padded. For eager: of the scores' type, one per sample."""
        eager, software = kernel == "eager", ops.workload.software
        boolean = not eager and software.transformers >= FIRST_BOOLEAN_MASKS
        itemsize, fixed = 1 if boolean else ops.itemsize, not eager and not software.padding_mask
        return ops.graph.tensor(rows, rows, itemsize, "mask", needs_grad=False, fixed=fixed, outer=True)

    def kernel(self, block: Block, attention: Attention | None = None) -> tuple[Kernel, bool]:
        return kernel_and_mask(self.model, block, self.workload, attention or block.attention, self.compute_capability)
