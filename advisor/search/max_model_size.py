"""The largest model of a family: `--model-size max`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...estimators.models.catalogue import family
from ...estimators.models.model_shape import ModelShape
from ..question.question import Largest, Question
from .fastest import any_fits


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
