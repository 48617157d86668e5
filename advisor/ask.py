"""The one way from what a user says to a `Question`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..estimators.errors import WorkloadError
from ..estimators.hardware.cluster import Cluster
from ..estimators.models.model_shape import ModelShape
from .question.cluster import parse_cluster
from .question.model_source import load_model
from .question.question import CheckpointingChoice, Collectives, Experts, Question, Risk, States
from .question.workload import WorkloadOptions, positive
from .search.max_fit import STEP, of_largest_model, with_largest_micro_batch, with_longest_sequence


def ask(
    model: str | ModelShape,
    *,
    gpus: str | Cluster = "auto",
    ram: str | None = None,
    nvme: str | None = None,
    interconnect: str | None = None,
    threads: int | None = None,
    model_size: Literal["max"] | None = None,
    micro_batch: int | Literal["max"] | None = None,
    seq_len: int | Literal["max"] | None = None,
    gradient_checkpointing: CheckpointingChoice = "auto",
    sequence_parallel_size: int | None = None,
    experts: Experts = "zero",
    states: States = "fp32",
    collectives: Collectives = "exact",
    risk: Risk = "safe",
    offline: bool = False,
    data: str | Path | None = None,
    samples: int | str | None = None,
    tokens: str | int | None = None,
    epochs: float | None = None,
    packing: bool = False,
    eval_split: float = 0.0,
    price: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    **training: Any,
) -> Question:
    """The question that the arguments of `advise` make up; `training` are the others of `WorkloadOptions`.

    Of `model_size`, `micro_batch` and `seq_len` one may be "max": the largest at which some plan may be recommended.

    `data`, `samples` or `tokens` say how much is trained (`JobOptions`); `say` is told while the data are counted, and
    of quantized weights.

    Raises `DsAdviseError` for what is unknown, impossible or contradictory.
    """
    _check_largest(model_size=model_size, micro_batch=micro_batch, seq_len=seq_len)
    cluster = gpus if isinstance(gpus, Cluster) else parse_cluster(gpus, ram=ram, nvme=nvme, interconnect=interconnect)
    if threads is not None:
        cluster = replace(cluster, threads_per_rank=positive("threads", threads))
    job = None
    if (data, samples, tokens, epochs, packing, eval_split, price) != (None, None, None, None, False, 0.0, None):
        from .question.job import JobOptions, batch_of  # imported here: most questions are about no whole job

        job = JobOptions(
            data=data,
            samples=samples,
            tokens=tokens,
            epochs=epochs,
            packing=packing,
            eval_split=eval_split,
            price=price,
        )
    if data is not None and (model_size == "max" or seq_len == "max"):
        wanted = "--model-size max" if model_size == "max" else "--seq-len max"
        raise WorkloadError(
            f"{wanted} and --data do not go together",
            why="the data are counted for one model, and decide the sequence length",
            fix="give their number with --samples",
        )
    micro = None if micro_batch in (None, "max") else positive("micro_batch", int(micro_batch))

    def about(shape: ModelShape) -> Question:
        length = _first_length(shape, training.get("document_len")) if seq_len == "max" else seq_len
        named = model if isinstance(model, str) else shape.name
        asked = job.asked(named, shape, seq_len=length, say=say) if job is not None and job.is_asked else None
        shared, given = sequence_parallel_size, dict(training)
        if asked is not None:
            length = asked.seq_len or length
            if given.get("global_batch") is None and micro_batch != "max":
                given["global_batch"] = batch_of(asked.job, ranks=cluster.world_size, micro_batch=micro)
            if packing and given.get("attention") != "flash":
                shared = 1  # Ulysses drops the mask that keeps packed samples apart
        return Question(
            model=shape,
            workload=WorkloadOptions(seq_len=length, **given).workload(shape, cluster.gpu),
            cluster=cluster,
            gradient_checkpointing=gradient_checkpointing,
            sequence_parallel_size=(None if shared is None else positive("sequence_parallel_size", shared)),
            job=None if asked is None else asked.job,
            job_is_packed=packing,
            price=None if job is None else job.parsed_price(),
            job_basis=() if asked is None else asked.basis,
            experts=experts,
            states=states,
            collectives=collectives,
            risk=risk,
            micro_batch_size=micro,
        )

    if model_size == "max":
        return of_largest_model(model if isinstance(model, str) else model.name, about)
    question = about(model if isinstance(model, ModelShape) else load_model(model, offline=offline))
    shape = question.model
    if shape.quantized and question.workload.method != "qlora":
        say(
            f"the weights of {shape.name} are quantized ({shape.quantized}), which transformers trains with adapters "
            f"at most: they are counted as if they were not; --method qlora counts 4-bit and 8-bit ones"
        )
    if collectives == "quantized" and (obstacle := question.obstacle_to_quantized) is not None:
        raise WorkloadError("collectives cannot be quantized", why=obstacle, fix="leave --collectives out")
    if micro_batch == "max":
        return with_largest_micro_batch(question)
    return with_longest_sequence(question) if seq_len == "max" else question


def _check_largest(**said: object) -> None:
    """Raises WorkloadError where several options are to be as large as they may be."""
    wanted = [f"--{name.replace('_', '-')} max" for name, value in said.items() if value == "max"]
    if len(wanted) > 1:
        raise WorkloadError(
            f"{' and '.join(wanted)} do not go together",
            why="each is searched with the others given",
            fix=f"give a number in place of {wanted[-1]}" if len(wanted) == 2 else "leave one of them",
        )


def _first_length(model: ModelShape, document_len: int | None) -> int | None:
    """A length with which the search for the longest may begin."""
    if model.fixed_len or model.has_learned_positions:
        return None
    return STEP * (1 + (document_len or 0) // STEP)
