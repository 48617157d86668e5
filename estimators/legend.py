"""What the symbols of the formulas mean, and what each component leaves out; read by every explanation.

A formula is text in these symbols: products are written side by side, `min`, `max`, `sum` and `ceil` as usual. Counts
are of elements, sizes of bytes, rates of bytes or operations per second.
"""

from __future__ import annotations

import re

SYMBOLS: dict[str, str] = {
    "w": "bytes per weight in the training precision",
    "o": "optimizer states, bytes per master weight",
    "states": "optimizer states; bytes in all, in times per master weight",
    "s": "temporaries of the optimizer's step, bytes per master weight",
    "c": "bytes per logit that the loss keeps at this moment",
    "P": "parameters",
    "Pt": "trainable parameters",
    "Pt'": "trainable parameters, padded to a multiple of 2 N (stages 1 and 2)",
    "part": "Pt' / N, one rank's part of the flat trainable parameters (stages 1 and 2)",
    "shards": "one rank's shards of the trainable tensors, each rounded up (stage 3)",
    "resting": "elements of one rank's shards, frozen ones included, but for what is persistent",
    "persistent": "elements of tensors up to stage3_param_persistence_threshold",
    "alive": "elements of whole gradients that are alive at this moment",
    "copied": "elements of a bucket that are copied while it is reduced",
    "piece": "one rank's part of a gradient on its way to the host",
    "chunk": "elements of which the norm is taken at a time",
    "waiting": "fp32 elements that wait on the GPU for their way to the disk",
    "shard": "one rank's shard of the largest tensor",
    "clone": "elements of a gradient that is copied before it is reduced",
    "swapped": "elements of one rank that are swapped (1 MiB and more at a time)",
    "whole": "elements of the sub-group that is updated, whole",
    "buffer_count": "of the configuration",
    "buffer": "bytes of one buffer",
    "blocks": "bytes of pinned blocks, each tensor's rounded up to a power of two, that one rank holds",
    "kept": "bytes of whole gradients that one rank keeps until the step",
    "process": "bytes of Python, torch and CUDA's libraries in one process",
    "pages": "bytes of pages that are only partly used",
    "share": "of what comes and goes, that the allocator cannot give back",
    "max_in_cpu": "of the configuration",
    "frozen": "bytes of the frozen parameters",
    "Pr": "trainable parameters that one rank updates",
    "Pn": "trainable parameters that one node's ranks update",
    "weights": "bytes of all weights as stage 3 gathers them",
    "bytes": "moved by the operations of a micro batch, forward and backward",
    "passes": "times that all weights are gathered in a step",
    "reductions": "micro batches whose gradients are reduced",
    "N": "GPUs",
    "M": "nodes",
    "L": "layers of this kind; in host memory, ranks of a node",
    "B": "samples per micro batch",
    "S": "tokens per sample",
    "H": "hidden size",
    "V": "vocabulary size",
    "A": "attention heads",
    "D": "head size",
    "d": "head size of queries and keys",
    "dv": "head size of values",
    "n": "elements of one tensor; in times, micro batches of a step",
    "G": "elements of a sub-group (sub_group_size)",
    "p2": "rounded up to a power of two, as the page-locked allocator does",
    "largest": "elements of the largest trainable tensor",
    "slice": "elements of the largest tensor within one rank's partition",
    "gathered": "elements that are gathered from all ranks at this moment",
    "bucket": "elements of a reduction bucket (reduce_bucket_size)",
    "b": "buckets: 2 with overlap_comm",
    "transient": "bytes that come and go within a step",
    "R": "operations per second of a matrix product of this size",
    "rows": "of the left matrix: tokens of a micro batch",
    "inner": "dimension that a matrix product sums over",
    "columns": "of the right matrix",
    "ramp": "seconds until a kernel is at full speed",
    "W": "bytes per second of the GPU's memory",
    "link": "bytes per second of the slowest link between the ranks",
    "calls": "collectives of a step",
    "t": "seconds to start a collective and to pass it on from rank to rank",
    "PCIe": "bytes per second between a GPU and the host",
    "host": "bytes per second that the optimizer's step on the host moves",
    "read": "bytes per second from NVMe",
    "write": "bytes per second to NVMe",
}

_NOT_COVERED: dict[str, str] = {
    "gradients of activations": "torch.compile, and fusions that a kernel library adds",
    "allocator_overhead": "settings other than expandable_segments:True",
    "cuda_context": "kernels that a library loads later, and other processes on the GPU",
    "nccl_buffers": "NCCL_BUFFSIZE and NVLink SHARP",
    "process": "other optimizers and libraries than were measured",
    "step_temporaries": "optimizers that bring kernels of their own",
    "processes": "data loader workers, tokenized data beyond it, the page cache",
    "matrix products": "GPUs that throttle or are shared",
    "elementwise operations": "fused kernels (Liger, torch.compile)",
    "weight gathering": "links shared with other jobs",
    "gradient reduction": "links shared with other jobs",
    "optimizer on the host": "cores taken by data loading",
}


def symbols(formula: str) -> tuple[str, ...]:
    """The symbols of the legend that stand in a formula."""
    return tuple(symbol for symbol in SYMBOLS if re.search(rf"(?<![\w'.]){re.escape(symbol)}(?![\w'])", formula))


def not_covered(component: str) -> str:
    """What the component leaves out, as a phrase; empty where nothing is known."""
    return _NOT_COVERED.get(component, "")
