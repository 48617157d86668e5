"""The longest sequence: `--seq-len max`."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from ..question.question import Largest, Question
from .bisection import largest
from .fastest import any_fits

STEP = 1024
"""Tokens; the longest sequence is a multiple, which heads and GPUs that share samples divide."""

SHORT_STEP = 128
"""Tokens; the same where not even `STEP` fits."""

LONGEST = 2**26
"""Tokens at which the search ends: four times what anybody is known to have trained on."""

PARTS = 64
"""The longest sequence is found to one part in so many, or to a step: memory is not known better."""


def with_longest_sequence(question: Question) -> Question:
    """The question with the longest sequence at which some plan may be taken; with the shortest tried where none is.

    Memory rises with the sequence. Rotary positions set no limit, although a model may have been trained for fewer;
    learned ones do. Where the number of GPUs is no power of two, lengths that any of them can share are searched apart.
    """
    model, ranks = question.model, question.cluster.world_size
    most = model.fixed_len or (model.max_positions if model.has_learned_positions else None)
    if most is not None and any_fits(_of_length(question, most)):
        return replace(_of_length(question, most), largest=Largest(option="seq_len", value=most, too_large=None))
    if model.fixed_len is not None:
        return replace(question, largest=Largest(option="seq_len", value=None, too_large=model.fixed_len))
    limit = most or LONGEST
    length, too_long = max(_searched(question, step, limit) for step in {STEP, lcm(STEP, ranks)})
    if not length:
        length, too_long = _searched(question, SHORT_STEP, min(limit, STEP))
    found = Largest(option="seq_len", value=length or None, too_large=too_long)
    return replace(_of_length(question, length or min(limit, SHORT_STEP)), largest=found)


def _searched(question: Question, step: int, limit: int) -> tuple[int, int]:
    """(the longest multiple of the step that fits, a longer one that does not); (0, the step) where none does."""
    fits, fails = largest(lambda steps: any_fits(_of_length(question, steps * step)), limit // step, parts=PARTS)
    return fits * step, min(limit, fails * step)


def _of_length(question: Question, seq_len: int) -> Question:
    return replace(question, workload=replace(question.workload, seq_len=seq_len))
