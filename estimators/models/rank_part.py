"""The part of a model that one rank of a plan holds, before ZeRO shards it: split layers (AutoTP), some of the experts
(AutoEP)."""

from __future__ import annotations

from ..plan import Plan
from . import expert_parallel, tensor_parallel
from .model_shape import ModelShape


def of_rank(model: ModelShape, plan: Plan) -> ModelShape:
    """What each rank holds of a model; the model itself where that is all of it."""
    return expert_parallel.of_rank(tensor_parallel.of_rank(model, plan.autotp_size), plan.autoep_size)
