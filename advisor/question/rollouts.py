"""Completions of a question about reinforcement learning: their settings, and the choices that the search tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from math import lcm
from typing import TYPE_CHECKING, Any

from ...estimators.errors import WorkloadError
from ...estimators.hardware import Cluster
from ...estimators.memory.rollout_memory import cached_sequences
from ...estimators.objectives import OBJECTIVES, reward_model, trained_model
from ...estimators.rollouts import BATCH_SIZE, Rollouts
from .cluster import build_cluster
from .options import RolloutOptions, names_in

if TYPE_CHECKING:
    from .question import Question

EVEN = 16
"""The assumed batch has a multiple of this number of completions per GPU, so that many micro batches divide it."""


def build_rollouts(options: Mapping[str, Any]) -> Rollouts | None:
    """The rollout settings from the options; None for an objective without completions. Settings left to the search
    have TRL's defaults. Raises DsAdviseError for options of another objective, for impossible values, and for a reward
    model that cannot be read."""
    spec = OBJECTIVES[options["objective"]]
    defaults = spec.rollouts
    named = [name for name in names_in(RolloutOptions) if options[name] not in (None, "auto", "on")]
    foreign = [name for name in named if defaults is None or name in spec.lacks]
    if foreign:
        raise WorkloadError(
            f"--{foreign[0].replace('_', '-')} is not possible with --objective {options['objective']}",
            why="it generates no completions" if defaults is None else "its trainer has no such setting",
            fix="pass --objective grpo, or leave it out" if defaults is None else "leave it out",
        )
    if defaults is None:
        return None
    known = {field.name for field in fields(Rollouts)}
    chosen: dict[str, Any] = {name: options[name] for name in named if name in known}
    for name in ("vllm_enable_sleep_mode", "ds3_gather_for_generation"):
        chosen[name] = options[name] == "on"
    if isinstance(chosen.get("reward_model"), str):
        from .model_source import load_model  # imported here: it reads files

        shape = load_model(chosen["reward_model"], offline=options["offline"])
        chosen["reward_model"] = trained_model(shape, "reward")
    rollouts = replace(defaults, **chosen)
    if not 0 < rollouts.vllm_gpu_memory_utilization <= 1:
        raise WorkloadError("vllm_gpu_memory_utilization is a fraction below 1", fix="pass a number such as 0.3")
    if rollouts.beta < 0 or rollouts.num_generations < min(2, defaults.num_generations):
        raise WorkloadError(
            f"beta {rollouts.beta:g} with {rollouts.num_generations} generations",
            why="beta must be at least 0, and advantages compare at least two completions of a prompt",
            fix="pass other numbers",
        )
    return rollouts


def free_settings(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The rollout settings that are left to the search. A server's GPUs always are, because the cluster includes
    them."""
    spec = OBJECTIVES[options["objective"]]
    if spec.rollouts is None:
        return ()
    names = {"rollout", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode"} - spec.lacks
    return tuple(sorted({"server_gpus", *(name for name in names if options[name] in (None, "auto"))}))


def rollout_choices(question: Question) -> list[Question]:
    """The questions with all rollout settings decided: the generation engine, the GPUs of a server, the GPUs of an
    engine, sleep mode. A server's GPUs are not part of the questions' clusters."""
    rollouts, free = question.workload.rollouts, question.free_rollouts
    if rollouts is None or not free:
        return [question]
    found = []
    for cluster, settings in _settings(question, rollouts, free):
        workload = replace(question.workload, rollouts=settings)
        try:
            batch = workload.global_batch_size or _assumed_batch(question, settings, cluster)
            workload = replace(workload, global_batch_size=batch)
            found.append(replace(question, workload=workload, cluster=cluster, free_rollouts=()))
        except WorkloadError:  # a batch that this many GPUs do not divide
            if cluster is question.cluster:  # no GPU was taken away: the batch itself is impossible
                raise
    if not found:
        raise WorkloadError(
            f"{question.cluster.world_size} GPUs cannot be split between training and generation",
            why="the batch is not divisible, or the model does not fit a vLLM engine",
            fix="pass another --global-batch, --server-gpus or --vllm-tensor-parallel-size, or --rollout generate",
        )
    return found


def rollout_assumptions(question: Question) -> tuple[str, ...]:
    """Assumptions about completions, a phrase each."""
    rollouts = question.workload.rollouts
    batch = f"a batch of about {BATCH_SIZE} completions, as in DeepSeekMath"
    if rollouts is not None and rollouts.local_rollout_forward_batch_size:
        size = rollouts.local_rollout_forward_batch_size
        batch = f"a batch of {size} completions per GPU, which are generated at once"
    assumed: tuple[str, ...] = (batch,) if question.is_batch_free else ()
    assumed += ("completions of --max-completion-length tokens",)
    by_function = rollouts is not None and reward_model(question.model, question.workload) is None
    return assumed + (("rewards by a function that takes no time",) if by_function else ())


def training_cluster(options: Mapping[str, Any], cluster: Cluster | None = None) -> Cluster:
    """The machines of the training that options describe, or of these machines: without the GPUs of a vLLM server.
    Raises ClusterError."""
    cluster, gpus = cluster or build_cluster(options), options.get("server_gpus")
    if options.get("rollout") != "vllm-server" or gpus is None:
        return cluster
    return next((training for training, _ in _splits(cluster, gpus)), cluster)


def _settings(question: Question, rollouts: Rollouts, free: tuple[str, ...]) -> Iterator[tuple[Cluster, Rollouts]]:
    cluster, kind = question.cluster, rollouts.rollout
    tries = {kind} if "rollout" not in free else {"generate", "vllm-colocate", "vllm-server"}
    if "rollout" in free and rollouts.server_gpus:
        tries = {"vllm-server"}
    if cluster.gpu.is_cpu:
        tries = {"generate"} if "rollout" in free else tries
    if "generate" in tries:
        yield cluster, replace(rollouts, rollout="generate", server_gpus=0)
    if "vllm-colocate" in tries:
        asleep = (False, True) if "vllm_enable_sleep_mode" in free else (rollouts.vllm_enable_sleep_mode,)
        engine = replace(rollouts, rollout="vllm-colocate", server_gpus=0)
        for settings in _engines(question, engine, cluster.gpus_per_node, only="rollout" not in free):
            yield from ((cluster, replace(settings, vllm_enable_sleep_mode=sleeps)) for sleeps in asleep)
    if "vllm-server" in tries:
        for training, gpus in _splits(cluster, rollouts.server_gpus):
            local = min(gpus, cluster.gpus_per_node)
            engine = replace(rollouts, rollout="vllm-server", server_gpus=gpus, server_has_node=cluster.nodes > 1)
            yield from ((training, settings) for settings in _engines(question, engine, local, only=False))


def _splits(cluster: Cluster, server_gpus: int) -> Iterator[tuple[Cluster, int]]:
    """(cluster that trains, number of GPUs that generate): on one node any number generates, on several one whole
    node."""
    if cluster.nodes > 1:
        if server_gpus in (0, cluster.gpus_per_node):
            yield replace(cluster, nodes=cluster.nodes - 1), cluster.gpus_per_node
        return
    for gpus in range(1, cluster.gpus_per_node):
        if server_gpus in (0, gpus):
            yield replace(cluster, gpus_per_node=cluster.gpus_per_node - gpus), gpus


def _engines(question: Question, rollouts: Rollouts, gpus: int, *, only: bool) -> Iterator[Rollouts]:
    """The settings with the fewest GPUs of an engine that hold the model, or with the user's number. Empty if `gpus` do
    not suffice, unless there is no other choice, for which `unsupported` gives the reason."""
    if "vllm_tensor_parallel_size" not in question.free_rollouts:
        if gpus % rollouts.vllm_tensor_parallel_size == 0:
            yield rollouts
        return
    for ranks in (1, 2, 4, 8, 16):  # vLLM divides the attention heads, which are mostly powers of two
        settings = replace(rollouts, vllm_tensor_parallel_size=ranks)
        workload, model = replace(question.workload, rollouts=settings), question.model
        can_split = gpus % ranks == 0 and all(block.attention.heads % ranks == 0 for block in model.blocks)
        if can_split and cached_sequences(model, workload, question.cluster.gpu.memory_bytes) >= 1:
            yield settings
            return
    if only:
        yield rollouts


def _assumed_batch(question: Question, rollouts: Rollouts, cluster: Cluster) -> int | None:
    """A batch of about `BATCH_SIZE` completions in whole groups; None if the micro batch is given."""
    if question.micro_batch_size is not None:
        return None
    ranks = cluster.world_size
    each = rollouts.at_once(-(-BATCH_SIZE // ranks))
    multiple = lcm(rollouts.group_size(ranks), EVEN if each >= EVEN else 1)
    return ranks * (-(-each // multiple) * multiple)
