"""What a machine costs by the hour."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..hardware.cluster import Cluster

HOUR_S = 3600.0


class Price(NamedTuple):
    """So much an hour for each GPU, or each node."""

    per_hour: float
    unit: Literal["gpu", "node"] = "gpu"
    currency: str = ""
    """The sign before the figure ("$"), "" where none was said."""

    def cost(self, cluster: Cluster, duration_s: float) -> float:
        """per_hour x hours x GPUs (or nodes), in the price's currency; begun hours count by the second."""
        machines = cluster.world_size if self.unit == "gpu" else cluster.nodes
        return self.per_hour * machines * duration_s / HOUR_S
