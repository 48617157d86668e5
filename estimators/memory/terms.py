"""Building memory terms without the ones that are empty."""

from __future__ import annotations

from ..estimate import MemoryTerm


def term(name: str, size_bytes: float, formula: str, source: str, **inputs: float) -> tuple[MemoryTerm, ...]:
    """A one-element tuple, or an empty one for zero bytes, so that terms add up with `+`."""
    if not size_bytes:
        return ()
    return (
        MemoryTerm(name=name, size_bytes=int(size_bytes), formula=formula, inputs=tuple(inputs.items()), source=source),
    )
