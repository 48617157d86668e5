"""Completions of a question about reinforcement learning: their settings, and the choices that the search tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from math import lcm
from typing import TYPE_CHECKING, Any

from ...estimators.errors import WorkloadError
from ...estimators.hardware import Cluster
from ...estimators.memory.rollout_memory import cached_sequences
from ...estimators.objectives import OBJECTIVES, reward_model, trained_model
from ...estimators.rollouts import BATCH_SIZE, Rollouts
from .cluster import build_cluster
from .effective import effective_objectives
from .options import names_in
from .rollout_options import RolloutOptions

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
    foreign = [name for name in named if options["objective"] not in effective_objectives(name)]
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


def is_generation_free(options: Mapping[str, Any]) -> bool:
    """Whether the number of completions that are generated at once is left to the search."""
    spec = OBJECTIVES[options["objective"]]
    name = "steps_per_generation" if "steps_per_generation" not in spec.lacks else "local_rollout_forward_batch_size"
    return spec.rollouts is not None and options[name] is None


def rollout_choices(question: Question, completions: int = BATCH_SIZE) -> list[Question]:
    """The questions with all rollout settings decided: the generation engine, the GPUs of a server, the GPUs of an
    engine, sleep mode. A server's GPUs are not part of the questions' clusters. completions: approximate batch, if the
    user gives none."""
    rollouts, free = question.workload.rollouts, question.free_rollouts
    if rollouts is None or not free:
        return [question]
    found = []
    for cluster, settings in _settings(question, rollouts, free):
        workload = replace(question.workload, rollouts=settings)
        try:
            batch = workload.global_batch_size or _assumed_batch(question, settings, cluster, completions)
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


def generation_choices(question: Question) -> Iterator[Question]:
    """The question with the completions of a step generated all at once, as TRL does by default, then in two parts,
    four and so on. The smallest part is one completion on each GPU, or as many as complete a group of G.

    A part of GRPO and RLOO is a generation (`steps_per_generation`), so each micro batch still trains on completions of
    the step's policy; a generation that is used for several passes (`num_iterations`) outlives its step, and is not
    divided. With vLLM only a reward model computes the whole part at once. A part of PPO is
    `local_rollout_forward_batch_size`.
    """
    workload, rollouts, spec = question.workload, question.workload.rollouts, OBJECTIVES[question.workload.objective]
    if rollouts is None or spec.rollouts is None or not question.free_generation or not workload.global_batch_size:
        yield question
        return
    per_gpu, group = workload.global_batch_size // question.cluster.world_size, 1
    by_vllm = rollouts.rollout != "generate" and reward_model(question.model, workload) is None
    settings = [replace(rollouts, generations_per_step=1)]
    at_once = spec.rollouts.local_rollout_forward_batch_size
    if at_once is not None:
        sizes = [at_once >> power for power in range(at_once.bit_length())]
        settings = [replace(rollouts, local_rollout_forward_batch_size=size) for size in sizes]
    elif not by_vllm and rollouts.num_iterations == 1:
        group = rollouts.group_size(question.cluster.world_size)
        for parts in range(2, per_gpu // group + 1):
            if parts >= 2 * settings[-1].generations_per_step and per_gpu % (parts * group) == 0:
                settings.append(replace(rollouts, generations_per_step=parts))
    for each in settings:
        with suppress(WorkloadError):  # a micro batch of the user that is larger than a part
            yield replace(question, workload=replace(workload, rollouts=each))


def rollout_assumptions(question: Question, decided: Question) -> tuple[str, ...]:
    """Assumptions about completions, a phrase each. decided: the question with the chosen settings and batch."""
    rollouts = question.workload.rollouts
    batch = f"a batch of about {BATCH_SIZE} completions, as in DeepSeekMath"
    if rollouts is not None and (per_gpu := rollouts.local_rollout_forward_batch_size):
        batch = f"a batch of {per_gpu} completions per GPU"
    size = decided.workload.global_batch_size
    if rollouts is not None and size != _assumed_batch(question, rollouts, decided.cluster):
        batch = f"a batch of {size} completions, halved from {BATCH_SIZE} until it fits"
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


def _assumed_batch(
    question: Question, rollouts: Rollouts, cluster: Cluster, completions: int = BATCH_SIZE
) -> int | None:
    """A batch of about this number of completions in whole groups; None if the micro batch is given."""
    if question.micro_batch_size is not None:
        return None
    ranks = cluster.world_size
    each = rollouts.at_once(-(-completions // ranks))
    multiple = lcm(rollouts.group_size(ranks), EVEN if each >= EVEN else 1)
    return ranks * (-(-each // multiple) * multiple)
