"""The options that say what trains: GPUs, or this machine's CPU (`--device cpu --ranks N --memory SIZE`)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import Cluster
from .cluster_spec import parse_cluster, parse_size

DEFAULT_CPU_RANKS = 2
"""The fewest ranks that communicate."""


class ClusterOptions(NamedTuple):
    """`device` decides which of the others count: those of `parse_cluster`, or ranks and memory on the CPU."""

    gpus: str = "auto"
    ram: str | None = None
    nvme: str | None = None
    interconnect: str | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    ranks: int | None = None
    memory: str | None = None
    """What each rank on the CPU may take; None: its share of the RAM."""

    def cluster(self) -> Cluster:
        """The machines. Raises ClusterError for what is unknown or contradictory."""
        if self.device == "cuda" and self.ranks is None and self.memory is None:
            return parse_cluster(self.gpus, ram=self.ram, nvme=self.nvme, interconnect=self.interconnect)
        if self.device != "cpu":
            raise ClusterError(
                f"{'--ranks' if self.ranks is not None else '--memory'} goes with --device cpu",
                why="a GPU is one rank and has its own memory",
                fix="pass --gpus, or add --device cpu",
            )
        if self.gpus != "auto":
            raise ClusterError(
                "--gpus says nothing about --device cpu",
                why="its ranks are processes on the host",
                fix=f"pass --ranks {DEFAULT_CPU_RANKS} in its place",
            )
        from .cpu_cluster import cpu_cluster  # imported here: what knows this machine is of no use to most questions

        return cpu_cluster(self.ranks or DEFAULT_CPU_RANKS, self.memory_limit_bytes)

    def cluster_here(self, *, devices: int | None = None) -> Cluster:
        """The machines as `cluster` has them, whose ranks are to run on this one.

        devices: how many of the ranks do, where it is not a whole node's.

        Raises ClusterError also where this machine lacks the GPUs, before anything is started on them.
        """
        if self.device == "cpu" or self.ranks is not None or self.memory is not None:
            return self.cluster()
        from ...probes.this_machine import check_gpus

        check_gpus(devices or 1)  # first: `cluster` would advise to describe GPUs, which does not make them
        cluster = self.cluster()
        check_gpus(devices or cluster.gpus_per_node)
        return cluster

    @property
    def memory_limit_bytes(self) -> int | None:
        """What each rank on the CPU may take, None without a limit."""
        return None if self.memory is None else parse_size("--memory", self.memory, least=10**7, most=10**15)
