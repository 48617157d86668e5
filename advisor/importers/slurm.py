"""What the directives of a Slurm script ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.+?)[ \t]*(?:[ \t]#.*)?$", re.MULTILINE)
_OPTION = re.compile(r"(?:^|(?<= ))(--[\w-]+|-[A-Za-z])(?:[ =]+)?([^\s-]\S*)?")
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-c": "--cpus-per-task"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """An allocation; None for what the directives leave open."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    """The kind of GPU as the cluster's administrators call it, such as `a100`."""
    tasks_per_node: int | None = None

    def variables(self) -> dict[str, str]:
        """The variables that Slurm sets in the job, as far as they follow from the directives."""
        nodes, gpus, tasks = self.nodes or 1, self.gpus_per_node, self.tasks_per_node
        known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
        if gpus:
            known |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus}
        if tasks:
            known |= {"SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": nodes * tasks}
        return {name: str(value) for name, value in known.items()}


def read_slurm(text: str) -> SlurmJob | None:
    """The job of a script, None where it has no directives."""
    given: dict[str, str] = {}
    for directive in _DIRECTIVE.findall(text):
        for name, value in _OPTION.findall(directive):
            given[_SHORT.get(name, name)] = value
    if not given:
        return None
    nodes = _count(given.get("--nodes"))
    gpus, gpu = _gpus(given.get("--gpus-per-node") or given.get("--gres", "").removeprefix("gpu:").split(",")[0])
    if gpus is None and (total := _gpus(given.get("--gpus", ""))[0]):
        gpus, gpu = max(1, total // (nodes or 1)), _gpus(given["--gpus"])[1]
    tasks = _count(given.get("--ntasks-per-node"))
    if tasks is None and (total_tasks := _count(given.get("--ntasks"))):
        tasks = max(1, total_tasks // (nodes or 1))
    return SlurmJob(nodes=nodes, gpus_per_node=gpus, gpu=gpu, tasks_per_node=tasks)


def _gpus(text: str) -> tuple[int | None, str | None]:
    """(number, kind) of `4` and `a100:4`."""
    kind, _, number = text.rpartition(":")
    return _count(number), kind or None


def _count(text: str | None) -> int | None:
    """`4`, and the least of `4-8`."""
    match = re.match(r"\d{1,5}(?=$|-)", text or "")
    return int(match[0]) if match else None
