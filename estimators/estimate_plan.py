"""Memory and time of a plan together."""

from __future__ import annotations

from .estimate import Estimate
from .hardware.cluster import Cluster
from .memory.plan_memory import estimate_memory
from .models.model_shape import ModelShape
from .plan import Plan
from .time.step_time import estimate_time
from .workload import Workload


def estimate_plan(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Estimate:
    """The closed forms for one plan; raises what `estimate_memory` and `estimate_time` raise."""
    return Estimate(
        plan=plan,
        memory=estimate_memory(model, workload, cluster, plan),
        time=estimate_time(model, workload, cluster, plan),
    )
