"""Bytes that recorded operations move through GPU memory outside matrix products."""

from __future__ import annotations

from .saved_tensors import AutogradGraph, Size, Value


def forward_bytes(graph: AutogradGraph) -> Size:
    """Of a forward pass. Eager PyTorch runs a kernel for each operation, which reads its inputs from memory and writes
    its result back; products and attention kernels are left to their FLOPs, a view moves nothing."""
    moved, known = [0, 0], set[int]()  # what grows with the batch, and what does not
    for node in graph.nodes:
        moved[0] += node.moves[0]
        given = {id(value.storage) for value in node.inputs}
        made = [value for value in node.outputs if id(value.storage) not in given]
        known |= given | {id(value.storage) for value in made}
        masks = [storage for storage in node.saved if id(storage) not in known and not storage.outer]
        known |= {id(storage) for storage in masks}
        if node.product:
            continue
        for value in (*node.inputs, *made) if made else ():
            moved[value.storage.fixed] += value.size
        for storage in masks:
            moved[storage.fixed] += storage.size
    return Size(*moved)


def backward_bytes(graph: AutogradGraph, output: Value) -> Size:
    """Of a backward pass: an operation reads the gradient of its output for each input that needs one, and what it
    saved, and writes the gradients; a workspace is written and read. Gradients that meet are added, which takes two
    reads and a write, also those that products make."""
    moved, arrived = [0, 0], {id(output)}
    for node in reversed(graph.nodes):
        gradients = [value for value in node.outputs if id(value) in arrived]
        if not gradients:
            continue
        moved[0] += node.moves[1]
        wanted = [value for value in node.inputs if value.needs_grad]
        if not node.product and (node.saved or not node.passes):
            # The gradient of a weight is a product of its own where it has a workspace; a fused kernel reads once.
            readers = len(wanted) + (node.trains and node.workspace.per_sample > 0)
            for value in gradients:
                moved[value.storage.fixed] += value.size * (1 if node.overwrites else readers)
            for storage in node.saved:
                moved[storage.fixed] += storage.size
            for value in wanted:
                moved[value.storage.fixed] += value.size
            moved[0] += 2 * node.workspace.per_sample
            moved[1] += 2 * node.workspace.fixed
        for value in wanted:
            if id(value) in arrived:
                moved[value.storage.fixed] += 3 * value.size
            arrived.add(id(value))
    return Size(*moved)
