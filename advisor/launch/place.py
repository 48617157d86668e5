"""Where the ranks run: the options that say it, held against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...ds_configs.launch_commands import PORT, Rendezvous
from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...probes.real_run.job import Device
from ..question.cluster_options import ClusterOptions
from ..question.cluster_spec import counts_in, join_nodes
from .nodes import equal_nodes, slurm_rendezvous, static_rendezvous


@dataclass(frozen=True, kw_only=True)
class Place:
    """The options that say where the ranks run, and how several nodes meet."""

    gpus: str
    device: Device
    ranks: int | None
    nodes: int | None
    node_rank: int
    master: str | None
    hostfile: Path | None
    slurm: bool
    starts: bool
    """Whether ranks are to be started, not only shown."""

    def resolve(self) -> tuple[Cluster, Rendezvous | None]:
        """(the ranks, how several nodes meet). Raises ClusterError for options that contradict each other."""
        if sum((self.master is not None, self.hostfile is not None, self.slurm)) > 1:
            raise ClusterError(
                "--master, --hostfile and --slurm are three ways to the nodes",
                why="they contradict each other",
                fix="pass one of them",
            )
        options = ClusterOptions(gpus=self.gpus, device=self.device, ranks=self.ranks)
        here = self.starts and self.hostfile is None and not self.slurm  # else this may be a node without GPUs
        cluster = options.cluster_here() if here else options.cluster()
        rendezvous: Rendezvous | None = None
        if self.hostfile is not None:
            count, gpus_per_node = equal_nodes(self.hostfile)
            self._check_counts(f"hostfile {self.hostfile}", count, gpus_per_node)
            cluster = replace(cluster, nodes=count, gpus_per_node=gpus_per_node)
            rendezvous = Rendezvous(kind="hostfile", hostfile=str(self.hostfile.absolute()))
        elif self.slurm:
            rendezvous, count = slurm_rendezvous(PORT)
            self._check_counts("this Slurm allocation", count, None)
            cluster = replace(cluster, nodes=count)
        elif self.master is not None:
            rendezvous = static_rendezvous(self.master, self.node_rank)
            if self.nodes is not None:
                self._check_counts("--nodes", self.nodes, None)
            cluster = replace(cluster, nodes=self.nodes or cluster.nodes)
            if self.node_rank >= cluster.nodes:
                raise WorkloadError(
                    f"there is no node {self.node_rank} among {cluster.nodes}",
                    why="nodes count from 0",
                    fix="pass --nodes N, and --node-rank from 0 to N - 1",
                )
        elif (self.nodes or cluster.nodes) > 1:
            raise ClusterError(
                f"{self.nodes or cluster.nodes} nodes, and no word of how they meet",
                why="this starts the ranks of one",
                fix="pass --hostfile FILE, --slurm, or on every node --master ADDRESS --node-rank R",
            )
        return join_nodes(cluster), rendezvous if cluster.nodes > 1 else None

    def _check_counts(self, by: str, nodes: int, gpus_per_node: int | None) -> None:
        """Raises ClusterError where `--gpus` or `--nodes` says other counts than what the nodes are reached by."""
        said_nodes, said_gpus = counts_in(self.gpus)
        for option, said, found, unit in (
            ("--gpus", said_gpus, gpus_per_node, "GPUs a node"),
            ("--gpus", said_nodes, nodes, "nodes"),
            ("--nodes", self.nodes, nodes, "nodes"),
        ):
            if None not in (said, found) and said != found:
                raise ClusterError(
                    f"{option} says {said} {unit}, {by} {found}",
                    why="the plan would be checked on other GPUs than those that train",
                    fix="make them agree, or name only the kind, such as --gpus H100",
                )
