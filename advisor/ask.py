"""From the options of a question to a `Question`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Unpack

from ..estimators.errors import WorkloadError
from ..estimators.models.model_shape import ModelShape
from .question.cluster import cluster_of
from .question.model_source import load_model
from .question.options import OPTIONS, JobOptions, QuestionOptions, names_in, with_defaults
from .question.question import Question
from .question.workload import workload_of
from .search.max_fit import STEP, of_largest_model, with_largest_micro_batch, with_longest_sequence

_SHARED = {field.name for field in fields(Question)} & OPTIONS.keys() - {"price"}
"""Options that are fields of a question."""


def ask(
    model: str | ModelShape, *, say: Callable[[str], None] = lambda _: None, **options: Unpack[QuestionOptions]
) -> Question:
    """The question of the arguments of `advise`.

    Only one of `model_size`, `micro_batch` and `seq_len` can be "max": the largest value with which a plan fits.

    say: receives progress of counting data, and a warning about quantized weights.

    Raises `DsAdviseError` for unknown, impossible or contradictory options.
    """
    given = with_defaults(options)
    _check_max(given)
    cluster = cluster_of(given)
    micro_batch = None if given["micro_batch"] == "max" else given["micro_batch"]
    has_job = any(given[name] != OPTIONS[name].default for name in names_in(JobOptions))  # type: ignore[literal-required]

    def about(shape: ModelShape) -> Question:
        chosen: dict[str, Any] = {**given}
        if given["seq_len"] == "max":
            chosen["seq_len"] = _first_length(shape, given["document_len"])
        job: dict[str, Any] = {}
        if has_job:
            from .question.job import batch_of, job_of, price_of  # imported here: few questions are about a whole job

            name = model if isinstance(model, str) else shape.name
            asked = job_of(given, name, shape, seq_len=chosen["seq_len"], say=say)
            job = {"price": price_of(given)}
            if asked is not None:
                job |= {"job": asked.job, "job_basis": asked.basis, "job_is_packed": given["packing"]}
                chosen["seq_len"] = asked.seq_len or chosen["seq_len"]
                if given["global_batch"] is None and given["micro_batch"] != "max":
                    chosen["global_batch"] = batch_of(asked.job, ranks=cluster.world_size, micro_batch=micro_batch)
                if given["packing"] and given["attention"] != "flash":
                    chosen["sequence_parallel_size"] = 1  # Ulysses drops the mask that separates packed samples
        return Question(
            model=shape,
            workload=workload_of(chosen, shape, cluster.gpu),
            cluster=cluster,
            micro_batch_size=micro_batch,
            **{name: chosen[name] for name in _SHARED},
            **job,
        )

    if given["model_size"] == "max":
        return of_largest_model(model if isinstance(model, str) else model.name, about)
    question = about(model if isinstance(model, ModelShape) else load_model(model, offline=given["offline"]))
    shape = question.model
    if shape.quantized and question.workload.method != "qlora":
        say(
            f"the weights of {shape.name} are quantized ({shape.quantized}), which transformers trains with adapters "
            f"at most: they are counted as if they were not; --method qlora counts 4-bit and 8-bit ones"
        )
    if question.zeropp and question.obstacle_to_zeropp is not None:
        raise WorkloadError("ZeRO++ is not possible here", why=question.obstacle_to_zeropp, fix="leave --zeropp out")
    if given["micro_batch"] == "max":
        return with_largest_micro_batch(question)
    return with_longest_sequence(question) if given["seq_len"] == "max" else question


def _check_max(given: QuestionOptions) -> None:
    """Raises WorkloadError for several options that are "max", and for one that contradicts --data."""
    searched = [OPTIONS[name].flag for name in ("model_size", "micro_batch", "seq_len") if given[name] == "max"]
    if len(searched) > 1:
        raise WorkloadError(
            f"{' and '.join(f'{flag} max' for flag in searched)} contradict each other",
            why="only one value can be searched",
            fix="pass a number for the others",
        )
    if given["data"] is not None and searched and searched != ["--micro-batch"]:
        raise WorkloadError(
            f"{searched[0]} max and --data contradict each other",
            why="the data are counted for one model, and decide the sequence length",
            fix="give their number with --samples",
        )


def _first_length(model: ModelShape, document_len: int | None) -> int | None:
    """A length with which the search for the longest can begin."""
    if model.fixed_len or model.has_learned_positions:
        return None
    return STEP * (1 + (document_len or 0) // STEP)
