"""`--device cpu --ranks N --memory SIZE`: this machine's CPU in place of GPUs."""

from __future__ import annotations

from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import Cluster
from .cluster_spec import parse_size
from .cpu_cluster import cpu_cluster

DEFAULT_RANKS = 2
"""Fewest ranks that communicate."""


def cpu_question(gpus: str, *, device: str, ranks: int | None, memory: str | None) -> tuple[Cluster, int | None]:
    """(the CPU as a cluster of `ranks`, bytes that each may take or None). Raises ClusterError for a contradiction."""
    if device != "cpu":
        raise ClusterError(
            f"{'--ranks' if ranks is not None else '--memory'} goes with --device cpu",
            why="a GPU is one rank and has its own memory",
            fix="pass --gpus, or add --device cpu",
        )
    if gpus != "auto":
        raise ClusterError(
            "--gpus says nothing about --device cpu",
            why="its ranks are processes on the host",
            fix=f"pass --ranks {DEFAULT_RANKS} in its place",
        )
    limit = None if memory is None else parse_size("--memory", memory, least=10**7, most=10**15)
    return cpu_cluster(ranks or DEFAULT_RANKS, limit), limit
