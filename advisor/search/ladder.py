"""The search: every rung, with and without checkpointing, at every batch shape."""

from __future__ import annotations

from ...estimators.estimate_plan import estimate_plan
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import RUNGS, Plan
from ...estimators.workload import Workload
from ..gc_pause import collector_paused
from ..question.question import Question
from .candidate import Candidate, LadderStep
from .choice import best_of_rung
from .fit import LEAST, fit_of
from .search_space import candidates_of


@collector_paused()
def predict_all(question: Question) -> tuple[tuple[LadderStep, ...], tuple[Candidate, ...]]:
    """Predict every candidate; return the ladder (each rung's best) and all candidates."""
    least = LEAST[question.risk]
    ladder, everything = [], []
    for rung in RUNGS:
        candidates, obstacle = candidates_of(rung, question)
        everything += candidates
        best = best_of_rung(candidates, least)
        if best is None:
            ladder.append(LadderStep(rung=rung, candidate=None, taken=False, reason=obstacle))
        else:
            ladder.append(LadderStep.of(rung, best, least))
    return tuple(ladder), tuple(everything)


def predict(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Candidate:
    """A plan with what it needs and takes, judged."""
    estimate = estimate_plan(model, workload, cluster, plan)
    return Candidate.of(estimate, fit_of(estimate.memory, cluster, workload))
