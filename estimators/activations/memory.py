"""Activation memory of one training step: what the forward pass keeps, the loss's peak, one layer's working set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..estimate import MemoryTerm
from ..model_shape import Attention, Block, ModelShape, Tensor
from ..workload import Workload
from .codes import LayerCode, layer_code
from .kernels import LARGEST_FUSED_HEAD, Kernel, attention_kernel
from .layer import Layer
from .loss import loss_terms
from .norms import norm
from .ops import Ops
from .tape import ZERO, Size, Storage, Tape, Value, frontier, total

SOURCE = "transformers 5.23 modeling code; what torch 2.13 autograd saves"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMemory:
    """Activations of one micro batch on one GPU, in three groups of terms.

    saved_terms: alive from the forward pass to their layer's backward pass; all of them at the moment of the loss. With
                 gradient checkpointing: the input of every layer.
    loss_terms:  on top of saved_terms, at the largest moment of the loss (forward or backward); gone before any layer's
                 backward pass.
    block_terms: on top of saved_terms, at the largest moment while a layer is back-propagated: what checkpointing
                 recomputes of that layer, gradients of activations, workspaces of kernels.

    So the peak of activations is saved + max(loss, block). Gradients of weights are not in here, except the head's under
    a fused loss, which computes it in the forward pass.
    saved_per_layer_bytes: the largest layer's share of saved_terms.
    """

    saved_terms: tuple[MemoryTerm, ...]
    loss_terms: tuple[MemoryTerm, ...]
    block_terms: tuple[MemoryTerm, ...]
    saved_per_layer_bytes: int

    @property
    def saved_bytes(self) -> int:
        return sum(term.size_bytes for term in self.saved_terms)

    @property
    def loss_bytes(self) -> int:
        return sum(term.size_bytes for term in self.loss_terms)

    @property
    def block_bytes(self) -> int:
        return sum(term.size_bytes for term in self.block_terms)

    @property
    def peak_bytes(self) -> int:
        """saved + the larger of loss and block."""
        return self.saved_bytes + max(self.loss_bytes, self.block_bytes)


def activation_memory(model: ModelShape, workload: Workload, micro_batch_size: int, gradient_checkpointing: bool, *,
                      compute_capability: float | None, zero_stage: int = 0) -> ActivationMemory:
    """Bytes of activations of one micro batch, as transformers' code and torch's autograd keep them.

    Each layer's forward pass is written down operation by operation (`layer.py`, `feed_forward.py`, `kernels.py`) and
    recorded on a tape with torch's rules (`tape.py`); its bytes are linear in B, so a model and workload cost one recording
    and every micro batch size a multiplication.

    Assumes no padding (a mask of ones, or packed sequences), `use_cache=False` as Trainer sets it, non-reentrant
    checkpointing of every layer. ZeRO-3 changes what frozen linear layers save, hence `zero_stage`.

    Not covered: torch.compile, autocast (DeepSpeed casts the weights instead), tensor and sequence parallelism, DeepSpeed's
    own `activation_checkpointing` block, kernels from the hub (Liger's other than the loss).
    """
    layout = _layout(model, workload, gradient_checkpointing, compute_capability, zero_stage >= 3)
    return ActivationMemory(
        saved_terms=tuple(term for part in layout.saved if (term := part.term(micro_batch_size)).size_bytes),
        loss_terms=(layout.head.term(micro_batch_size), *loss_terms(model, workload, micro_batch_size)),
        block_terms=layout.block_terms(micro_batch_size),
        saved_per_layer_bytes=layout.per_layer.at(micro_batch_size))


@dataclass(frozen=True, slots=True)
class _Part:
    """One saved term, for any micro batch size."""

    name: str
    size: Size
    formula: str
    inputs: tuple[tuple[str, float], ...]

    def term(self, micro_batch_size: int) -> MemoryTerm:
        return MemoryTerm(name=self.name, size_bytes=self.size.at(micro_batch_size), formula=self.formula,
                          inputs=(("B", micro_batch_size), *self.inputs), source=SOURCE)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Everything about a model and workload that does not depend on the micro batch size.

    working: for each kind of layer, what it recomputes and the moments of its backward pass, above all saved terms.
    """

    saved: tuple[_Part, ...]
    head: _Part
    per_layer: Size
    working: tuple[tuple[Size, tuple[Size, ...]], ...]

    def block_terms(self, micro_batch_size: int) -> tuple[MemoryTerm, ...]:
        recomputed, peak = 0, 0
        for again, moments in self.working:
            largest = max(moment.at(micro_batch_size) for moment in moments)
            if largest > peak:
                recomputed, peak = min(again.at(micro_batch_size), largest), largest
        inputs = (("B", micro_batch_size),)
        terms = (
            MemoryTerm(name="recomputed layer", size_bytes=recomputed, inputs=inputs, source=SOURCE,
                       formula="what one layer saves, see the saved terms without checkpointing"),
            MemoryTerm(name="gradients of activations", size_bytes=peak - recomputed, inputs=inputs, source=SOURCE,
                       formula="largest moment of one layer's backward pass, less what is saved"))
        return tuple(term for term in terms if term.size_bytes)


@dataclass(frozen=True, slots=True)
class _Recording:
    """A layer, or the end of the model: what it saves, and the moments of its forward and backward pass."""

    saved: tuple[Storage, ...]
    input_size: Size
    forward: tuple[Size, ...]
    backward: tuple[Size, ...]


@lru_cache(maxsize=256)
def _layout(model: ModelShape, workload: Workload, checkpointing: bool, compute_capability: float | None,
            zero3: bool) -> _Layout:
    scene = _Scene(model=model, workload=workload, checkpointing=checkpointing, compute_capability=compute_capability,
                   zero3=zero3)
    blocks = scene.blocks()
    records = [scene.record(block, first) for block, first in blocks]
    head = scene.record_head()
    parts: list[_Part] = []
    working = [(ZERO, frontier(moment.plus(total(head.saved)) for moment in head.backward))]
    for index, ((block, _), record) in enumerate(zip(blocks, records, strict=True)):
        layer = total(record.saved)
        if checkpointing:
            # The recomputed forward pass runs while the gradient of the layer's output is waiting.
            moments = [*(moment.plus(record.input_size) for moment in record.forward),
                       *(moment.plus(layer) for moment in record.backward)]
            working.append((layer, frontier(moments)))
            parts.append(_inputs_part(model, block, workload, record.input_size))
        else:
            behind = _saved_behind(blocks[index:], records[index:])
            working.append((ZERO, frontier(moment.minus(behind) for moment in record.backward)))
            parts.extend(_saved_parts(model, block, workload, record.saved))
    parts.extend(_shared_parts(scene))
    return _Layout(
        saved=tuple(parts), head=_part("final norm and head input", head.saved, 1, workload.seq_len), working=tuple(working),
        per_layer=max(record.input_size if checkpointing else total(record.saved) for record in records))


def _saved_behind(blocks: Sequence[tuple[Block, bool]], records: Sequence[_Recording]) -> Size:
    """What the layers after the first of `blocks` had saved, which is gone when that one is back-propagated.

    Blocks of equal tensors alternate with each other (windows in every other layer), so none of them is behind another.
    """
    behind = ZERO
    for (block, _), record in zip(blocks, records, strict=True):
        if block.tensors != blocks[0][0].tensors:
            behind = behind.plus(total(record.saved).times(block.count))
    return behind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What all recordings of one layout share."""

    model: ModelShape
    workload: Workload
    checkpointing: bool
    compute_capability: float | None
    zero3: bool

    def rows(self, block: Block) -> int:
        """Tokens of the block's stream."""
        return self.model.encoder_len(self.workload.seq_len) if block.stack == "encoder" else self.workload.seq_len

    def code(self, block: Block) -> LayerCode:
        return layer_code(self.model.model_type, block)

    def blocks(self) -> list[tuple[Block, bool]]:
        """The blocks; with adapters the first layer of a stream apart (True), for its input needs no gradient.

        Checkpointing makes the embedding's output require one (`enable_input_require_grads`), and then it is like the others.
        """
        if self.workload.method == "full" or self.checkpointing:
            return [(block, False) for block in self.model.blocks]
        apart: list[tuple[Block, bool]] = []
        seen: set[str] = set()
        for block in self.model.blocks:
            rest = block.count
            if block.stack not in seen:
                seen.add(block.stack)
                apart.append((replace(block, count=1), True))
                rest -= 1
            if rest:
                apart.append((replace(block, count=rest), False))
        return apart

    def ops(self, tensors: Iterable[Tensor]) -> Ops:
        weights = {tensor.name.removesuffix(".weight"): tensor for tensor in tensors if len(tensor.shape) == 2}
        return Ops(tape=Tape("input"), workload=self.workload, itemsize=self.workload.weight_bytes, weights=weights,
                   keeps_frozen_inputs=self.zero3)

    def record(self, block: Block, first: bool) -> _Recording:
        """Run one layer on a tape. Checkpointing keeps its input anyway, so it is not among what is recomputed."""
        code, rows, ops = self.code(block), self.rows(block), self.ops(block.tensors)
        value = ops.tape.tensor(rows, self.model.hidden_size, ops.itemsize, "layer input", needs_grad=not first,
                                outer=self.checkpointing)
        kernel, masked = self.kernel(block.attention, code, rows)
        layer = Layer(ops=ops, code=code, block=block, kernel=kernel, mask=self.mask(ops, kernel, rows) if masked else None)
        if block.cross_attention is not None:
            memory_rows = self.model.encoder_len(self.workload.seq_len)
            layer.memory = ops.tape.tensor(memory_rows, self.model.hidden_size, ops.itemsize, "encoder output", outer=True)
            layer.cross_kernel, _ = self.kernel(block.cross_attention, code, rows)
        return _recording(ops.tape, value, layer.forward(value))

    def record_head(self) -> _Recording:
        """The final norm and the output head's input."""
        ops = self.ops(tensor for tensor in self.model.outside if tensor.role == "head")
        value = ops.tape.tensor(self.workload.seq_len, self.model.hidden_size, ops.itemsize, "last hidden state")
        output = norm(ops, self.code(self.model.blocks[-1]).norm, value)
        if self.model.vocab_size and (ops.trains or self.zero3):
            ops.tape.apply("logits", (output,), width=1, saves=(output,))
        return _recording(ops.tape, value, output)

    def kernel(self, attention: Attention, code: LayerCode, rows: int) -> tuple[Kernel, bool]:
        """The kernel, and whether a mask of S x S reaches it."""
        windowed = attention.window is not None and rows >= attention.window
        masked = (windowed or code.masked) and not attention.cross
        repeated = windowed or (code.heads == "copies" and attention.kv_heads > 1) or (
            max(attention.head_dim, attention.v_head_dim) > LARGEST_FUSED_HEAD)
        kernel = attention_kernel(
            self.workload, attention, offered=code.kernels, masked=masked,
            grouped=attention.kv_heads < attention.heads and not repeated, compute_capability=self.compute_capability)
        if kernel == "eager":
            return kernel, attention.causal
        return kernel, masked and kernel != "flash"

    def mask(self, ops: Ops, kernel: Kernel, rows: int) -> Value:
        """Shared by all layers: of booleans for sdpa, one for all samples; of the scores' type for eager, one per sample."""
        eager = kernel == "eager"
        return ops.tape.tensor(rows, rows, ops.itemsize if eager else 1, "mask", needs_grad=False, fixed=not eager,
                               outer=True)


def _recording(tape: Tape, value: Value, output: Value) -> _Recording:
    return _Recording(tape.saved(), Size(value.size, 0), frontier(tape.forward_moments()),
                      frontier(tape.backward_moments(output)))


def _saved_parts(model: ModelShape, block: Block, workload: Workload, saved: Iterable[Storage]) -> list[_Part]:
    """What `block` saves, by part of the layer, with every tensor in the formula."""
    groups: dict[str, list[Storage]] = {}
    for storage in saved:
        groups.setdefault(storage.part, []).append(storage)
    rows = (model.encoder_len(workload.seq_len) if block.stack == 'encoder' else workload.seq_len)
    return [_part(f"{block.stack} {name}", storages, block.count, rows) for name, storages in groups.items()]


def _part(name: str, storages: Sequence[Storage], count: int, rows: int) -> _Part:
    tokens = " + ".join(f"{storage.size / rows:g} {storage.label}" for storage in storages if not storage.fixed)
    return _Part(name, total(storages).times(count), f"L B S ({tokens}), bytes per token", (("L", count), ("S", rows)))


def _inputs_part(model: ModelShape, block: Block, workload: Workload, size: Size) -> _Part:
    return _Part(f"{block.stack} layer inputs", size.times(block.count), "L B S H w", (
        ("L", block.count), ("S", (model.encoder_len(workload.seq_len) if block.stack == 'encoder' else workload.seq_len)), ("H", model.hidden_size),
        ("w", workload.weight_bytes)))


def _shared_parts(scene: _Scene) -> list[_Part]:
    """What the layers share: rotary tables, masks, the embedding's output where it is not the first layer's input."""
    model, item, rows = scene.model, scene.workload.weight_bytes, scene.workload.seq_len
    parts = []
    rotary = next((block.attention for block in model.blocks if block.attention.rotary), None)
    if rotary is not None:
        width = rotary.rope_head_dim or rotary.head_dim
        parts.append(_Part("rotary tables", Size(0, 2 * rows * width * item), "2 S D w",
                           (("S", rows), ("D", width), ("w", item))))
    if scene.checkpointing:
        # Layers hold their mask for the recomputation; without checkpointing it is gone with the forward pass.
        kinds = {(scene.kernel(block.attention, scene.code(block), scene.rows(block)), block.attention.window is None,
                  scene.rows(block)) for block in model.blocks}
        for (kernel, masked), _, length in kinds:
            if masked:
                size = Size(length * length * item, 0) if kernel == "eager" else Size(0, length * length)
                parts.append(_Part("attention mask", size, "B S S w" if kernel == "eager" else "S S",
                                   (("S", length), ("w", item))))
        if scene.workload.method != "full" and scene.code(model.blocks[0]).summed_input:
            parts.append(_Part("embedding output", Size(rows * model.hidden_size * item, 0), "B S H w",
                               (("S", rows), ("H", model.hidden_size), ("w", item))))
    return parts
