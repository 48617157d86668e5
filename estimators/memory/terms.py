"""Symbols of the formulas of memory."""

from __future__ import annotations

from collections.abc import Mapping

from ..estimate import MEMORY_SYMBOLS, MemoryTerm

Terms = tuple[MemoryTerm, ...]

ON_A_NODE: Mapping[str, str] = {
    **MEMORY_SYMBOLS,
    "L": "ranks of a node",
    "p2": "rounded up to a power of two, as the page-locked allocator does",
    "states": "bytes of optimizer states",
}
"""Symbols of host memory and NVMe."""
