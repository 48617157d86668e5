"""The nodes of a launch, their ranks, and their rendezvous."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import IN_ALLOCATION, PORT, Launcher, Rendezvous, read_hostfile, slurm_port
from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.hardware import Cluster
from ...probes.command.processes import Processes, read_processes
from ...probes.command.training_command import TrainingCommand
from ...probes.machine import ON_CPU
from ...probes.run import Device
from ..question.cluster import MOST_CPU_RANKS, build_cluster, cluster_here
from ..question.gpu_text import MOST_GPUS_PER_NODE, MOST_NODES, counts_in
from ..text.units import counted_noun

_LAUNCHERS: dict[str, tuple[Launcher, ...]] = {
    "hostfile": ("deepspeed",),
    "slurm": ("torchrun",),
    "static": ("torchrun", "accelerate"),
}
"""Launchers that support each kind of rendezvous."""


def resolve_place(
    *,
    gpus: str,
    device: Device,
    ranks: int | None,
    nodes: int | None,
    node_rank: int,
    master: str | None,
    hostfile: Path | None,
    slurm: bool,
    starts: bool,
) -> tuple[Cluster, Rendezvous | None]:
    """(the cluster of the ranks, the rendezvous of several nodes) from the options with these names. starts: whether
    ranks will be started, not only shown. Raises ClusterError for contradictory options."""
    if sum((master is not None, hostfile is not None, slurm)) > 1:
        raise ClusterError(
            "--master, --hostfile and --slurm are alternatives", why="each selects the nodes", fix="pass one of them"
        )
    options = {"gpus": gpus, "device": device, "ranks": ranks}
    here = starts and hostfile is None and not slurm  # otherwise this may be a node without GPUs
    cluster = cluster_here(options) if here else build_cluster(options)
    rendezvous: Rendezvous | None = None
    if hostfile is not None:
        count, gpus_per_node = equal_nodes(hostfile)
        _check_counts(gpus, nodes, f"hostfile {hostfile}", count, gpus_per_node)
        cluster = replace(cluster, nodes=count, gpus_per_node=gpus_per_node)
        rendezvous = Rendezvous(kind="hostfile", hostfile=str(hostfile.absolute()))
    elif slurm and not starts and "SLURM_JOB_ID" not in os.environ:
        cluster, rendezvous = replace(cluster, nodes=nodes or cluster.nodes), IN_ALLOCATION
    elif slurm:
        rendezvous, count = slurm_rendezvous()
        _check_counts(gpus, nodes, "this Slurm allocation", count)
        cluster = replace(cluster, nodes=count)
    elif master is not None:
        rendezvous = static_rendezvous(master, node_rank)
        if nodes is not None:
            _check_counts(gpus, nodes, "--nodes", nodes)
            cluster = replace(cluster, nodes=nodes)
        if node_rank >= cluster.nodes:
            raise WorkloadError(
                f"node rank {node_rank} does not exist among {cluster.nodes} nodes",
                why="node ranks start at 0",
                fix="pass --nodes N, and --node-rank from 0 to N - 1",
            )
    elif (nodes or cluster.nodes) > 1:
        raise ClusterError(
            f"{nodes or cluster.nodes} nodes, but no rendezvous given",
            why="without a rendezvous only this node's ranks are started",
            fix="pass --hostfile FILE, --slurm, or on every node --master ADDRESS --node-rank R",
        )
    most = MOST_CPU_RANKS if cluster.gpu.is_cpu else MOST_GPUS_PER_NODE
    if cluster.nodes > MOST_NODES or cluster.gpus_per_node > most:
        raise ClusterError(
            f"{cluster.nodes} nodes of {cluster.gpus_per_node} ranks are too many",
            why=f"at most {MOST_NODES} nodes of {most} ranks are accepted",
            fix="correct --nodes, or the slots of the hostfile",
        )
    return cluster, rendezvous if cluster.nodes > 1 else None


_MAKE_EQUAL = "make them agree, or name only the kind, such as --gpus H100"


def _check_counts(gpus: str, nodes: int | None, source: str, count: int, gpus_per_node: int | None = None) -> None:
    """Raise ClusterError if `--gpus` or `--nodes` contradict the counts from the source of the nodes."""
    nodes_in_option, gpus_in_option = counts_in(gpus)
    for option, stated, found, unit in (
        ("--gpus", gpus_in_option, gpus_per_node, "GPUs a node"),
        ("--gpus", nodes_in_option, count, "nodes"),
        ("--nodes", nodes, count, "nodes"),
    ):
        if None not in (stated, found) and stated != found:
            raise ClusterError(
                f"{option} has {stated} {unit}, {source} {found}",
                why="the plan must be checked for the GPUs of the training",
                fix=_MAKE_EQUAL,
            )


def command_cluster(command: TrainingCommand, options: Mapping[str, Any], *, here: bool, solo: bool = False) -> Cluster:
    """The cluster of the ranks of a command, which starts them itself or has no launcher.

    options: those of `build_cluster`. here: whether the ranks run on this machine. solo: whether one rank runs alone.
    Raises DsAdviseError for a command that cannot be read, and ClusterError for options that contradict it.
    """
    name, on_cpu, found = command.launcher, options["device"] == "cpu", Processes(nodes=None, per_node=None)
    if name or command.program is not None:
        found = read_processes((*command.prefix, *command.words), variables=ON_CPU if on_cpu else {})
    if here and on_cpu and found.is_plain:
        raise ClusterError(
            f"{name} starts one plain process where there is no GPU, and DeepSpeed finds no rank in it",
            fix="leave it out, or start the script by torchrun",
        )
    by_default = here and on_cpu and found.per_node is None and found.counted is not None
    if by_default:  # on the CPU, DeepSpeed's launcher starts a rank for each NUMA node
        found = found._replace(per_node=found.counted)
    described = {each: options.get(each) for each in ("gpus", "device", "ranks", "memory")}
    if on_cpu:
        described["ranks"] = options["ranks"] or found.per_node
    is_here = here and (found.nodes or 1) == 1
    cluster = cluster_here(described, devices=1 if solo else found.per_node) if is_here else build_cluster(described)
    nodes, per_node = counts_in(options["gpus"])
    for what, stated, started in (
        ("node", nodes, found.nodes),
        ("rank", options["ranks"], found.per_node),
        ("GPU", per_node, found.per_node),
    ):
        if stated is not None and started is not None and stated != started:
            fix = f"pass --ranks {started}" if on_cpu else _MAKE_EQUAL
            if by_default:
                fix = f"write {name} --num_accelerators {stated}, or {fix}"
            raise ClusterError(
                f"{name} starts {counted_noun(started, what)}{' a node' * (what == 'GPU')}, the options have {stated}",
                why="the plan must be checked for the ranks of the training",
                fix=fix,
            )
    return replace(cluster, nodes=found.nodes or cluster.nodes, gpus_per_node=found.per_node or cluster.gpus_per_node)


def equal_nodes(hostfile: Path) -> tuple[int, int]:
    """(nodes, GPUs per node) of a hostfile. Raises ConfigFileError, and ClusterError for nodes of different sizes."""
    slots = read_hostfile(hostfile)
    gpus, *others = sorted(set(slots.values()))
    if others or not gpus:
        raise ClusterError(
            f"{hostfile} names nodes {'with different numbers of GPUs' if others else 'without GPUs'}",
            why="a plan assumes equal nodes",
            fix="give every node the same slots",
        )
    return len(slots), gpus


def slurm_rendezvous(environment: Mapping[str, str] = os.environ) -> tuple[Rendezvous, int]:
    """(the rendezvous of this process's Slurm allocation, its number of nodes). Raises ClusterError outside an
    allocation."""
    nodes, node_list, job = (environment.get(f"SLURM_JOB_{name}", "") for name in ("NUM_NODES", "NODELIST", "ID"))
    if not (re.fullmatch(r"\d{1,6} \d{1,18}", f"{nodes} {job}", flags=re.ASCII) and re.match(r"[^,\[]", node_list)):
        raise ClusterError(
            "--slurm, but this is not a Slurm allocation (SLURM_JOB_ID is not set)",
            why="srun starts the nodes of an allocation",
            fix="start it with sbatch or inside salloc; --dry and --emit slurm need none",
        )
    return Rendezvous("slurm", address=first_host(node_list), port=slurm_port(job), job=job), int(nodes)


def first_host(node_list: str) -> str:
    """The first host of Slurm's compressed list: `gpu[003-007,9],login` is gpu003."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", node_list)
    assert match is not None, "a node list begins with a name"
    return match[1] + (match[2] or "")


def static_rendezvous(master: str, node_rank: int) -> Rendezvous:
    """The rendezvous of `--master ADDRESS[:PORT] --node-rank R`. Raises ClusterError for an invalid port."""
    address, colon, port = master.rpartition(":") if not master.endswith("]") else (master, "", "")
    if not colon:
        address = master
        port = str(PORT)
    if not (address and re.fullmatch(r"\d{1,5}", port, flags=re.ASCII) and 0 < int(port) < 65536):
        raise ClusterError(
            f"--master {master[:60]!r} is not an address",
            why="all nodes connect to it",
            fix="write the first node's name or address, and optionally a port: node-0:29500",
        )
    return Rendezvous(kind="static", address=address.strip("[]"), port=int(port), node_rank=str(node_rank))


def launcher_for(rendezvous: Rendezvous | None, requested: Launcher | None) -> Launcher | None:
    """The requested launcher, else the only one that supports the rendezvous, else None. Raises ClusterError if the
    requested launcher does not support the rendezvous."""
    if rendezvous is None:
        return requested
    able = _LAUNCHERS[rendezvous.kind]
    if requested is not None and requested not in able:
        raise ClusterError(
            f"--launcher {requested} does not start nodes this way",
            why=f"of the three, {' and '.join(able)} {'does' if len(able) == 1 else 'do'}",
            fix=f"pass --launcher {able[0]}",
        )
    return requested or (able[0] if len(able) == 1 else None)
