"""Formulas of memory components: each is declared once, with its source, its symbols and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..estimate import COMMON_SYMBOLS, MemoryTerm

Terms = tuple[MemoryTerm, ...]

SYMBOLS: Mapping[str, str] = {
    **COMMON_SYMBOLS,
    "Pt'": "trainable parameters, padded to a multiple of 2 N (stages 1 and 2)",
    "part": "Pt' / N, one rank's part of the flat trainable parameters (stages 1 and 2)",
    "shards": "one rank's shards of the trainable tensors, each rounded up (stage 3)",
    "o": "optimizer states, bytes per master weight",
    "G": "elements of a sub-group (sub_group_size)",
    "largest": "elements of the largest trainable tensor",
    "frozen": "bytes of the frozen parameters",
}
"""Symbols that several files of this room use."""

ON_A_NODE: Mapping[str, str] = {
    **SYMBOLS,
    "L": "ranks of a node",
    "p2": "rounded up to a power of two, as the page-locked allocator does",
    "states": "bytes of optimizer states",
}
"""Symbols of host memory and NVMe."""


class Formula(NamedTuple):
    """How the bytes of a component are computed, without the numbers."""

    name: str
    text: str
    source: str
    symbols: Mapping[str, str] = SYMBOLS
    not_covered: str = ""

    def term(self, size_bytes: float, **inputs: float) -> Terms:
        """A one-element tuple, or an empty one for zero bytes, so that terms add up with `+`."""
        if not size_bytes:
            return ()
        return (
            MemoryTerm(
                name=self.name,
                size_bytes=int(size_bytes),
                formula=self.text,
                inputs=tuple(inputs.items()),
                source=self.source,
                symbols=self.symbols,
                not_covered=self.not_covered,
            ),
        )

    def on_node(self, local_ranks: int, rank_bytes: float, **inputs: float) -> Terms:
        """The term of a node, each of whose ranks takes `rank_bytes`."""
        return self.term(local_ranks * rank_bytes, L=local_ranks, **inputs)


def total_bytes(terms: Terms) -> int:
    """The sum of the terms' sizes."""
    return sum(term.size_bytes for term in terms)
