"""Activations saved outside the layers: embeddings, tables, masks, an encoder's output, the final norm and the head's
input."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...estimate import MEMORY_SYMBOLS
from ...models.lora import trains_head
from ...models.model_shape import Block
from ...models.program import ZERO, LayerVariant, OuterPrograms, Program, Size, Slot
from ...models.vision_parts import is_tower, trains_projector
from ...objectives import LOSSES
from .ops import Ops, norm
from .recording import LayerRecorder, PerBatchTerm, Recording, saved_term
from .saved_tensors import Value

_SYMBOLS = {
    **MEMORY_SYMBOLS,
    "D": "head size",
    "b": "bytes per element of the mask",
    "x": "bytes per sample",
    "y": "bytes for any batch size",
}

_MERGER = re.compile(r"\bvisual\.(merger|deepstack_merger_list\.\d+)\.")


def record_head(recorder: LayerRecorder) -> Recording:
    """Return the final norm and the head's input."""
    model, block = recorder.model, recorder.model.blocks[-1]
    rows = recorder.rows(block)
    ops = recorder.ops((tensor for tensor in model.outside if tensor.role == "head"), "head")
    width = recorder.workload.activation_itemsize
    value = output = ops.graph.tensor(rows, model.hidden_size, width, "last hidden state")
    if model.outer_programs is not None:
        everything = recorder.ops(model.outside, "head")._replace(graph=ops.graph)
        output = recorder.replay(everything, model.outer_programs.epilogue, block).run(value)
    else:
        output = norm(ops, recorder.variant(block).norm, output)
    adapted = any(ops.adapters.adapter_rank(tensor) for tensor in ops.weights.values())
    trained = trains_head(model, recorder.workload)
    # A loss that repeats the head's product reads its input even if the head is frozen.
    saves_input = recorder.zero3 or LOSSES[recorder.workload.loss].recomputes_head
    if (model.vocab_size or model.num_labels) and (trained or adapted or saves_input or model.num_labels):
        # Under autocast the final norm returns fp32, and the head casts it: the cast copy is what its product saves.
        output = ops.cast(output, ops.itemsize) if recorder.workload.autocasts else output
        ops.graph.apply("logits", (output,), width=1, saves=(output,), product=True)
    return Recording(ops.graph, value, output)


def shared_terms(recorder: LayerRecorder) -> list[PerBatchTerm]:
    """Return the terms that live as long as the layers."""
    outer = recorder.model.outer_programs
    if outer is None:
        return [*_tables(recorder), *_masks(recorder), *_embedding(recorder), *encoder_output_terms(recorder)]
    programs = [block.program for block in recorder.model.blocks if block.program is not None]
    # Code without fused attention receives its mask as an input of the layers.
    has_masks = not recorder.model.module and any(program.kernels for program in programs)
    masks = _masks(recorder) if has_masks else []
    return [*_layer_inputs(recorder, programs), *masks, *_prologue_terms(recorder, outer)]


def _layer_inputs(recorder: LayerRecorder, programs: Sequence[Program]) -> list[PerBatchTerm]:
    """Return rotary tables and similar inputs: with checkpointing all inputs of the layers except the hidden states,
    otherwise those that layers save. For a module: all of them, its batch and buffers."""
    tensors: dict[int, Slot] = {}
    for program in programs:
        tensors |= program.sources(saved=not (recorder.checkpointing or recorder.model.module))
    size, length, width = ZERO, recorder.workload.seq_len, recorder.workload.weight_bytes
    for slot in tensors.values():
        size = size.plus(slot.elements.at(length).times(slot.itemsize or width))
    inputs = {"x": size.per_sample, "y": size.fixed}
    return [PerBatchTerm("inputs of all layers", size, "B x + y", inputs, _SYMBOLS)] if any(size) else []


def _prologue_terms(recorder: LayerRecorder, outer: OuterPrograms) -> list[PerBatchTerm]:
    """Return the activations saved before the first layer of each stack. Checkpointing makes the embedding's output
    require a gradient (`enable_input_require_grads`), which keeps it."""
    needs_grad = recorder.checkpointing and not recorder.trains_embedding
    model, terms = recorder.model, []
    for program in outer.prologue:
        ops = recorder.ops(model.outside, "embedding")
        block = next((block for block in reversed(model.blocks) if not block.tokens), model.blocks[0])
        rows, hidden_states = recorder.rows(block), None
        if program.input >= 0:  # the output of the previous stack
            slot = program.slots[program.input]
            before = slot.elements.at(rows).per_sample // slot.width
            hidden_states = ops.graph.tensor(before, slot.width, ops.itemsize, "last hidden state")
        output = recorder.replay(ops, program, block, embedding_needs_grad=needs_grad).run(hidden_states)
        saved = [storage for storage in ops.graph.saved() if storage is not output.storage]
        if saved:
            terms.append(saved_term("embedding", saved, count=1, rows=rows))
    return terms


def _tables(recorder: LayerRecorder) -> list[PerBatchTerm]:
    rotary = next((block.attention for block in recorder.model.blocks if block.attention.rotary), None)
    if rotary is None:
        return []
    rows, item = recorder.workload.seq_len, recorder.workload.activation_itemsize
    width = rotary.rope_head_dim or rotary.head_dim
    inputs = {"S": rows, "D": width, "w": item}
    return [PerBatchTerm("rotary tables", Size(0, 2 * rows * width * item), "2 S D w", inputs, _SYMBOLS)]


def _masks(recorder: LayerRecorder) -> list[PerBatchTerm]:
    """Return the masks that checkpointed layers hold for the recomputation; otherwise masks end with the forward
    pass."""
    terms, seen = [], set()
    # Without checkpointing only attention kernels read the mask, and they are counted with their layer.
    for block in recorder.model.blocks if recorder.checkpointing else ():
        rows = recorder.rows(block)
        kernel, masked = recorder.kernel(block)
        kind = (kernel, masked, block.attention.window is None, block.stack)
        if kind in seen:
            continue
        seen.add(kind)
        if masked:
            mask = recorder.mask(recorder.ops((), "mask"), kernel, rows)
            fixed, inputs = mask.storage.fixed, {"S": rows, "b": mask.itemsize}
            size, text = (Size(0, mask.size), "S S b") if fixed else (Size(mask.size, 0), "B S S b")
            terms.append(PerBatchTerm("attention mask", size, text, inputs, _SYMBOLS))
    return terms


def _embedding(recorder: LayerRecorder) -> list[PerBatchTerm]:
    """Return what the embedding's dropout saves before the first layer of each stream."""
    model, terms = recorder.model, []
    for block in {block.stack: block for block in reversed(model.blocks)}.values():
        variant, rows = recorder.variant(block), recorder.rows(block)
        has_backward = recorder.has_backward(block)
        ops = recorder.ops((), "embedding")._replace(frozen=not has_backward)
        # Dropout saves its mask only if its input needs a gradient.
        needs_grad = has_backward and (is_tower(block) or recorder.trains_embedding or recorder.checkpointing)
        item, width = recorder.workload.activation_itemsize, model.activation_width(block)
        value = ops.graph.tensor(rows, width, item, "embedding", needs_grad=needs_grad)
        drops = variant.embedding_dropout and block.hidden_dropout > 0
        ops.dropout(value, drops)
        if saved := ops.graph.saved():
            terms.append(saved_term(f"{block.stack} embedding", saved, count=1, rows=rows))
        if (variant.summed_input or drops) and recorder.checkpointing and not recorder.trains:
            terms.append(_hidden(recorder, "embedding output", block))
    return terms


def encoder_output_terms(recorder: LayerRecorder) -> list[PerBatchTerm]:
    """Return a vision tower's final norm and its output, which the projector reads."""
    encoder = [block for block in recorder.model.blocks if block.stack == "encoder"]
    if not encoder or encoder[-1] is recorder.model.blocks[-1]:
        return []
    variant = recorder.variant(encoder[-1])
    has_backward = recorder.has_backward(encoder[-1])
    ops = recorder.ops((), "encoder output")._replace(frozen=not has_backward)
    width, rows = recorder.model.activation_width(encoder[-1]), recorder.rows(encoder[-1])
    item = recorder.workload.activation_itemsize
    value = ops.graph.tensor(rows, width, item, "last encoder state", needs_grad=has_backward)
    output = norm(ops, variant.norm, value, "encoder output")
    if mergers := [tensor for tensor in recorder.model.outside if _MERGER.search(tensor.name)]:
        _merge(recorder.ops(mergers, "merger")._replace(graph=ops.graph), value, output, variant)
    else:
        trains = is_tower(encoder[-1]) and trains_projector(recorder.model, recorder.workload)
        ops.graph.apply("keys", (output,), saves=(output,), trains=trains)
    return [saved_term("encoder output", ops.graph.saved(), count=1, rows=rows)]


def _merge(ops: Ops, value: Value, output: Value, variant: LayerVariant) -> None:
    """Add two linear layers around a GELU, after the last layer's norm, and with a norm of their own after each inner
    layer that the language model reads (transformers 5.23 qwen3_vl/modeling_qwen3_vl.py Qwen3VLVisionPatchMerger)."""
    names = [name for name, weight in ops.weights.items() if weight.linear]
    for place in range(0, len(names), 2):
        patches = output if not place else norm(ops, variant.norm, value, "normed patches")
        width = ops.weights[names[place]].in_features
        merged = Value(
            patches.rows * patches.width // width, width, patches.itemsize, patches.storage, patches.needs_grad
        )
        ops.linear(names[place + 1], ops.saves_input("activated", ops.linear(names[place], merged)))


def _hidden(recorder: LayerRecorder, name: str, block: Block) -> PerBatchTerm:
    rows, hidden, item = (
        recorder.rows(block),
        recorder.model.activation_width(block),
        recorder.workload.activation_itemsize,
    )
    return PerBatchTerm(name, Size(rows * hidden * item, 0), "B S H w", {"S": rows, "H": hidden, "w": item})


def input_term(recorder: LayerRecorder, block: Block) -> PerBatchTerm:
    """Return the inputs of a block's layers, which checkpointing keeps."""
    hidden = _hidden(recorder, f"{block.stack} layer inputs", block)
    return PerBatchTerm(hidden.name, hidden.size.times(block.count), "L B S H w", {"L": block.count, **hidden.inputs})
