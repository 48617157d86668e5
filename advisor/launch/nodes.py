"""Where the nodes are: a hostfile, a Slurm allocation, or an address that all of them know."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...ds_configs.hostfile import read_hostfile
from ...ds_configs.launch_commands import PORT, Launcher, Rendezvous
from ...estimators.errors import ClusterError


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
