"""Memory and time of a plan together."""

from __future__ import annotations

from .cluster import Cluster
from .estimate import Estimate
from .memory import estimate_memory
from .model_shape import ModelShape
from .plan import Plan
from .throughput import estimate_time
from .workload import Workload


def estimate_plan(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Estimate:
    """The closed forms for one plan; raises what `estimate_memory` and `estimate_time` raise."""
    return Estimate(
        plan=plan,
        memory=estimate_memory(model, workload, cluster, plan),
        time=estimate_time(model, workload, cluster, plan),
    )
