"""What is saved outside the layers: embeddings, tables, masks, an encoder's output, the final norm and the head's
input."""

from __future__ import annotations

from typing import NamedTuple

from ...estimate import MEMORY_SYMBOLS
from ...models.lora import trains_head
from ...models.model_shape import Block
from .feed_forward import activate
from .linear_terms import LinearTerm, saved_term
from .norms import norm
from .recording import LayerRecorder, Recording
from .saved_tensors import Size

_SYMBOLS = {
    **MEMORY_SYMBOLS,
    "D": "head size",
    "Se": "tokens of the encoder per sample",
    "b": "bytes per element of the mask",
}


class End(NamedTuple):
    """The end of the model, which is back-propagated before any layer."""

    recording: Recording
    term: LinearTerm


def end(recorder: LayerRecorder) -> End:
    """The final norm, a masked language model's transform (dense, activation, norm), and the input of the head."""
    model, block = recorder.model, recorder.model.blocks[-1]
    rows, variant = recorder.rows(block), recorder.variant(block)
    ops = recorder.ops((tensor for tensor in model.outside if tensor.role == "head"), "head")
    value = output = ops.graph.tensor(rows, model.hidden_size, ops.itemsize, "last hidden state")
    if variant.layout != "post":
        output = norm(ops, variant.norm, output)
        output = ops.dropout(output, variant.relative and block.hidden_dropout)
    elif model.vocab_size:
        saves = (output,) if ops.trains else ()
        output = ops.graph.apply("transform", (output,), saves=saves, trains=ops.trains, product=True)
        output = norm(ops, variant.norm, activate(ops, block.feed_forward.activation, output))
    adapted = any(ops.adapters.rank_of(tensor) for tensor in ops.weights.values())
    trained = trains_head(model, recorder.workload)
    kept = recorder.zero3 or recorder.workload.loss == "tiled"  # tiled compute keeps its input whatever trains
    if (model.vocab_size or model.num_labels) and (trained or adapted or kept or model.num_labels):
        ops.graph.apply("logits", (output,), width=1, saves=(output,), product=True)
    recording = Recording(ops.graph, value, output)
    return End(recording, saved_term("final norm and head input", recording.saved, count=1, rows=rows))


def shared_terms(recorder: LayerRecorder) -> list[LinearTerm]:
    """What lives as long as the layers do."""
    return [*_tables(recorder), *_masks(recorder), *_embedding(recorder), *encoder_output_terms(recorder)]


def _tables(recorder: LayerRecorder) -> list[LinearTerm]:
    """cos and sin, shared by all samples and layers."""
    rotary = next((block.attention for block in recorder.model.blocks if block.attention.rotary), None)
    if rotary is None:
        return []
    rows, item = recorder.workload.seq_len, recorder.workload.weight_bytes
    width = rotary.rope_head_dim or rotary.head_dim
    inputs = {"S": rows, "D": width, "w": item}
    return [LinearTerm("rotary tables", Size(0, 2 * rows * width * item), "2 S D w", inputs, _SYMBOLS)]


def _masks(recorder: LayerRecorder) -> list[LinearTerm]:
    """Checkpointed layers hold their masks for the recomputation; otherwise they are gone with the forward pass.

    Relative positions (T5) are saved by the kernel in any case, a decoder's with the causal mask in every layer.
    """
    item, terms, seen = recorder.workload.weight_bytes, [], set()
    for block in recorder.model.blocks:
        rows, heads = recorder.rows(block), block.attention.heads
        kernel, masked = recorder.kernel(block.attention, recorder.variant(block), rows)
        kind = (kernel, masked, block.attention.window is None, block.stack)
        if kind in seen:
            continue
        seen.add(kind)
        inputs: dict[str, float] = {"S": rows, "w": item, "A": heads}
        if masked and recorder.checkpointing:
            mask = recorder.mask(recorder.ops((), "mask"), recorder.variant(block), kernel, rows)
            fixed = mask.storage.fixed
            size, text = (Size(0, mask.size), "S S") if fixed else (Size(mask.size, 0), "B S S b")
            terms.append(LinearTerm("attention mask", size, text, inputs | {"b": mask.itemsize}, _SYMBOLS))
        if not recorder.variant(block).relative:
            continue
        if block.stack == "encoder" or recorder.checkpointing:
            size = Size(0, heads * rows * rows * item)
            terms.append(LinearTerm(f"{block.stack} position bias", size, "A S S w", inputs))
        if recorder.checkpointing and block.cross_attention is not None:
            keys = recorder.encoder_rows
            size, inputs_of_both = Size(0, heads * rows * keys * item), inputs | {"Se": keys}
            terms.append(LinearTerm("cross-attention position bias", size, "A S Se w", inputs_of_both, _SYMBOLS))
        if recorder.trains and not recorder.checkpointing:
            terms.append(LinearTerm(f"{block.stack} position buckets", Size(0, 8 * rows * rows), "8 S S", inputs))
    return terms


def _embedding(recorder: LayerRecorder) -> list[LinearTerm]:
    """What the embedding's norm, dropout and convolutions save before the first layer of each stream."""
    model, terms = recorder.model, []
    for block in {block.stack: block for block in reversed(model.blocks)}.values():
        variant, rows = recorder.variant(block), recorder.rows(block)
        ops = recorder.ops((), "embedding")
        convolved = model.model_type == "whisper" and block.stack == "encoder"
        needs_grad = recorder.trains_embedding or recorder.checkpointing
        value = ops.graph.tensor(rows, model.stream_width(block), ops.itemsize, "embedding", needs_grad=needs_grad)
        if convolved:
            # Two convolutions, the second of stride 2, each with a GELU that saves what it is given.
            value = ops.graph.apply("convolved", (value,), rows=2 * rows)
            value = activate(ops, "gelu", value)
            value = ops.graph.apply("convolved", (value,), rows=rows, saves=(value,))
            value = ops.scale(activate(ops, "gelu", value), "embedding")
        if variant.embedding_norm:
            value = norm(ops, variant.norm, value)
        drops = variant.embedding_dropout and block.hidden_dropout > 0
        ops.dropout(value, drops)
        if saved := ops.graph.saved():
            terms.append(saved_term(f"{block.stack} embedding", saved, count=1, rows=rows))
        if (variant.summed_input or drops) and recorder.checkpointing and not recorder.trains:
            terms.append(_hidden(recorder, "embedding output", block))
    return terms


def encoder_output_terms(recorder: LayerRecorder) -> list[LinearTerm]:
    """An encoder's final norm and the output that every cross-attention reads; of CLIP's, one token goes on."""
    if recorder.model.model_type == "clip":
        return []
    encoder = [block for block in recorder.model.blocks if block.stack == "encoder"]
    if not encoder or encoder[-1] is recorder.model.blocks[-1]:
        return []
    variant = recorder.variant(encoder[-1])
    ops = recorder.ops((), "encoder output")
    width = recorder.model.stream_width(encoder[-1])
    value = ops.graph.tensor(recorder.encoder_rows, width, ops.itemsize, "last encoder state")
    output = norm(ops, variant.norm, value, "encoder output")
    output = ops.dropout(output, variant.relative and encoder[-1].hidden_dropout)
    ops.graph.apply("keys", (output,), saves=(output,))
    return [saved_term("encoder output", ops.graph.saved(), count=1, rows=recorder.encoder_rows)]


def _hidden(recorder: LayerRecorder, name: str, block: Block) -> LinearTerm:
    rows, hidden, item = recorder.rows(block), recorder.model.stream_width(block), recorder.workload.weight_bytes
    return LinearTerm(name, Size(rows * hidden * item, 0), "B S H w", {"S": rows, "H": hidden, "w": item})


def input_term(recorder: LayerRecorder, block: Block) -> LinearTerm:
    """What checkpointing keeps of `block`: the input of each of its layers."""
    hidden = _hidden(recorder, f"{block.stack} layer inputs", block)
    return LinearTerm(hidden.name, hidden.size.times(block.count), "L B S H w", {"L": block.count, **hidden.inputs})
