"""The largest number that holds, where what holds of a number holds of every smaller one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import lcm

from ...estimators.models.catalogue import family
from ...estimators.models.model_shape import ModelShape
from ..question.question import Largest, Question
from .search import any_fits


def largest(holds: Callable[[int], bool], most: int, *, parts: int = 0) -> tuple[int, int]:
    """(the largest number found that holds, the smallest found that does not) of 1 to `most`.

    Numbers are doubled until one does not hold, and the gap is halved until nothing is left between, or less than one
    part in `parts` of the lower end. Where none holds the answer is (0, 1), where all do (most, most + 1). The same
    numbers are tried whatever is asked about, so that an answer can only rise where more holds. log2(most) tries twice.
    """
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > max(1, low // parts if parts else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


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


def of_largest_model(name: str, question_of: Callable[[ModelShape], Question]) -> Question:
    """The question about the model of a family that has the most parameters and of which some plan may be taken; about
    the smallest where none may.

    question_of: asks about one of them. All are tried from the largest down: what a model needs follows from more than
    its parameters, so a larger one may fit where a smaller one does not.

    Raises UnknownModelError for a name that is no family of the catalogue, and what `question_of` raises.
    """
    too_large: ModelShape | None = None
    for model in reversed(family(name)):
        question = question_of(model)
        if any_fits(question):
            return replace(question, largest=_found(model, too_large))
        too_large = model
    return replace(question, largest=_found(None, too_large))


def _found(model: ModelShape | None, too_large: ModelShape | None) -> Largest:
    return Largest(
        option="model_size",
        value=None if model is None else model.name,
        too_large=None if too_large is None else too_large.name,
    )
