"""The objectives, methods and models under which an option of a question is possible and has an effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...estimators.models.model_shape import ModelShape
from ...estimators.models.vision_parts import select_parts
from ...estimators.objectives import OBJECTIVES, ObjectiveSpec
from ...estimators.workload import Objective
from .option import Option
from .options import OPTIONS, names_in
from .rollout_options import RolloutOptions


def effective_objectives(name: str) -> tuple[Objective, ...]:
    """The objectives in which an option has an effect; under the others it is refused or ignored. The training methods
    are those of its declaration (`Option.methods`)."""
    return tuple(objective for objective, spec in OBJECTIVES.items() if _has_effect(name, spec))


def _has_effect(name: str, spec: ObjectiveSpec) -> bool:
    if name in names_in(RolloutOptions):
        return spec.rollouts is not None and name not in spec.lacks
    if name == "precompute_ref_log_probs":
        return spec.reference_passes > 0
    # The metrics of TRL's trainers are computed batch by batch.
    return name != "eval_logits" or not spec.trainer


def warnings_of_method(options: Iterable[Option], method: str) -> Iterator[str]:
    """Yield a warning for each of these options that has no effect with a training method."""
    for option in options:
        if option.methods and method not in option.methods:
            yield f"{option.flag} has no effect with --method {method}"


def impossible_words(name: str) -> dict[Objective, list[str]]:
    """Return the words of an option that an objective refuses, by objective; empty for an option that has none."""
    if name != "loss":
        return {}
    words = [word for word in OPTIONS[name].choices if word != "auto"]
    return {
        objective: refused
        for objective, spec in OBJECTIVES.items()
        if (refused := [word for word in words if word not in spec.losses])
    }


def impossible_options(model: ModelShape) -> frozenset[str]:
    """Return the options that are refused or have no effect with a model, whatever the other options are."""
    lacking = {
        "images_per_sample": model.image is None,
        "max_pixels": model.image is None or not model.image.resized,
        "freeze": not select_parts(model, ["vision-tower"]),  # of a text model only all of it could be frozen
        "experts": not model.is_moe,
    }
    return frozenset(name for name, is_lacking in lacking.items() if is_lacking)
