"""Recording the layers of a model on tapes, with the kernels and masks that the workload gives them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ...models.lora import adapters, trained_copies
from ...models.model_shape import Attention, Block, ModelShape, Tensor
from ...workload import Workload
from .kernels import LARGEST_FUSED_HEAD, Kernel, attention_kernel
from .layer import Layer
from .layer_variants import LayerVariant, layer_variant
from .moved_bytes import backward_bytes, forward_bytes
from .ops import Ops
from .saved_tensors import AutogradGraph, Size, Storage, Value, frontier


@dataclass(frozen=True)
class Recording:
    """What a run of operations saves, and the largest moments of its passes, each replayed when it is asked for."""

    graph: AutogradGraph
    value: Value
    """The run's input."""
    output: Value
    copies: int = 0
    """Copies of the output's gradient, one for each summand, that are made first."""

    @cached_property
    def saved(self) -> tuple[Storage, ...]:
        return self.graph.saved()

    @cached_property
    def held(self) -> tuple[Storage, ...]:
        return self.graph.held()

    @property
    def input_size(self) -> Size:
        return Size(self.value.size, 0)

    @cached_property
    def forward(self) -> tuple[Size, ...]:
        return frontier(self.graph.forward_moments())

    @cached_property
    def unsaved(self) -> tuple[Size, ...]:
        """The moments of a forward pass that saves nothing, as checkpointing runs it first."""
        return frontier(self.graph.forward_moments(saves=False))

    @cached_property
    def backward(self) -> tuple[Size, ...]:
        return frontier(self.graph.backward_moments(self.output))

    @cached_property
    def moved(self) -> tuple[Size, Size]:
        """Bytes that cross GPU memory outside products, forward and backward."""
        return forward_bytes(self.graph), backward_bytes(self.graph, self.output)

    @property
    def waiting(self) -> Size:
        """Gradients that wait while a checkpointed layer runs again: its output's, and what is made of that before
        anything saved is read."""
        return Size(self.value.size * (1 + self.copies), 0)


class LayerRecorder(NamedTuple):
    """What all recordings of one model and workload share."""

    model: ModelShape
    workload: Workload
    checkpointing: bool
    compute_capability: float | None
    zero3: bool
    reduces: bool = True
    """ZeRO takes gradients of weights away as they are made, from stage 1 on."""

    @property
    def trains(self) -> bool:
        return self.workload.method == "full"

    @property
    def trains_embedding(self) -> bool:
        return self.trains or bool(trained_copies(self.model, self.workload).embeddings)

    def rows(self, block: Block) -> int:
        """Tokens of the block's stream."""
        return self.model.stream_len(block, self.workload.seq_len)

    @property
    def encoder_rows(self) -> int:
        return self.model.encoder_len(self.workload.seq_len)

    def variant(self, block: Block) -> LayerVariant:
        return layer_variant(self.model.model_type, block)

    def blocks(self) -> list[tuple[Block, bool]]:
        """The blocks; with adapters the first layer of a stream apart (True), for its input needs no gradient.

        Checkpointing makes the embedding's output require one (`enable_input_require_grads`), and then it is like the
        others, as where an embedding trains.
        """
        if self.trains_embedding or self.checkpointing:
            return [(block, False) for block in self.model.blocks]
        apart: list[tuple[Block, bool]] = []
        seen: set[str] = set()
        for block in self.model.blocks:
            is_first = block.stack not in seen
            if is_first:
                seen.add(block.stack)
                apart.append((replace(block, count=1), True))
            if block.count > is_first:
                apart.append((replace(block, count=block.count - is_first), False))
        return apart

    def ops(self, tensors: Iterable[Tensor], part: str) -> Ops:
        given = tuple(tensors)
        weights = {tensor.name.removesuffix(".weight"): tensor for tensor in given if len(tensor.shape) >= 2}
        return Ops(
            graph=AutogradGraph(part),
            workload=self.workload,
            weights=weights,
            adapters=adapters(self.model, self.workload),
            biased=frozenset(tensor.name.removesuffix(".bias") for tensor in given if tensor.name.endswith(".bias")),
            keeps_frozen_inputs=self.zero3,
            reduces_gradients=self.reduces and self.trains,
        )

    def layer(self, block: Block, *, first: bool) -> Recording:
        """Run one layer. Checkpointing keeps its input anyway, so it is not among what is recomputed."""
        variant, rows, ops = self.variant(block), self.rows(block), self.ops(block.tensors, "input")
        graph, hidden, item = ops.graph, self.model.stream_width(block), ops.itemsize
        value = graph.tensor(rows, hidden, item, "layer input", needs_grad=not first, outer=self.checkpointing)
        kernel, masked = self.kernel(block.attention, variant, rows)
        layer = Layer(ops=ops, variant=variant, block=block, kernel=kernel)
        if masked:
            layer.mask = self.mask(ops, variant, kernel, rows)
        if variant.relative:
            layer.bias = _bias(ops, block.attention, rows, rows, needs_grad=self.trains)
        if block.cross_attention is not None:
            keys = self.encoder_rows
            layer.memory = graph.tensor(keys, hidden, item, "encoder output", outer=True)
            layer.cross_kernel, _ = self.kernel(block.cross_attention, variant, rows)
            if variant.relative:
                layer.cross_bias = _bias(ops, block.cross_attention, rows, keys, needs_grad=self.checkpointing)
        copies = block.feed_forward.experts if variant.every_expert else 0
        return Recording(graph, value, layer.forward(value), copies)

    @staticmethod
    def mask(ops: Ops, variant: LayerVariant, kernel: Kernel, rows: int) -> Value:
        """Shared by all layers: of booleans for sdpa, one for all samples; of the scores' type for eager, one per
        sample."""
        eager = kernel == "eager"
        itemsize = ops.itemsize if eager and not variant.boolean_mask else 1
        return ops.graph.tensor(rows, rows, itemsize, "mask", needs_grad=False, fixed=not eager, outer=True)

    def kernel(self, attention: Attention, variant: LayerVariant, rows: int) -> tuple[Kernel, bool]:
        """The kernel, and whether a mask of S x S reaches it."""
        ranks = self.workload.sequence_parallel_size
        attention = attention.of_rank(ranks)
        windowed = attention.window is not None and rows * ranks >= attention.window and not attention.chunked
        masked = (windowed or variant.masked) and not attention.cross
        repeated = windowed or (variant.heads == "copies" and attention.kv_heads > 1)
        repeated |= max(attention.head_dim, attention.v_head_dim) > LARGEST_FUSED_HEAD
        kernel = attention_kernel(
            self.workload,
            attention,
            offered=variant.kernels,
            masked=masked or variant.relative,
            grouped=attention.kv_heads < attention.heads and not repeated,
            compute_capability=self.compute_capability,
        )
        return kernel, attention.causal if kernel == "eager" else masked and kernel != "flash"


def _bias(ops: Ops, attention: Attention, rows: int, keys: int, *, needs_grad: bool) -> Value:
    """T5's relative positions: a number per head, query and key, for all samples and layers."""
    return ops.graph.tensor(
        rows, attention.heads * keys, ops.itemsize, "position bias", needs_grad=needs_grad, fixed=True, outer=True
    )
