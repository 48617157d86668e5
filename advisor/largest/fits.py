"""Whether any plan may be recommended, without the search for the fastest."""

from __future__ import annotations

from dataclasses import replace

from ...estimators.plan import RUNGS
from ..question.question import Question
from ..recommend.search import candidates_of


def any_fits(question: Question) -> bool:
    """Whether some rung has a plan that fits as surely as the question's risk asks.

    Memory rises with the micro batch, so where the search may choose it one sample decides. The last rungs need least
    of the GPU and are asked first.
    """
    least = question if question.micro_batch_size is not None else replace(question, micro_batch_size=1)
    return any(candidates_of(rung, least, only_fitting=True)[0] for rung in reversed(RUNGS))
