"""What PyTorch's caching allocator held in published runs, none of which used expandable segments.

The product's launch commands set `expandable_segments:True`, and `estimators.memory.device_overhead` counts on it.
Without it a segment serves only requests that fit into what is free of it, so blocks of one phase (a layer's gradients)
cannot be made of those of another (the logits). How much is lost depends on the sizes and on how much room there is:
FIXED_SEGMENTS is the median over the runs that nearly filled their GPU and whose sources print both peak allocated and
nvidia-smi.
"""

from __future__ import annotations

from ds_advise.estimators.estimate import Formula, MemoryTerm
from ds_advise.estimators.memory.device_overhead import SEGMENT_BYTES

FIXED_SEGMENTS = 0.26
"""Share of what comes and goes during a step that fixed segments waste; `memory.fitted_slack` recomputes it."""


def overhead(transient_bytes: int) -> tuple[MemoryTerm, ...]:
    """Reserved beyond allocated: one half-used segment, and a share of the bytes that come and go."""
    formula = Formula("allocator_overhead", "20 MiB + share x transient", "benchmarks/accuracy/allocator.py")
    wasted = SEGMENT_BYTES + FIXED_SEGMENTS * transient_bytes
    return formula.term(wasted, share=FIXED_SEGMENTS, transient=transient_bytes)
