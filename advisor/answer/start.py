"""What starts a training under a plan: the variables to set before, and every launcher's command."""

from __future__ import annotations

from ...ds_configs.launch_commands import ALLOCATOR_SETTING, launch_commands, threads_setting
from ...estimators.hardware.cluster import Cluster
from ..search.candidate import Candidate
from ..text.units import times
from .reasons import slower_without_threads
from .recommendation import Recommendation

NOTED = 1.05
"""Threads that make a step so many times longer or shorter are worth a line; less is beyond the prediction."""


def start_settings(answer: Recommendation, chosen: Candidate) -> list[tuple[str, str]]:
    """The variables to set before the start, each with the sentence that says why."""
    cluster = answer.question.cluster
    where = " on every node" if cluster.nodes > 1 else ""
    if cluster.gpu.is_cpu:
        why = "Before the start (or else DeepSpeed looks for a GPU, and every rank takes all cores):"
        return [(f"DS_ACCELERATOR=cpu {threads_setting(cluster)}", why)]
    found = []
    if cluster.gpu.vendor == "NVIDIA" and answer.question.workload.software.expandable_segments:
        comma = "," if where else ""
        why = f"Before the start{comma}{where} (fragmentation can take a quarter more without it):"
        found.append((ALLOCATOR_SETTING, why))
    costs = _costs_without_threads(answer, chosen)
    if costs:
        why = f"And for the optimizer on the host{where} (without it a step takes {costs}):"
        found.append((threads_setting(cluster), why))
    return found


def start_commands(answer: Recommendation, chosen: Candidate, config_path: str) -> dict[str, list[str]]:
    """The lines that start it, by launcher."""
    question = answer.question
    sets = sets_threads(answer, chosen)
    return launch_commands(
        question.cluster,
        config_path=config_path,
        framework=question.workload.framework,
        sets_threads=sets,
        bind_cores=sets and _binds_cores(question.cluster),
    )


def sets_threads(answer: Recommendation, chosen: Candidate) -> bool:
    """Whether the host's threads make a difference to the step."""
    slower = slower_without_threads(answer.question, chosen)
    return any(max(ratio, 1 / ratio) > NOTED for ratio in slower.values())


def _binds_cores(cluster: Cluster) -> bool:
    """Whether the deepspeed launcher is told to bind cores: on this machine, where that works and the user has not
    chosen the threads."""
    if not cluster.is_this_machine or cluster.threads_per_rank is not None:
        return False
    from ...probes.this_machine import can_bind_cores  # imported here: most questions are about other machines

    return can_bind_cores(cluster.gpus_per_node)


def _costs_without_threads(answer: Recommendation, chosen: Candidate) -> str:
    """`1.1 x as long with deepspeed, 2.9 x as long with torchrun`; "" where the user has set the threads, or they make
    no difference."""
    if answer.question.cluster.threads_per_rank is not None:
        return ""
    by_cost: dict[str, list[str]] = {}
    for launcher, ratio in slower_without_threads(answer.question, chosen).items():
        if ratio > NOTED:
            by_cost.setdefault(times(ratio), []).append(launcher)
    return ", ".join(f"{cost} as long with {' or '.join(launchers)}" for cost, launchers in by_cost.items())
