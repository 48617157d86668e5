"""The largest micro batch: `--micro-batch max`."""

from __future__ import annotations

from dataclasses import replace

from ..question.question import Largest, Question
from .bisection import largest
from .fastest import any_fits

MOST = 2**20
"""Samples at which the search ends."""


def with_largest_micro_batch(question: Question) -> Question:
    """The question with the largest micro batch at which some plan may be taken; with one sample where none is.

    Memory rises with the micro batch. With a global batch those are searched that divide its part of each GPU.
    """
    if question.workload.global_batch_size is None:
        sizes: range | tuple[int, ...] = range(1, MOST + 1)
    else:
        sizes = tuple(micro for micro, _ in question.batch_shapes(question.sequence_parallel_sizes()[0]))
    fits, fails = largest(lambda index: any_fits(_of(question, sizes[index - 1])), len(sizes))
    found = Largest(
        option="micro_batch",
        value=sizes[fits - 1] if fits else None,
        too_large=sizes[fails - 1] if fails <= len(sizes) else None,
    )
    return replace(_of(question, sizes[max(fits, 1) - 1]), largest=found)


def _of(question: Question, micro_batch_size: int) -> Question:
    return replace(question, micro_batch_size=micro_batch_size)
