"""The one way from what a user says to a `Question`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..estimators.hardware.cluster import Cluster
from ..estimators.models.model_shape import ModelShape
from .question.cluster_spec import parse_cluster
from .question.model_source import load_model
from .question.question import CheckpointingChoice, Question, Risk, States
from .question.workload import WorkloadOptions, positive
from .recommend.what_if import SEQUENCE_STEP, longest


def ask(
    model: str | ModelShape,
    *,
    gpus: str | Cluster = "auto",
    ram: str | None = None,
    nvme: str | None = None,
    interconnect: str | None = None,
    threads: int | None = None,
    micro_batch: int | None = None,
    gradient_checkpointing: CheckpointingChoice = "auto",
    sequence_parallel_size: int | None = None,
    states: States = "fp32",
    risk: Risk = "safe",
    offline: bool = False,
    **training: Any,
) -> Question:
    """The question that the arguments of `advise` make up; `training` are those of `WorkloadOptions`.

    A `seq_len` of "max" is the longest at which some plan may be recommended.

    Raises `DsAdviseError` for what is unknown, impossible or contradictory.
    """
    cluster = gpus if isinstance(gpus, Cluster) else parse_cluster(gpus, ram=ram, nvme=nvme, interconnect=interconnect)
    if threads is not None:
        cluster = replace(cluster, threads_per_rank=positive("threads", threads))
    shape = model if isinstance(model, ModelShape) else load_model(model, offline=offline)
    is_longest = training.get("seq_len") == "max"
    if is_longest:
        training["seq_len"] = None if shape.fixed_len or shape.has_learned_positions else SEQUENCE_STEP
    question = Question(
        model=shape,
        workload=WorkloadOptions(**training).workload(shape, cluster.gpu),
        cluster=cluster,
        gradient_checkpointing=gradient_checkpointing,
        sequence_parallel_size=(
            None if sequence_parallel_size is None else positive("sequence_parallel_size", sequence_parallel_size)
        ),
        states=states,
        risk=risk,
        micro_batch_size=None if micro_batch is None else positive("micro_batch", micro_batch),
    )
    return longest(question) if is_longest else question
