"""Where the nodes are: a hostfile, a Slurm allocation, or an address that all of them know."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...ds_configs.launch_commands import PORT, Launcher, Rendezvous, read_hostfile
from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...probes.real_run.job import Device
from ..question.cluster import cluster_here, cluster_of, counts_in, join_nodes


def equal_nodes(hostfile: Path) -> tuple[int, int]:
    """(nodes, GPUs of each) by a hostfile. Raises ConfigFileError, and ClusterError for nodes of different sizes."""
    slots = read_hostfile(hostfile)
    gpus, *others = sorted(set(slots.values()))
    if others or not gpus:
        raise ClusterError(
            f"{hostfile} names nodes {'with different numbers of GPUs' if others else 'without GPUs'}",
            why="the plan is for equal nodes",
            fix="give every node the same slots",
        )
    return len(slots), gpus


def slurm_rendezvous(port: int, environment: Mapping[str, str] | None = None) -> tuple[Rendezvous, int]:
    """(how the nodes of this process's Slurm allocation meet, how many they are). Raises ClusterError outside of
    one."""
    there = os.environ if environment is None else environment
    nodes, listed, job = (there.get(f"SLURM_JOB_{name}", "") for name in ("NUM_NODES", "NODELIST", "ID"))
    if not (re.fullmatch(r"\d{1,6}", nodes, flags=re.ASCII) and re.match(r"[^,\[]", listed) and job):
        raise ClusterError(
            "--slurm, but this is no Slurm allocation (SLURM_JOB_ID is not set)",
            why="srun starts the nodes of one",
            fix="start it with sbatch or inside salloc",
        )
    return Rendezvous(kind="slurm", address=first_host(listed), port=port, job=job), int(nodes)


def first_host(listed: str) -> str:
    """The first of Slurm's compressed list: `gpu[003-007,9],login` is gpu003."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?([^,\[\]-]*)?", listed)
    assert match is not None, "a node list begins with a name"
    return match[1] + (match[2] or "")


def static_rendezvous(master: str, node_rank: int) -> Rendezvous:
    """From `--master ADDRESS[:PORT] --node-rank R`. Raises ClusterError for a port that is none."""
    address, colon, port = master.rpartition(":") if not master.endswith("]") else (master, "", "")
    if not colon:
        address, port = master, str(PORT)
    if not (address and re.fullmatch(r"\d{1,5}", port, flags=re.ASCII) and 0 < int(port) < 65536):
        raise ClusterError(
            f"--master {master[:60]!r} is no address",
            why="all nodes meet there",
            fix="write the first node's name or address, and a port if you like: node-0:29500",
        )
    return Rendezvous(kind="static", address=address.strip("[]"), port=int(port), node_rank=str(node_rank))


def launcher_for(rendezvous: Rendezvous | None, wanted: Launcher | None) -> Launcher | None:
    """The launcher that is wanted, or that this meeting needs, None where any does. Raises ClusterError where another
    was asked for."""
    if rendezvous is None:
        return wanted
    needed: dict[str, tuple[Launcher, ...]] = {
        "hostfile": ("deepspeed",),
        "slurm": ("torchrun",),
        "static": ("torchrun", "accelerate"),
    }
    able = needed[rendezvous.kind]
    if wanted is not None and wanted not in able:
        raise ClusterError(
            f"--launcher {wanted} does not start nodes this way",
            why=f"of the three, {' and '.join(able)} {'does' if len(able) == 1 else 'do'}",
            fix=f"pass --launcher {able[0]}",
        )
    return wanted or (able[0] if len(able) == 1 else None)


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
        options = {"gpus": self.gpus, "device": self.device, "ranks": self.ranks}
        here = self.starts and self.hostfile is None and not self.slurm  # else this may be a node without GPUs
        cluster = cluster_here(options) if here else cluster_of(options)
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
