"""The objectives under which an option of a question is possible and has an effect."""

from __future__ import annotations

from ...estimators.objectives import OBJECTIVES, ObjectiveSpec
from ...estimators.workload import Objective
from .options import RolloutOptions, names_in


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
