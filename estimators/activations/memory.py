"""Activation memory of one training step: what the forward pass keeps, the loss's peak, one layer's working set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..estimate import MemoryTerm
from ..model_shape import Attention, Block, ModelShape, Tensor
from ..workload import Workload
from .codes import layer_code
from .kernels import Kernel, attention_kernel
from .layer import Layer
from .loss import loss_terms
from .norms import norm
from .ops import Ops
from .tape import ZERO, Size, Storage, Tape, frontier, total

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
        loss_terms=loss_terms(model, workload, micro_batch_size),
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
    """One layer: what it saves, what its input is, the moments of its recomputation and of its backward pass."""

    saved: tuple[Storage, ...]
    input_size: Size
    forward: tuple[Size, ...]
    backward: tuple[Size, ...]


@lru_cache(maxsize=256)
def _layout(model: ModelShape, workload: Workload, checkpointing: bool, compute_capability: float | None,
            zero3: bool) -> _Layout:
    recordings = [_record(model, block, workload, compute_capability, zero3) for block in model.blocks]
    parts: list[_Part] = []
    per_layer = ZERO
    working: list[tuple[Size, tuple[Size, ...]]] = []
    for block, recording in zip(model.blocks, recordings, strict=True):
        everything = total(recording.saved)
        if checkpointing:
            kept = {"layer inputs": recording.input_size}
            # The recomputed forward pass runs while the gradient of the layer's output is waiting.
            moments = [*(moment.plus(recording.input_size) for moment in recording.forward),
                       *(moment.plus(everything) for moment in recording.backward)]
            working.append((everything, frontier(moments)))
            parts.append(_inputs_part(model, block, workload, recording.input_size))
            per_layer = max(per_layer, recording.input_size)
        else:
            working.append((ZERO, frontier(recording.backward)))
            parts.extend(_saved_parts(model, block, workload, recording.saved))
            per_layer = max(per_layer, everything)
    parts.extend(_outside_parts(model, workload))
    return _Layout(tuple(parts), per_layer, tuple(working))


def _stream_len(model: ModelShape, block: Block, workload: Workload) -> int:
    return model.encoder_len(workload.seq_len) if block.stack == "encoder" else workload.seq_len


def _record(model: ModelShape, block: Block, workload: Workload, compute_capability: float | None, zero3: bool) -> _Recording:
    """Run the layer on a tape."""
    code, rows, item = layer_code(model.model_type, block), _stream_len(model, block, workload), workload.weight_bytes
    weights = {tensor.name.removesuffix(".weight"): tensor for tensor in block.tensors if len(tensor.shape) == 2}
    tape = Tape("input")
    ops = Ops(tape=tape, workload=workload, itemsize=item, weights=weights, keeps_frozen_inputs=zero3)
    value = tape.tensor(rows, model.hidden_size, item, "layer input")
    windowed = block.attention.window is not None and rows >= block.attention.window
    kernel, masked = _kernel(workload, block.attention, code.kernels, windowed, compute_capability)
    mask = tape.tensor(rows, rows, 1 if kernel != "eager" else item, "mask", needs_grad=False, fixed=True,
                       outer=True) if masked else None
    memory = None
    if block.cross_attention is not None:
        memory = tape.tensor(model.encoder_len(workload.seq_len), model.hidden_size, item, "encoder output", outer=True)
    layer = Layer(ops=ops, code=code, block=block, kernel=kernel, mask=mask, memory=memory)
    if block.cross_attention is not None:
        layer.cross_kernel, _ = _kernel(workload, block.cross_attention, code.kernels, False, compute_capability)
    output = layer.forward(value)
    saved = tape.saved()
    return _Recording(saved, Size(value.size, 0), frontier(tape.forward_moments()), frontier(tape.backward_moments(output)))


def _kernel(workload: Workload, attention: Attention, offered: frozenset[str], windowed: bool,
            compute_capability: float | None) -> tuple[Kernel, bool]:
    """The kernel, and whether a mask of S x S reaches it."""
    kernel = attention_kernel(
        workload, attention, offered=offered, masked=windowed and workload.attention == "sdpa",
        grouped=attention.kv_heads < attention.heads and not windowed and max(attention.head_dim, attention.v_head_dim) <= 256,
        compute_capability=compute_capability)
    if kernel == "eager":
        return kernel, attention.causal
    return kernel, kernel != "flash" and windowed


def _saved_parts(model: ModelShape, block: Block, workload: Workload, saved: Iterable[Storage]) -> list[_Part]:
    """What `block` saves, by part of the layer, with every tensor in the formula."""
    groups: dict[str, list[Storage]] = {}
    for storage in saved:
        groups.setdefault(storage.part, []).append(storage)
    rows = _stream_len(model, block, workload)
    return [_part(f"{block.stack} {name}", storages, block.count, rows) for name, storages in groups.items()]


def _part(name: str, storages: list[Storage], count: int, rows: int) -> _Part:
    size = total(storages)
    tokens = " + ".join(f"{storage.size / rows:g} {storage.label}" for storage in storages if not storage.fixed)
    formula = f"L B S ({tokens}), bytes per token"
    return _Part(name, Size(size.per_sample * count, size.fixed * count), formula, (("L", count), ("S", rows)))


def _inputs_part(model: ModelShape, block: Block, workload: Workload, size: Size) -> _Part:
    rows = _stream_len(model, block, workload)
    return _Part(f"{block.stack} layer inputs", Size(size.per_sample * block.count, 0), "L B S H w",
                 (("L", block.count), ("S", rows), ("H", model.hidden_size), ("w", workload.weight_bytes)))


def _outside_parts(model: ModelShape, workload: Workload) -> list[_Part]:
    """Around the layers: rotary tables, the final norm and the input of the head."""
    item, rows = workload.weight_bytes, workload.seq_len
    tape = Tape("final norm and head")
    ops = Ops(tape=tape, workload=workload, itemsize=item, weights=_head(model))
    value = tape.tensor(rows, model.hidden_size, item, "last hidden state")
    value = norm(ops, layer_code(model.model_type, model.blocks[-1]).norm, value)
    if model.vocab_size:
        tape.apply("head", (value,), saves=(value,) if ops.trains else (), trains=ops.trains)
    parts = [_part(tape.part, list(tape.saved()), 1, rows)]
    rotary = next((block.attention for block in model.blocks if block.attention.rotary), None)
    if rotary is not None:
        size = 2 * rows * rotary.head_dim * item
        parts.append(_Part("rotary tables", Size(0, size), "2 S D w",
                           (("S", rows), ("D", rotary.head_dim), ("w", item))))
    return parts


def _head(model: ModelShape) -> Mapping[str, Tensor]:
    return {tensor.name.removesuffix(".weight"): tensor for tensor in model.outside if tensor.role == "head"}
