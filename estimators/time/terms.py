"""Terms of time, with what their symbols mean and what they leave out."""

from __future__ import annotations

from collections.abc import Mapping

from ..estimate import COMMON_SYMBOLS, TimeTerm

SYMBOLS: Mapping[str, str] = {
    **COMMON_SYMBOLS,
    "n": "micro batches of a step",
    "states": "bytes of optimizer states per master weight",
    "Pr": "trainable parameters that one rank updates",
    "Pn": "trainable parameters that one node's ranks update",
    "weights": "bytes of all weights as stage 3 gathers them",
    "bytes": "bytes moved by the operations of a micro batch, forward and backward",
    "passes": "times that all weights are gathered in a step",
    "copies": "times that a gradient is read or written on its way to the reduction and back",
    "reductions": "micro batches whose gradients are reduced",
    "d": "head size of queries and keys",
    "dv": "head size of values",
    "R": "operations per second of a matrix product of this size",
    "rows": "rows of the left matrix: tokens of a micro batch",
    "inner": "dimension that a matrix product sums over",
    "columns": "columns of the right matrix",
    "m": "bytes per master weight, and per gradient as the optimizer takes it",
    "hidden": "bytes of a micro batch's hidden states",
    "logits": "bytes of a micro batch's logits",
    "T": "ranks that split each layer",
    "h": "ranks that share a second copy of the weights",
    "ramp": "seconds until a kernel is at full speed",
    "W": "bytes per second of the GPU's memory",
    "link": "bytes per second of the slowest link between the ranks",
    "whole": "bytes of the weights that stage 3 keeps whole",
    "kernels": "kernels of the step that the host does not wait for one by one",
    "k": "seconds that a kernel occupies the GPU at least",
    "calls": "collectives of a step, for heads and tokens of a pass",
    "inputs": "bytes of all layers' inputs in a micro batch",
    "heads": "bytes of queries, keys, values and results that a rank hands to all-to-alls in a pass",
    "tokens": "bytes of tokens' copies that a rank hands to all-to-alls in a pass, to their experts and back",
    "experts": "trained parameters of the experts that a rank keeps",
    "t": "seconds to start a collective and to pass it on from rank to rank",
    "PCIe": "bytes per second between a GPU and the host",
    "host": "bytes per second that the optimizer's step on the host moves, with the threads that each rank has",
    "hosted": "share of an offloaded optimizer that is stepped on the host",
    "kept": "parameters of one rank that an offloaded optimizer steps on the GPU",
    "bucket": "gradients that are reduced at a time",
    "G": "ranks of a node",
    "all": "elements of all weights",
    "sent": "bytes of all gradients in 4 bits, with their scales",
    "near": "bytes per second of a GPU's link to the others of its node",
    "DRAM": "bytes per second of a node's memory",
    "read": "bytes per second from NVMe",
    "write": "bytes per second to NVMe",
}
_NOT_COVERED = {
    "matrix products": "GPUs that throttle or are shared",
    "elementwise operations": "fused kernels (Liger, torch.compile)",
    "weight gathering": "links shared with other jobs",
    "all-to-all of tokens": "routers that are not balanced: the rank with the most tokens sets the pace",
    "gradient reduction": "links shared with other jobs",
    "optimizer on the host": "cores taken by data loading",
}


def time_term(
    *,
    name: str,
    seconds: float,
    resource: str,
    formula: str,
    source: str,
    inputs: tuple[tuple[str, float], ...] = (),
    hidden_s: float = 0.0,
) -> TimeTerm:
    """A term that knows its symbols; that of launches is in plain words."""
    return TimeTerm(
        name=name,
        seconds=seconds,
        resource=resource,
        formula=formula,
        inputs=inputs,
        source=source,
        hidden_s=hidden_s,
        symbols={} if resource == "launch" else SYMBOLS,
        not_covered=_NOT_COVERED.get(name, ""),
    )
