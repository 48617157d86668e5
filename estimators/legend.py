"""What the symbols of the formulas mean, and what each component leaves out; read by every explanation.

A formula is text in these symbols: products are written side by side, `min`, `max`, `sum` and `ceil` as usual. Counts are of
elements, sizes of bytes, rates of bytes or operations per second.
"""

from __future__ import annotations

import re

SYMBOLS: dict[str, str] = {
    "w": "bytes per weight in the training precision",
    "e": "bytes per weight in the training precision",
    "o": "optimizer states, bytes per master weight",
    "states": "optimizer states, bytes per master weight",
    "s": "temporaries of the optimizer's step, bytes per master weight",
    "c": "bytes per logit that the loss keeps at this moment",
    "P": "parameters",
    "Pt": "trainable parameters",
    "Pt'": "trainable parameters, padded to a multiple of 2 N (stages 1 and 2)",
    "Pt''": "one rank's shard of the trainable parameters, each tensor rounded up (stage 3)",
    "Pf": "frozen parameters",
    "Pq": "parameters in 4 bits",
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
    "T": "elements of the tensors that one rank's partition touches",
    "p2": "rounded up to a power of two, as the page-locked allocator does",
    "largest": "elements of the largest trainable tensor",
    "slice": "elements of the largest tensor within one rank's partition",
    "gathered": "elements that are gathered from all ranks at this moment",
    "bucket": "elements of a reduction bucket (reduce_bucket_size)",
    "b": "buckets: 2 with overlap_comm",
    "threshold": "stage3_param_persistence_threshold",
    "transient": "bytes that come and go within a step",
    "R": "operations per second of a matrix product of this size",
    "rows": "of the left matrix: tokens of a micro batch",
    "inner": "dimension that a matrix product sums over",
    "columns": "of the right matrix",
    "ramp": "seconds until a kernel is at full speed",
    "W": "bytes per second of the GPU's memory",
    "link": "bytes per second of the slowest link between the ranks",
    "PCIe": "bytes per second between a GPU and the host",
    "DRAM": "bytes per second of the host's memory",
}

_NOT_COVERED: dict[str, str] = {
    "gradients of activations": "torch.compile, and fusions that a kernel library adds",
    "allocator_overhead": "settings other than expandable_segments:True",
    "cuda_context": "kernels that a library loads later, and other processes on the GPU",
    "nccl_buffers": "NCCL_BUFFSIZE and NVLink SHARP",
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
    return tuple(symbol for symbol in SYMBOLS
                 if re.search(rf"(?<![\w'.]){re.escape(symbol)}(?![\w'])", formula))


def not_covered(component: str) -> str:
    """What the component leaves out, as a phrase; empty where nothing is known."""
    return _NOT_COVERED.get(component, "")
