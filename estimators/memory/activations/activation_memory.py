"""Activation memory of one training step: saved activations, the loss's peak, one layer's working set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...estimate import MEMORY_SYMBOLS, Formula, Terms, total_bytes
from ...models.model_shape import Block, ModelShape
from ...models.program import ZERO, Size
from ...workload import Workload
from .embedding_and_head import encoder_output_terms, input_term, record_head, shared_terms
from .loss import loss_terms
from .passes import WeightsInPass, frontier
from .recording import SOURCE, LayerRecorder, PerBatchTerm, Recording, saved_term, saved_terms
from .saved_tensors import total

_LARGEST = {**MEMORY_SYMBOLS, "x": "bytes per sample", "y": "bytes for any batch size"}
_FORWARD = Formula("forward pass of a layer", "B x + y: peak of one layer's forward pass", SOURCE, _LARGEST)
_RECOMPUTED_NAME = "recomputed layer"
_PARTLY_FREED = Formula(
    _RECOMPUTED_NAME, "B x + y: bytes that one layer saves without checkpointing, a part is freed", SOURCE, _LARGEST
)
_GRADIENTS = Formula(
    "gradients of activations",
    "B x + y: peak of the backward pass of one layer or of the final norm",
    SOURCE,
    _LARGEST,
    not_covered="torch.compile, and fusions that a kernel library adds",
)


class ActivationMemory(NamedTuple):
    """Activations of one micro batch on one GPU, in groups of terms. Their peak is saved + max(loss, block). Gradients
    of weights are not included, except the head's under a fused loss, which computes it in the forward pass."""

    saved_terms: Terms
    """Alive from the forward pass to their layer's backward pass, all of them at the loss. With checkpointing: the
    input of every layer."""
    loss_terms: Terms
    """Added to saved_terms at the peak of the loss; freed before any layer's backward pass."""
    forward_terms: Terms
    """Added to saved_terms at the peak of one layer's forward pass."""
    unsaved_terms: Terms
    """The peak of a layer's forward pass that saves nothing."""
    head_terms: Terms
    """The part of loss_terms that the final norm and the head save; alive until the head's backward pass."""
    block_terms: Terms
    """Added to saved_terms at the peak of a layer's backward pass: its recomputation, gradients of activations,
    workspaces of kernels."""
    recomputation_terms: Terms
    """Added to saved_terms while the layer runs forward; with checkpointing, during its recomputation."""
    product_terms: Terms
    """Added to saved_terms while the gradient of one of the layer's matrices is computed."""
    product_made_terms: Terms
    """Added to saved_terms when such a gradient is complete and may be reduced."""
    saved_per_layer_bytes: int
    """The largest layer's share of saved_terms."""

    @property
    def saved_bytes(self) -> int:
        return total_bytes(self.saved_terms)

    @property
    def peak_bytes(self) -> int:
        return self.saved_bytes + max(total_bytes(self.loss_terms), total_bytes(self.block_terms))


def activation_memory(
    model: ModelShape,
    workload: Workload,
    micro_batch_size: int,
    gradient_checkpointing: bool,
    *,
    compute_capability: float | None,
    zero_stage: int = 0,
    cpu_checkpointing: bool = False,
) -> ActivationMemory:
    """Return the activations of one micro batch, as transformers' code and torch's autograd keep them.

    Each layer's forward pass is written operation by operation (`layer`, `feed_forward`, `kernels`) and recorded as an
    autograd graph with torch's rules (`saved_tensors`, `passes`), once for all batches: bytes are linear in B.

    Assumes no padding, `use_cache=False`, non-reentrant checkpointing of every layer. ZeRO-3 changes which tensors
    frozen linear layers, and those of a module, save. With `cpu_checkpointing` the layers' inputs are on the host
    (`host_memory.checkpoint_terms`), except the one in use.

    Not covered: torch.compile, autocast of recorded models, DeepSpeed's own `activation_checkpointing` block, fused
    kernels of experts, kernels from the hub.
    """
    has_frozen = workload.method != "full" or model.has_frozen
    recorder = LayerRecorder(
        model,
        workload,
        gradient_checkpointing,
        compute_capability,
        # Where everything trains, ZeRO-3's linear layer saves the same inputs as torch's; one cache entry serves both.
        zero3=zero_stage >= 3 and (has_frozen or model.module is not None),
        reduces=zero_stage > 0 or workload.mlp == "whole",
    )
    return _activation_memory(recorder, micro_batch_size, cpu_checkpointing)


@lru_cache(maxsize=1024)
def _activation_memory(recorder: LayerRecorder, micro_batch_size: int, on_host: bool) -> ActivationMemory:
    """Return `activation_memory` from the arguments that determine it; most plans of a search share them."""
    layout = activation_layout(recorder, on_host)
    head = layout.head.terms(micro_batch_size)
    return ActivationMemory(
        saved_terms=tuple(term for part in layout.saved for term in part.terms(micro_batch_size)),
        loss_terms=head + loss_terms(recorder.model, recorder.workload, micro_batch_size),
        forward_terms=_linear(_FORWARD, _largest(layout.forward, micro_batch_size), micro_batch_size),
        unsaved_terms=_linear(_FORWARD, _largest(layout.unsaved, micro_batch_size), micro_batch_size),
        head_terms=head,
        block_terms=layout.block_terms(micro_batch_size, "forward", "all"),
        recomputation_terms=layout.block_terms(micro_batch_size, "forward"),
        product_terms=layout.block_terms(micro_batch_size, "products"),
        product_made_terms=layout.block_terms(micro_batch_size, "products_made"),
        saved_per_layer_bytes=layout.per_layer.at(micro_batch_size),
    )


def forward_only_terms(
    model: ModelShape, workload: Workload, samples: int, *, compute_capability: float | None
) -> tuple[Terms, Terms]:
    """Return the terms of a forward pass without gradients: those alive through all layers (masks, rotary tables), and
    the peak of a layer."""
    layout = activation_layout(LayerRecorder(model, workload, True, compute_capability))
    shared = tuple(term for part in layout.shared for term in part.terms(samples))
    return shared, _linear(_FORWARD, _largest(layout.unsaved, samples), samples)


class BackwardPeaks(NamedTuple):
    """Moments of the backward pass of one kind of layer, in addition to all saved terms."""

    recomputed: PerBatchTerm | None
    """What the layer saves in its recomputation."""
    forward: tuple[Size, ...]
    """While the layer runs forward; with checkpointing, in its recomputation. The rest: `Recording.backward`."""
    all: tuple[Size, ...]
    products: tuple[Size, ...]
    products_made: tuple[Size, ...]


class ActivationLayout(NamedTuple):
    """The activation sizes, independent of the micro batch size."""

    saved: tuple[PerBatchTerm, ...]
    shared: tuple[PerBatchTerm, ...]
    """The part of `saved` that lives as long as the layers."""
    head: PerBatchTerm
    per_layer: Size
    forward: tuple[Size, ...]
    """The moments of a forward pass in addition to all saved terms, for all kinds of layers."""
    unsaved: tuple[Size, ...]
    """The moments of a forward pass that saves nothing."""
    working: tuple[BackwardPeaks, ...]
    """One per kind of layer, after the final norm's."""

    def block_terms(self, micro_batch_size: int, *parts: str) -> Terms:
        """Return the peak within these parts of `BackwardPeaks`, as recomputation and the rest of the backward pass."""
        found = ((each.recomputed, moment) for each in self.working for part in parts for moment in getattr(each, part))
        # The largest moment depends on the batch: one grows with it, another is fixed (weights that are dequantized).
        recomputed, largest = max(found, key=lambda pair: pair[1].at(micro_batch_size), default=(None, ZERO))
        if recomputed is None:
            return _linear(_GRADIENTS, largest, micro_batch_size)
        if largest.at(micro_batch_size) < recomputed.size.at(micro_batch_size):
            return _linear(_PARTLY_FREED, largest, micro_batch_size)
        gradients = _linear(_GRADIENTS, largest.minus(recomputed.size), micro_batch_size)
        return recomputed.terms(micro_batch_size) + gradients


def _largest(moments: Sequence[Size], micro_batch_size: int) -> Size:
    return max(moments, key=lambda moment: moment.at(micro_batch_size))


def _linear(formula: Formula, size: Size, micro_batch_size: int) -> Terms:
    whole = max(0, size.at(micro_batch_size))
    return formula.term(whole, B=micro_batch_size, x=size.per_sample, y=size.fixed)


def module_moments(recorder: LayerRecorder, micro_batch_size: int, weights: WeightsInPass) -> tuple[int | None, ...]:
    """Return the peak of each part of a module's passes (`Recording.whole_pass`) less its saved bytes, in bytes:
    negative if some of those are freed; None for a part without moments."""
    parts = _passes(recorder, weights)
    return tuple(max((moment.at(micro_batch_size) for moment in part), default=None) for part in parts)


@lru_cache(maxsize=256)
def _passes(recorder: LayerRecorder, weights: WeightsInPass) -> tuple[tuple[Size, ...], ...]:
    ((_, recording),) = recorded(recorder).layers
    return recording.whole_pass(weights)


class Recorded(NamedTuple):
    layers: list[tuple[Block, Recording]]
    head: Recording


@lru_cache(maxsize=256)
def recorded(recorder: LayerRecorder) -> Recorded:
    # The layers do not depend on the loss, so that a search over losses records them once.
    return Recorded(_layers(recorder._replace(workload=recorder.workload.layers_cache_key())), record_head(recorder))


@lru_cache(maxsize=256)
def _layers(recorder: LayerRecorder) -> list[tuple[Block, Recording]]:
    return [(block, recorder.layer(block, first=first)) for block, first in recorder.blocks()]


@lru_cache(maxsize=256)
def activation_layout(recorder: LayerRecorder, on_host: bool = False) -> ActivationLayout:
    """Return the layout of activations. on_host: whether the layers' inputs that checkpointing keeps are on the
    host."""
    model, workload, checkpointing = recorder.model, recorder.workload, recorder.checkpointing
    layers, last = recorded(recorder)
    if model.module:  # its program has its own checkpoints
        checkpointing = False
    checkpoint = [ZERO if on_host or not record.has_backward else record.input_size for _, record in layers]
    # Reentrant checkpointing runs the forward pass without derivatives, so they keep nothing.
    keeps_unhooked = checkpointing and not workload.software.reentrant
    unhooked = [record.graph.unhooked() if keeps_unhooked else () for _, record in layers]
    kept_sizes = [
        own.plus(total(more)) if checkpointing else total(record.saved)
        for own, more, (_, record) in zip(checkpoint, unhooked, layers, strict=True)
    ]
    terms: list[PerBatchTerm] = []
    forward: list[Size] = []
    # The final norm.
    norm_moments = tuple(moment.plus(total(last.saved)) for moment in last.backward[0])
    working = [BackwardPeaks(None, (), norm_moments, (), ())]
    for index, (block, record) in enumerate(layers):
        layer, freed = total(record.saved), _freed_before_backward(recorder, layers[index:], kept_sizes[index:])
        if not record.has_backward:
            forward.extend(moment.minus(freed) for moment in record.forward)
            continue
        if checkpointing:
            # The recomputed forward pass runs while the gradient of the layer's output is waiting.
            own = record.input_size if on_host else ZERO
            forward_moments = tuple(moment.plus(record.input_size).plus(own).minus(freed) for moment in record.forward)
            added = layer.plus(own).minus(freed)
            forward.extend(moment.plus(own) for moment in record.unsaved)
            if not on_host:
                terms.append(input_term(recorder, block))
            if unhooked[index]:
                name = f"{block.stack} inputs of int8 layers"
                terms.append(saved_term(name, unhooked[index], count=block.count, rows=recorder.rows(block)))
        else:
            forward.extend(moment.minus(layer) for moment in record.forward)
            forward_moments, added = (
                tuple(moment.minus(layer).minus(freed) for moment in record.forward),
                ZERO.minus(freed),
            )
            stack = "module's" if model.module else block.stack
            terms.extend(saved_terms(stack, record.saved, count=block.count, rows=recorder.rows(block)))
        backward = (tuple(moment.plus(added) for moment in moments) for moments in record.backward)
        recomputed = None
        if checkpointing:
            recomputed = saved_term(_RECOMPUTED_NAME, record.saved, count=1, rows=recorder.rows(block))
        working.append(BackwardPeaks(recomputed, forward_moments, *backward))
    shared = tuple(shared_terms(recorder))
    return ActivationLayout(
        saved=(*terms, *shared),
        shared=shared,
        head=saved_term("final norm and head input", last.saved, count=1, rows=recorder.rows(model.blocks[-1])),
        per_layer=max(kept_sizes),
        forward=frontier(forward),
        unsaved=frontier(moment.plus(record.input_size) for _, record in layers for moment in record.unsaved),
        working=tuple(working),
    )


def _freed_before_backward(
    recorder: LayerRecorder, layers: Sequence[tuple[Block, Recording]], kept_sizes: Sequence[Size]
) -> Size:
    """Return the bytes freed when the first of these layers runs backward: those that all later layers kept.
    Alternating blocks of equal tensors do not count as later. An encoder's output is freed with its decoder."""
    freed, (first, _) = ZERO, layers[0]
    for (block, _), size in zip(layers, kept_sizes, strict=True):
        # Alternating kinds (a sliding window in every other layer) interleave, so none of them runs backward first.
        if block.tensors != first.tensors:
            freed = freed.plus(size.times(block.count))
    if first.stack == "encoder":
        for term in encoder_output_terms(recorder):
            freed = freed.plus(term.size)
    return freed
