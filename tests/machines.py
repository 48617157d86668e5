"""Machines that tests run on paper."""

from __future__ import annotations

from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.hardware.gpus import find_gpu


def h100s(count: int) -> Cluster:
    """So many H100 in one node."""
    return Cluster(nodes=1, gpus_per_node=count, gpu=find_gpu("H100-80GB-SXM"))
