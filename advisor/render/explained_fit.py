"""The probability that a plan fits: its formula, numbers and source, as blocks."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimators.estimate import MemoryEstimate
from ...estimators.memory.device_overhead import FIXED_SEGMENTS
from ...estimators.memory.fit_probability import (
    CPU_COVERED,
    HOST_SPREAD,
    outside_spread_bytes,
    published_error,
)
from ..answer.explanation import Explanation
from ..document.blocks import Block, Gap, Row, Sentence, Snippet, Table
from ..search.candidate import chance
from ..text.units import gib, percent

NAMES = ("probability", "fit", "chance", "fit probability", "probability that it fits")
"""Names of the probability among those of parts."""


def _overhead(memory: MemoryEstimate) -> str:
    is_uncertain = any(term.declared is FIXED_SEGMENTS for term in memory.reserved_terms)
    shares = "; in its place each measured share of the transient memory in turn" if is_uncertain else ""
    return f"A: predicted GiB of the allocator's overhead{shares}"


def fit_blocks(explanation: Explanation) -> Iterator[Block]:
    """Yield the probability that the plan fits, from its predicted needs and their errors."""
    candidate, question = explanation.candidate, explanation.question
    memory, fit = candidate.memory, candidate.fit
    yield Sentence(f"probability that it fits: {chance(fit.probability)}", "bold")
    if question is None:
        return
    cluster, error = question.cluster, published_error()
    room, limit = cluster.gpu.memory_bytes, cluster.ram_limit_bytes
    yield Sentence(f"GPU memory alone: {chance(fit.gpu_probability)}; the smaller one of GPU and host RAM counts.")
    yield Gap()
    if cluster.gpu.is_cpu:
        yield Sentence("  = P(need x (1 + E) <= limit)")
        rows = [
            (gib(memory.device_bytes_per_gpu), "need: predicted GiB of a rank"),
            (gib(room), "limit: GiB of a rank"),
            (percent(CPU_COVERED), "E: normal; 97.5 % of the probed runs are below this excess"),
        ]
    else:
        yield Sentence("  = P((1 + E) M + A + O <= memory)")
        outside = sum(term.size_bytes for term in memory.device_terms)
        spread = gib(round(outside_spread_bytes(memory.device_terms)))
        rows = [
            (gib(memory.allocated_bytes_per_gpu), "M: predicted GiB that are allocated at the peak"),
            (f"{error.scale:.4f}", f"E: scale of Student's t with {error.sources - 1} degrees of freedom, the error"),
            (percent(error.location), "E: its location"),
            (gib(sum(term.size_bytes for term in memory.reserved_terms)), _overhead(memory)),
            (gib(outside), f"O: predicted GiB outside the allocator, with a standard deviation of {spread} GiB"),
            (gib(room), "memory: GiB of the GPU"),
        ]
    if limit is not None and not cluster.gpu.is_cpu:
        rows += [
            (gib(memory.host_bytes_per_node), "GiB of RAM that a node needs"),
            (gib(limit), f"GiB of its RAM; the error's scale is {percent(HOST_SPREAD)}"),
        ]
    yield Table(["", ""], [Row([Snippet(size), words]) for size, words in rows])
    yield Gap()
    yield Sentence("Source: estimators/memory/fit_probability.py; published runs, each source counted once.", "dim")
    yield Sentence("Not covered: other processes on the GPU and on the host; NVMe.", "dim")
