"""The largest micro batch or sequence for which a plan may be recommended (`--micro-batch max`, `--seq-len max`).

Memory rises with both, so they are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm

from ...estimators.plan import PlainPyTorch, Strategy
from ..question.question import Largest, Question
from .search import any_fits

LARGEST_MICRO_BATCH = 2**20
"""Micro batch at which the search ends."""

STEP = 1024
"""Tokens. The longest sequence is a multiple of this, which heads and GPUs that share samples divide."""

SHORT_STEP = 128
"""Tokens; replaces `STEP` if not even `STEP` fits."""

LONGEST = 2**26
"""Sequence length in tokens at which the search ends: four times the longest known in training."""

PARTS = 64
"""Resolution of the longest sequence, one part in 64 or one step: memory is not predicted more precisely."""


def largest(holds: Callable[[int], bool], most: int, *, parts: int = 0) -> tuple[int, int]:
    """Return (the largest number found for which `holds` is true, the smallest found for which it is false) in 1 to
    `most`.

    `holds` must be monotonic: true for every number below one for which it is true. Numbers are doubled until it is
    false; the gap is then halved until it is 1, or less than the lower end / `parts`. The result is (0, 1) if it is
    never true, and (most, most + 1) if it is always true. The numbers tried form a fixed grid, so the answer is
    monotonic in the property. At most 2 log2(most) calls.
    """
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > max(1, low // parts if parts else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def largest_micro_batch_question(question: Question, only: Strategy | PlainPyTorch | None = None) -> Question:
    """Return the question with the largest micro batch that fits, or one sample if none does. only: as for `any_fits`.

    With a global batch, the search covers the divisors of each GPU's part.
    """

    def resized(size: int) -> Question:
        return replace(question, micro_batch_size=size)

    sizes: Sequence[int] = range(1, LARGEST_MICRO_BATCH + 1)
    if question.workload.global_batch_size is not None:
        sizes = [micro for micro, _ in question.batch_shapes(question.sequence_parallel_sizes()[0])]
    fits, fails = largest(lambda index: any_fits(resized(sizes[index - 1]), only), len(sizes))
    found = Largest(
        option="micro_batch",
        value=sizes[fits - 1] if fits else None,
        too_large=sizes[fails - 1] if fails <= len(sizes) else None,
    )
    return replace(resized(sizes[max(fits, 1) - 1]), largest=found)


def longest_sequence_question(question: Question, only: Strategy | PlainPyTorch | None = None) -> Question:
    """Return the question with the longest sequence that fits, or the shortest tried if none does. only: as for
    `any_fits`.

    Learned positions limit the sequence, rotary positions do not, although a model may have been trained for fewer. If
    the number of GPUs is not a power of two, lengths that any number of GPUs can share are searched separately.
    """

    def at_length(seq_len: int) -> Question:
        return replace(question, workload=replace(question.workload, seq_len=seq_len))

    def searched(step: int, limit: int) -> tuple[int, int]:
        """Return (the longest multiple of the step that fits, or 0; a longer one that does not)."""
        fits, fails = largest(lambda steps: any_fits(at_length(steps * step), only), limit // step, parts=PARTS)
        return fits * step, min(limit, fails * step)

    model = question.model
    most = model.fixed_len or (model.max_positions if model.has_learned_positions else None)
    if most is not None and any_fits(at_length(most), only):
        return replace(at_length(most), largest=Largest(option="seq_len", value=most, too_large=None))
    if model.fixed_len is not None:
        return replace(question, largest=Largest(option="seq_len", value=None, too_large=model.fixed_len))
    limit = most or LONGEST
    # With a power of two of GPUs both steps are equal, and a set searches once.
    length, too_long = max(searched(step, limit) for step in {STEP, lcm(STEP, question.cluster.world_size)})
    if not length:
        length, too_long = searched(SHORT_STEP, min(limit, STEP))
    found = Largest(option="seq_len", value=length or None, too_large=too_long)
    return replace(at_length(length or min(limit, SHORT_STEP)), largest=found)
