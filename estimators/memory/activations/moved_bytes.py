"""Bytes that the passes of recorded operations move through GPU memory, outside matrix products."""

from __future__ import annotations

from ...models.program import Size
from .saved_tensors import AutogradGraph, Value


def forward_bytes(graph: AutogradGraph) -> Size:
    """Bytes of a forward pass through GPU memory. Eager PyTorch runs a kernel per operation, which reads its inputs and
    writes its result; products and attention kernels are left to their FLOPs, a view moves nothing."""
    moved, known = [0, 0], set[int]()  # what grows with the batch, and what does not
    for node in graph.unrolled():
        moved[0] += node.moves[0]
        given = {id(value.storage) for value in node.inputs}
        made = [value for value in node.outputs if id(value.storage) not in given]
        known |= given | {id(value.storage) for value in made}
        masks = [storage for storage in node.saved if id(storage) not in known and not storage.outer]
        known |= {id(storage) for storage in masks}
        if node.product:
            continue
        for value in (*node.inputs, *made) if made else ():
            moved[value.storage.fixed] += value.size * node.times
        for storage in masks:
            moved[storage.fixed] += storage.size
    return Size(*moved)


def backward_bytes(graph: AutogradGraph, output: Value) -> Size:
    """Bytes of a backward pass: an operation reads its output's gradient once per input that needs one, and what it
    saved, and writes the gradients; a workspace is written and read. Gradients of one tensor are added: two reads and a
    write."""
    moved, arrived = [0, 0], {id(output)}
    for node in reversed([*graph.unrolled()]):
        gradients = [value for value in node.outputs if id(value) in arrived]
        if not gradients:
            continue
        moved[0] += node.moves[1]
        wanted = [value for value in node.inputs if value.needs_grad]
        if not node.product and (node.saved or not node.passes):
            # The gradient of a weight is a product of its own where it has a workspace; a fused kernel reads once.
            readers = len(wanted) + (node.trains and node.workspace.per_sample > 0)
            for value in gradients:
                moved[value.storage.fixed] += value.size * node.times * (1 if node.overwrites else readers)
            for storage in node.saved:
                moved[storage.fixed] += storage.size
            for value in wanted:
                moved[value.storage.fixed] += value.size * node.times
            moved[0] += 2 * node.workspace.per_sample * node.times
            moved[1] += 2 * node.workspace.fixed * node.times
        for value in wanted:
            if id(value) in arrived:
                moved[value.storage.fixed] += 3 * value.size * node.times
            arrived.add(id(value))
    return Size(*moved)
